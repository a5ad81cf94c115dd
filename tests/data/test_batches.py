"""Padding against a slow loop; subsets are random, nested and reproducible."""

import numpy as np
import pytest

from whichlayers import rng
from whichlayers.data.batches import epoch_order, pad, select_rows, subset
from whichlayers.data.tokenize import TokenizedSplit
from whichlayers.errors import WhichlayersError


def make_split(lengths, with_types=True, seed=0) -> TokenizedSplit:
    rng = np.random.default_rng(seed)
    total = sum(lengths)
    return TokenizedSplit(
        ids=rng.integers(5, 30_000, total).astype(np.int32),
        type_ids=rng.integers(0, 3, total).astype(np.uint8) if with_types else None,
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        labels=rng.integers(0, 2, len(lengths)),
    )


def pad_slowly(flat, split, rows, fill, width):
    padded = []
    for row in rows:
        tokens = list(flat[split.offsets[row] : split.offsets[row + 1]])
        padded.append(tokens + [fill] * (width - len(tokens)))
    return np.array(padded)


@pytest.mark.parametrize("extra", [None, 0, 7])
@pytest.mark.parametrize("with_types", [True, False])
@pytest.mark.parametrize("rows", [[0], [4, 1, 3], [2, 2, 2], list(range(6))])
def test_pad_equals_the_slow_loop(rows, with_types, extra):
    split = make_split([3, 1, 12, 5, 7, 128], with_types)
    longest = max(split.length(row) for row in rows)
    length = None if extra is None else longest + extra
    width = longest + (extra or 0)
    batch = pad(split, np.array(rows), pad_id=99_999, length=length)
    assert np.array_equal(batch.input_ids, pad_slowly(split.ids, split, rows, 99_999, width))
    mask = pad_slowly(np.ones(len(split.ids), int), split, rows, 0, width)
    assert np.array_equal(batch.attention_mask, mask)
    if with_types:
        assert np.array_equal(batch.token_type_ids, pad_slowly(split.type_ids, split, rows, 0, width))
        assert batch.token_type_ids.dtype == np.int64
    else:
        assert batch.token_type_ids is None
    assert np.array_equal(batch.labels, split.labels[rows])
    assert batch.input_ids.dtype == batch.attention_mask.dtype == np.int64


def test_pad_does_not_truncate():
    with pytest.raises(ValueError, match="12 tokens"):
        pad(make_split([3, 12]), np.array([0, 1]), pad_id=0, length=8)


@pytest.mark.parametrize("with_types", [True, False])
@pytest.mark.parametrize("rows", [[4, 1, 3], [2, 2], list(range(6)), []])
def test_select_rows_equals_a_slow_loop(rows, with_types):
    split = make_split([3, 1, 12, 5, 7, 128], with_types)
    few = select_rows(split, np.array(rows, np.int64))
    assert len(few) == len(rows)
    for own, row in enumerate(rows):
        mine = slice(few.offsets[own], few.offsets[own + 1])
        other = slice(split.offsets[row], split.offsets[row + 1])
        assert np.array_equal(few.ids[mine], split.ids[other])
        assert not with_types or np.array_equal(few.type_ids[mine], split.type_ids[other])
    assert np.array_equal(few.labels, split.labels[np.array(rows, np.int64)])
    assert (few.type_ids is None) == (not with_types)


def test_subsets_of_a_seed_are_nested_and_those_of_another_differ():
    small, large, whole = (subset(10_000, size, seed=3) for size in (500, 5_000, 10_000))
    assert np.array_equal(small, large[:500])
    assert np.array_equal(large, whole[:5_000])
    assert np.array_equal(np.sort(whole), np.arange(10_000))
    assert len(np.intersect1d(small, subset(10_000, 500, seed=4))) < 60
    assert np.array_equal(small, rng.permutation(3, "subset", 10_000)[:500])
    assert small.dtype == np.int64


def test_a_subset_is_sampled_from_all_rows():
    chosen = subset(10_000, 2_000, seed=0)
    counts = np.histogram(chosen, bins=10, range=(0, 10_000))[0]
    assert counts.min() > 140
    assert counts.max() < 260


@pytest.mark.parametrize("size", [0, -1, 101])
def test_a_subset_of_invalid_size_is_rejected(size):
    with pytest.raises(WhichlayersError, match=r"100 training rows; choose 1 to 100"):
        subset(100, size, seed=0)


def test_epoch_orders_are_permutations_that_differ_by_epoch_and_seed():
    orders = [epoch_order(50, seed, epoch) for seed in (0, 1) for epoch in (1, 2, 3)]
    for order in orders:
        assert np.array_equal(np.sort(order), np.arange(50))
    assert len({tuple(order) for order in orders}) == 6
    assert np.array_equal(orders[0], epoch_order(50, 0, 1))
    assert orders[0].dtype == np.int64
