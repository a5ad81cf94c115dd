"""L1 and L2 of the probes that rank neurons: one pair for a model and a corpus, searched for once.

The search reads the model as it was pretrained. Every seed and every finetuned version of it is then asked with the
same pair, as in Table 8 of Durrani et al. 2021: were each to search for its own, what differs between them would
be the penalty as much as the model. A pair is judged by its mean over three seeds. What was found is kept in a
file, for other workers and later runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from whichlayers.errors import WhichlayersError
from whichlayers.probes.extract_sentences import name_of
from whichlayers.probes.neuron_selection import LAMBDAS, search_lambdas
from whichlayers.probes.probing_dataset import Studied, training_of, word_probe_of
from whichlayers.trial import Trial

OnShare = Callable[[float], None]

SEEDS = (0, 1, 2)  # of the probes of the search, whatever the seeds of those that ask
PROBES = len(LAMBDAS) ** 2 * len(SEEDS)  # that a search trains
FORMAT = 2


@dataclass
class Penalties:
    """`pretrained`: the trial's corpus as its model saw it before it was finetuned; None: the model that is asked was
    not. `folder`: None keeps no files."""

    pretrained: Callable[[Trial], Studied] | None = None
    folder: Path | None = None
    known: dict[str, tuple[float, float]] = field(default_factory=dict)

    def of(self, trial: Trial, here: Studied, on_share: OnShare | None = None) -> tuple[float, float]:
        """(L1, L2): those that the trial names, or those that the search finds. `here`: what the model that is asked
        sees; `on_share` is told which share of a search is done."""
        words = word_probe_of(trial)
        if words.lambdas is not None:
            return words.lambdas
        key = key_of(trial)
        if key not in self.known:
            self.known[key] = self._kept(key) or self._search(trial, here, on_share)
        return self.known[key]

    def _kept(self, key: str) -> tuple[float, float] | None:
        file = self.folder and self.folder / f"{key}.json"
        if file is None or not file.exists():
            return None
        l1, l2 = json.loads(file.read_text())
        return l1, l2

    def _search(self, trial: Trial, here: Studied, on_share: OnShare | None) -> tuple[float, float]:
        studied, training = here if self.pretrained is None else self.pretrained(trial), training_of(trial)
        done, epochs = 0, PROBES * training.epochs

        def on_step(trained: int) -> None:
            nonlocal done
            done += trained
            if on_share is not None:
                on_share(done / epochs)

        on_step(0)
        grids = search_lambdas(
            *studied.to_choose, len(studied.tags), seeds=SEEDS, training=training, on_step=on_step
        )
        alone = np.mean([[point.top for point in grid.points] for grid in grids], 0)
        if np.isnan(alone).all():
            raise WhichlayersError(
                "every pair of L1 and L2 has a probe that diverged: try a smaller probe_lr"
            )
        best = grids[0].points[int(np.nanargmax(alone))]  # a pair that diverged for one seed is not taken
        if self.folder is not None:
            remember(self.folder, key_of(trial), (best.l1, best.l2))
        return best.l1, best.l2


def key_of(trial: Trial) -> str:
    """Stands for all that decides what the search finds."""
    words, training = word_probe_of(trial), training_of(trial)
    how = [words.fingerprint, words.vector, words.standardize]
    parts = [FORMAT, trial.model_fingerprint, *how, LAMBDAS, SEEDS]
    return name_of([*parts, training.epochs, training.batch_size, training.lr, training.norm])


def remember(folder: Path, key: str, found: tuple[float, float]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    half = folder / f".{key}.{os.getpid()}"
    half.write_text(json.dumps(found))
    half.replace(folder / f"{key}.json")
