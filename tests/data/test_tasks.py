"""Fingerprints tell tasks apart by what decides a result; bad rows are listed from the top and counted."""

import dataclasses
import itertools

import numpy as np
import pytest

from whichlayers.data.tasks import BadData, BadRows, Split, Task


def make_task(**changes) -> Task:
    train = Split(["a b", "c"], ["x", "y"], np.array([0, 1]))
    dev = Split(["d"], ["z"], np.array([1]))
    task = Task("t", "classification", ("no", "yes"), "accuracy", ("accuracy", "f1"), train, {"": dev})
    return dataclasses.replace(task, **changes)


def test_fingerprint_ignores_names_and_is_stable():
    task = make_task()
    assert task.fingerprint == make_task(name="other", label_names=("0", "1"), notes=("n",)).fingerprint
    assert task.fingerprint is task.fingerprint  # worked out once
    assert len(task.fingerprint) == 16
    assert int(task.fingerprint, 16) >= 0


def test_every_change_of_substance_changes_the_fingerprint():
    labels = np.array([0, 1])
    dev = make_task().evals[""]
    variants = [
        make_task(),
        make_task(metric="f1"),
        make_task(metrics=("accuracy",)),
        make_task(label_names=("a", "b", "c")),
        make_task(evals={"": dev, "mismatched": dev}),
        make_task(train=Split(["a b", "c"], None, labels)),
        make_task(train=Split(["a b", "c"], ["x", "y"], labels[::-1].copy())),
        make_task(train=Split(["a ", "bc"], ["x", "y"], labels)),  # the same letters, cut elsewhere
        make_task(train=Split(["a b", "cx"], ["", "y"], labels)),  # a letter moved from pair to text
        make_task(train=Split(["c", "a b"], ["x", "y"], labels)),
        make_task(train=Split(["á b", "c"], ["x", "y"], labels)),
    ]
    for one, other in itertools.combinations(variants, 2):
        assert one.fingerprint != other.fingerprint


def test_n_outputs():
    assert make_task().n_outputs == 2
    scores = Split(["a"], None, np.array([0.5], dtype=np.float32))
    assert Task("t", "regression", (), "pearson", ("pearson",), scores, {"": scores}).n_outputs == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"metric": "mcc"},
        {"evals": {"dev": Split(["d"], ["z"], np.array([1]))}},
        {"kind": "regression"},
    ],
)
def test_a_task_that_contradicts_itself_is_refused(changes):
    with pytest.raises(ValueError, match="t:"):
        make_task(**changes)


def test_a_split_of_unequal_columns_is_refused():
    with pytest.raises(ValueError, match="2 texts, no pairs and 1 labels"):
        Split(["a", "b"], None, np.array([0]))
    with pytest.raises(ValueError, match="1 pairs"):
        Split(["a", "b"], ["x"], np.array([0, 1]))


def test_bad_rows_are_listed_from_the_top_and_counted():
    bad = BadRows("f.tsv")
    bad.raise_if_any()
    for line in (40, 3, 17, 99, 5, 8, 1200):
        bad.add(line, "wrong")
    with pytest.raises(BadData) as error:
        bad.raise_if_any()
    lines = str(error.value).splitlines()
    assert lines[0] == "7 bad rows in f.tsv:"
    assert lines[1:6] == [f"  f.tsv:{n}: wrong" for n in (3, 5, 8, 17, 40)]
    assert lines[6] == "  and 2 more"
