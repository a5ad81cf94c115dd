"""Fingerprints depend on everything that affects results; bad rows are counted and the first ones listed."""

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
    assert task.fingerprint is task.fingerprint  # computed once
    assert len(task.fingerprint) == 16
    assert int(task.fingerprint, 16) >= 0


def test_every_relevant_change_changes_the_fingerprint():
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
        make_task(train=Split(["a ", "bc"], ["x", "y"], labels)),  # the same characters, split elsewhere
        make_task(train=Split(["a b", "cx"], ["", "y"], labels)),  # a character moved from pair to text
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
def test_an_inconsistent_task_is_rejected(changes):
    with pytest.raises(ValueError, match="t:"):
        make_task(**changes)


def test_a_split_with_columns_of_different_length_is_rejected():
    with pytest.raises(ValueError, match=r"2 texts, no pairs and 1 label$"):
        Split(["a", "b"], None, np.array([0]))
    with pytest.raises(ValueError, match="2 texts, 1 pair and 2 labels"):
        Split(["a", "b"], ["x"], np.array([0, 1]))


def test_bad_rows_are_counted_and_the_first_ones_listed():
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
    assert lines[7] == "Fix or remove these rows, then run again."
