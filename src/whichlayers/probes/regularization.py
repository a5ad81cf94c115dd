"""Selects L1 and L2 of the probes that rank neurons: one grid search per pretrained model and corpus.

The search uses the pretrained model. All seeds and all finetuned versions of the model are then probed with the same
pair, as in Table 8 of Durrani et al. 2021: with a search for each, differences between models could be due to the
penalty. The score of a pair is its mean over three seeds. The result is saved to a file for other workers and later
runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from whichlayers.errors import WhichlayersError
from whichlayers.files import atomic_write
from whichlayers.probes.activation_files import hash_key
from whichlayers.probes.neuron_selection import LAMBDAS, search_lambdas
from whichlayers.probes.probing_dataset import ProbingDataset, get_word_probe, training_settings
from whichlayers.trial import Trial

OnFraction = Callable[[float], None]  # called with the completed fraction of a search, 0 to 1

SEEDS = (0, 1, 2)  # of the probes of a search, independent of the seeds of the trials
PROBES = len(LAMBDAS) ** 2 * len(SEEDS)  # that a search trains
FORMAT = 2


@dataclass
class LambdaSearch:
    """Looks up or searches the L1 and L2 penalties of trials.

    Args:
        pretrained: Returns the probing dataset of a trial's corpus for the pretrained model. None if the model that is
            probed is not finetuned.
        folder: Where results are saved. None: no files.
        known: Results of this process, by `search_key`.
    """

    pretrained: Callable[[Trial], ProbingDataset] | None = None
    folder: Path | None = None
    known: dict[str, tuple[float, float]] = field(default_factory=dict)

    def lambdas(
        self, trial: Trial, dataset: ProbingDataset, on_fraction: OnFraction | None = None
    ) -> tuple[float, float]:
        """(L1, L2) of a trial: those of its settings, else the result of the search.

        Args:
            trial: A word probe trial.
            dataset: The dataset of the model that is probed; searched if there is no `pretrained`.
            on_fraction: Progress callback of a search.
        """
        word_probe = get_word_probe(trial)
        if word_probe.lambdas is not None:
            return word_probe.lambdas
        key = search_key(trial)
        if key not in self.known:
            self.known[key] = self._load(key) or self._search(trial, dataset, on_fraction)
        return self.known[key]

    def _load(self, key: str) -> tuple[float, float] | None:
        file = self.folder and self.folder / f"{key}.json"
        if file is None or not file.exists():
            return None
        l1, l2 = json.loads(file.read_text())
        return l1, l2

    def _search(
        self, trial: Trial, dataset: ProbingDataset, on_fraction: OnFraction | None
    ) -> tuple[float, float]:
        if self.pretrained is not None:
            dataset = self.pretrained(trial)
        training = training_settings(trial)
        done, epochs = 0, PROBES * training.epochs

        def on_progress(trained: int) -> None:
            nonlocal done
            done += trained
            if on_fraction is not None:
                on_fraction(done / epochs)

        on_progress(0)
        grids = search_lambdas(
            *dataset.selection_splits,
            len(dataset.tags),
            seeds=SEEDS,
            training=training,
            on_progress=on_progress,
        )
        scores = np.mean([[point.top_accuracy for point in grid.points] for grid in grids], 0)
        if np.isnan(scores).all():
            raise WhichlayersError(
                "for every pair of L1 and L2 at least one probe diverged: try a smaller probe_lr"
            )
        best = grids[0].points[int(np.nanargmax(scores))]  # a pair that diverged for one seed is not selected
        if self.folder is not None:
            save_lambdas(self.folder, search_key(trial), (best.l1, best.l2))
        return best.l1, best.l2


def search_key(trial: Trial) -> str:
    """A hash of everything that determines the result of the search for a trial."""
    word_probe, training = get_word_probe(trial), training_settings(trial)
    data = [word_probe.fingerprint, word_probe.vector, word_probe.standardize]
    parts = [FORMAT, trial.model_fingerprint, *data, LAMBDAS, SEEDS]
    return hash_key([*parts, training.epochs, training.batch_size, training.lr, training.norm])


def save_lambdas(folder: Path, key: str, lambdas: tuple[float, float]) -> None:
    """Save the result of a search, atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / f"{key}.json") as partial:
        partial.write_text(json.dumps(lambdas))
