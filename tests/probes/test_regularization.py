"""L1 and L2 are searched for once a model and corpus, in the model as it was pretrained."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest
from test_probing_dataset import studied_of, tagged, trial_of
from word_models import random_words

from whichlayers.data.conll import TaggedCorpus
from whichlayers.data.corpora import Corpus
from whichlayers.probes import regularization
from whichlayers.probes.elastic_net import ProbeTraining
from whichlayers.probes.neuron_selection import GridPoint, search_lambdas
from whichlayers.probes.regularization import Penalties, key_of, remember


def searched(**words):
    trial = trial_of(lambdas=None)
    return dataclasses.replace(trial, word_probe=dataclasses.replace(trial.word_probe, **words))


def by_length(corpus):
    """Tagged A to D by how long a word is: a fifth of the neurons can tell, but not for every word."""
    sentences = [
        dataclasses.replace(s, tags=tuple("ABCD"[min(len(word) // 2, 3)] for word in s.words))
        for s in corpus.sentences
    ]
    return TaggedCorpus("mine", sentences)


@pytest.fixture
def studied(tmp_path):
    return studied_of(Corpus("mine", tagged(20), tagged(3), tagged(4)), tmp_path)


@pytest.fixture
def searches(monkeypatch):
    """The seeds of every search that is made."""
    made = []

    def counted(*args, **options):
        made.append(options["seeds"])
        return search_lambdas(*args, **options)

    monkeypatch.setattr(regularization, "search_lambdas", counted)
    return made


def test_one_search_for_all_seeds_and_finetuned_models(studied, searches):
    found = Penalties()
    first = found.of(searched(), studied)
    others = [
        dataclasses.replace(searched(), seed=4),
        dataclasses.replace(
            searched(measure="selectivity"), task="SST-2", task_fingerprint="s", train_size=500
        ),
    ]
    assert [found.of(trial, studied) for trial in others] == [first, first]
    assert searches == [(0, 1, 2)]


def test_the_pair_with_the_best_mean_over_the_seeds(tmp_path):
    studied = studied_of(Corpus("mine", *(by_length(random_words(n, n)) for n in (400, 50))), tmp_path)
    training = ProbeTraining(epochs=20, batch_size=16, lr=0.05)
    found = Penalties().of(searched(epochs=20, batch_size=16, lr=0.05), studied)
    alone: dict = {}
    for seed in (0, 1, 2):
        [grid] = search_lambdas(*studied.to_choose, len(studied.tags), seeds=(seed,), training=training)
        for point in grid.points:
            alone.setdefault((point.l1, point.l2), []).append(point.top)
    means = {pair: sum(mine) / 3 for pair, mine in alone.items()}
    # rounding may decide two words of the 120
    assert means[found] == pytest.approx(max(means.values()), abs=0.02)
    assert means[found] > min(means.values()) + 0.1


def test_a_pair_that_diverged_for_one_seed_is_not_taken(studied, monkeypatch):
    def made_up(*args, seeds, **options):
        scores = {0: [0.1, 0.9, 0.2], 1: [0.1, float("nan"), 0.3], 2: [0.1, 0.9, 0.2]}
        points = {s: [GridPoint(0.1, i, 0.5, score) for i, score in enumerate(scores[s])] for s in seeds}
        return [SimpleNamespace(points=points[seed]) for seed in seeds]

    monkeypatch.setattr(regularization, "search_lambdas", made_up)
    assert Penalties().of(searched(), studied) == (0.1, 2)


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(searched(), model_fingerprint="another"),
        searched(fingerprint="another"),
        searched(vector="mean"),
        searched(standardize=True),
        searched(norm="plain"),
        searched(lr=1e-2),
    ],
)
def test_another_model_or_corpus_or_way_of_training_has_its_own(studied, searches, other):
    found = Penalties()
    found.of(searched(), studied)
    found.of(other, studied)
    assert len(searches) == 2


def test_what_was_found_is_kept_for_other_workers_and_later_runs(studied, searches, tmp_path):
    folder = tmp_path / "penalties"
    first = Penalties(folder=folder).of(searched(), studied)
    assert [file.suffix for file in folder.iterdir()] == [".json"]
    assert Penalties(lambda trial: pytest.fail("searched again"), folder).of(searched(), studied) == first
    assert len(searches) == 1


def test_what_answers_say_was_found_is_not_searched_for_again(studied, tmp_path):
    remember(tmp_path / "penalties", key_of(dataclasses.replace(searched(), seed=7)), (0.25, 0.5))
    found = Penalties(lambda trial: pytest.fail("searched"), tmp_path / "penalties")
    assert found.of(searched(measure="selectivity"), studied) == (0.25, 0.5)


def test_a_pair_that_is_named_is_taken(studied):
    found = Penalties(lambda trial: pytest.fail("searched"))
    assert found.of(trial_of(lambdas=(0.1, 0.2)), studied) == (0.1, 0.2)
