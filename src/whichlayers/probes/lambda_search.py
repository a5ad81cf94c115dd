"""Selects L1 and L2 of the probes that rank neurons: one grid search per pretrained model and corpus.

    [grid] = search_lambdas(train, train_labels, dev, dev_labels, n_tags)
    grid.best.l1, grid.best.l2, grid.ranking.order

The search uses the pretrained model. All seeds and all finetuned versions of the model are then probed with the same
pair, as in Table 8 of Durrani et al. 2021: with a search for each, differences between models could be due to the
penalty. The score of a pair is its mean over three seeds. The result is saved to a file for other workers and later
runs.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch

from whichlayers.errors import WhichlayersError
from whichlayers.files import atomic_write
from whichlayers.probes.activation_files import hash_key
from whichlayers.probes.evaluation import accuracies
from whichlayers.probes.hidden_states import HiddenStates
from whichlayers.probes.neuron_ranking import NeuronRanking, neuron_count, rank_by_weight, top_neurons
from whichlayers.probes.probe_specs import FittedProbe, ProbeSpec, ProbeTraining
from whichlayers.probes.probe_trainer import fit_probes
from whichlayers.probes.probing_dataset import ProbingDataset, probe_training
from whichlayers.probes.progress import OnProgress
from whichlayers.trial import Trial, get_word_probe

OnFraction = Callable[[float], None]  # called with the completed fraction of a search, 0 to 1

LAMBDAS = (0.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7)
SEEDS = (0, 1, 2)  # of the probes of a search, independent of the seeds of the trials
PROBES = len(LAMBDAS) ** 2 * len(SEEDS)  # that a search trains
FORMAT = 2


@dataclass(frozen=True)
class GridPoint:
    """One pair of l1 and l2, and its dev accuracies."""

    l1: float
    l2: float
    accuracy: float  # with all neurons
    top_accuracy: float  # with all but the top neurons ablated, without retraining: the selection criterion


@dataclass(frozen=True, eq=False)
class LambdaGrid:
    """Result of a grid search for one seed."""

    points: list[GridPoint]
    best: GridPoint
    probe: FittedProbe  # of the best point
    ranking: NeuronRanking  # by its weights


def search_lambdas(
    train: HiddenStates,
    train_labels: np.ndarray,
    dev: HiddenStates,
    dev_labels: np.ndarray,
    n_tags: int,
    *,
    l1: Sequence[float] = LAMBDAS,
    l2: Sequence[float] = LAMBDAS,
    fraction: float = 0.2,
    seeds: Sequence[int] = (0,),
    training: ProbeTraining | None = None,
    on_progress: OnProgress | None = None,
) -> list[LambdaGrid]:
    """Grid search: train a probe on all neurons for every pair of l1 and l2, and select the best pair of each seed.

    The best pair has the highest dev accuracy with only its top neurons (`fraction` of all): too small a penalty
    spreads the information over all neurons, too large a one costs accuracy. Of equal pairs the first is selected. A
    pair whose probe diverges is never selected.

    The accuracy with only the bottom neurons plays no part. Ablated and not retrained they are at chance level: a score
    that rewards a low bottom accuracy selected l1 = 0.01 for semantic tags in a small BERT, which cost 14 points of
    accuracy, where l1 = 1e-4 gives the better ranking at a cost of 0.4 points.
    """
    pairs = [(l1_value, l2_value) for l1_value in l1 for l2_value in l2]
    if not pairs:
        raise WhichlayersError("the search needs at least one value of l1 and one of l2")
    neurons = train.all_neurons()
    specs = [ProbeSpec(neurons, *pair, seed) for seed in seeds for pair in pairs]
    probes = fit_probes(train, train_labels, n_tags, specs, training, on_progress)
    by_seed = [probes[first : first + len(pairs)] for first in range(0, len(probes), len(pairs))]
    return [_evaluate_grid(seed_probes, dev, dev_labels, fraction) for seed_probes in by_seed]


def _evaluate_grid(
    probes: Sequence[FittedProbe], dev: HiddenStates, dev_labels: np.ndarray, fraction: float
) -> LambdaGrid:
    """Score the probes of one seed, with all neurons and with the top `fraction` of them, and select the best."""
    neurons = probes[0].spec.neurons
    count = neuron_count(fraction, len(neurons))
    with ThreadPoolExecutor() as pool:  # sorting releases the GIL
        rankings = list(pool.map(lambda p: None if p.error else rank_by_weight(p.weight), probes))
    ablated = [
        keep_neurons(probe, top_neurons(ranking.order if ranking else neurons, count))
        for probe, ranking in zip(probes, rankings, strict=True)
    ]
    full, top = accuracies(dev, dev_labels, [*probes, *ablated]).reshape(2, -1)  # all neurons, top neurons
    if np.isnan(top).all():
        raise WhichlayersError("all probes of the grid search diverged: try a smaller lr")
    points = [
        GridPoint(probe.spec.l1, probe.spec.l2, float(accuracy), float(top_accuracy))
        for probe, accuracy, top_accuracy in zip(probes, full, top, strict=True)
    ]
    best = int(np.nanargmax(top))
    ranking = rankings[best]
    assert ranking is not None  # only a diverged probe has no ranking, and its accuracy is NaN
    return LambdaGrid(points, points[best], probes[best], ranking)


def keep_neurons(probe: FittedProbe, indices: np.ndarray) -> FittedProbe:
    """Ablate all other neurons: the same probe with their weights set to 0. `indices` are into the probe's neurons."""
    weight = torch.zeros_like(probe.weight)
    weight[indices] = probe.weight[indices]
    return dataclasses.replace(probe, weight=weight)


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
        training = probe_training(trial)
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
    word_probe, training = get_word_probe(trial), probe_training(trial)
    data = [word_probe.fingerprint, word_probe.vector, word_probe.standardize]
    if trial.bos is not None:
        data.append(f"bos: {trial.bos}")
    parts = [FORMAT, trial.model_fingerprint, *data, LAMBDAS, SEEDS]
    return hash_key([*parts, training.epochs, training.batch_size, training.lr, training.norm])


def save_lambdas(folder: Path, key: str, lambdas: tuple[float, float]) -> None:
    """Save the result of a search, atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / f"{key}.json") as partial:
        partial.write_text(json.dumps(lambdas))
