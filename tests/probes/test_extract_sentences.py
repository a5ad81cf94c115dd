"""Pooled hidden states of all layers, against a loop over single examples; and the file that caches them."""

import numpy as np
import pytest
import torch
from tiny import FAMILIES, tiny_encoder, tiny_task

from whichlayers.errors import WhichlayersError
from whichlayers.models.families import FAMILIES as ANATOMIES
from whichlayers.models.head import takes_token_types
from whichlayers.probes import activation_files, extract
from whichlayers.probes.extract import batches_by_length, cache_key, extract_sentences


def one_at_a_time(encoder, split, pooling):
    """Hidden states of each example alone, from transformers: no padding, no batch."""
    rows = []
    for i in range(len(split)):
        span = slice(split.offsets[i], split.offsets[i + 1])
        inputs = {"input_ids": torch.from_numpy(split.ids[span].astype(np.int64))[None]}
        if takes_token_types(encoder) and split.type_ids is not None:
            inputs["token_type_ids"] = torch.from_numpy(split.type_ids[span].astype(np.int64))[None]
        with torch.no_grad():
            hidden = encoder(**inputs, output_hidden_states=True).hidden_states
        index = {"first": 0, "last": -1}[ANATOMIES[encoder.config.model_type].cls_position]
        rows.append(torch.stack([h[0].mean(0) if pooling == "mean" else h[0, index] for h in hidden]))
    return torch.stack(rows).numpy()


@pytest.mark.parametrize("pooling", ["mean", "summary"])
@pytest.mark.parametrize("family", FAMILIES)
def test_one_pass_gives_what_single_examples_give(family, pooling):
    encoder, split = tiny_encoder(family), tiny_task(n_train=17).train
    encoder.train()  # dropout must be off during extraction and on again afterwards
    found = extract_sentences(encoder, split, 0, pooling=pooling, tokens_per_batch=50)
    assert encoder.training
    assert found.shape == (17, 4, encoder.config.hidden_size)
    np.testing.assert_allclose(found, one_at_a_time(encoder.eval(), split, pooling), atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("family", ["bert", "roberta", "mpnet"])
def test_the_pooler_reads_every_layer(family):
    encoder, split = tiny_encoder(family), tiny_task(n_train=17).train
    found = extract_sentences(encoder, split, 0, pooling="pooler", tokens_per_batch=50)
    cls = torch.from_numpy(one_at_a_time(encoder.eval(), split, "summary"))
    dense = encoder.pooler.dense
    expected = torch.tanh(cls @ dense.weight.T + dense.bias).detach()
    np.testing.assert_allclose(found, expected, atol=3e-5, rtol=1e-4)


def test_a_model_without_a_pooler():
    encoder, split = tiny_encoder("electra"), tiny_task(n_train=5).train
    with pytest.raises(WhichlayersError, match=r'pooling = "pooler" .* electra .* Use pooling = "mean"'):
        extract_sentences(encoder, split, 0, pooling="pooler")


def test_only_the_top_of_modernbert_is_normalized():
    encoder, split = tiny_encoder("modernbert"), tiny_task(n_train=6).train
    top = []
    handle = encoder.layers[-1].register_forward_hook(lambda module, inputs, output: top.append(output))
    found = extract_sentences(encoder, split, 0, pooling="summary", tokens_per_batch=1000)
    handle.remove()
    order = np.concatenate(list(batches_by_length(np.diff(split.offsets), 1000)))
    with torch.no_grad():
        expected = encoder.final_norm(top[0])[:, 0]
    np.testing.assert_allclose(found[order, 3], expected, atol=1e-5, rtol=1e-5)


def test_batches_hold_every_row_once_and_at_most_so_many_tokens():
    lengths = np.random.default_rng(0).integers(1, 60, 200)
    batches = list(batches_by_length(lengths, 100))
    assert sorted(np.concatenate(batches)) == list(range(200))
    assert all(len(rows) == 1 or lengths[rows].max() * len(rows) <= 100 for rows in batches)
    assert len(batches) < 100
    assert [len(rows) for rows in batches_by_length(np.array([500, 3]), 100)] == [1, 1]


# --- the cache ---


def test_the_second_time_nothing_is_computed(tmp_path, passes):
    encoder, split, reported = tiny_encoder("bert"), tiny_task().train, []
    first = extract_sentences(encoder, split, 0, cache=tmp_path, key="k", on_rows=reported.append)
    assert (sum(passes), sum(reported)) == (60, 60)
    again = extract_sentences(encoder, split, 0, cache=tmp_path, key="k", on_rows=reported.append)
    assert (sum(passes), sum(reported)) == (60, 120)
    assert np.array_equal(first, again)
    assert isinstance(again, np.memmap)
    assert not list(tmp_path.glob("*.partial"))


@pytest.mark.parametrize("harm", ["cut", "flipped", "other array", "no array", "no checksum"])
def test_a_damaged_file_is_computed_again(tmp_path, passes, harm):
    encoder, split = tiny_encoder("bert"), tiny_task().train
    whole = np.array(extract_sentences(encoder, split, 0, cache=tmp_path, key="k"))
    file = tmp_path / "k.npy"
    content = bytearray(file.read_bytes())
    if harm == "cut":
        file.write_bytes(content[: len(content) // 2])
    elif harm == "flipped":
        content[len(content) // 2] ^= 1
        file.write_bytes(content)
    elif harm == "other array":
        np.save(file, whole[:, :2])
    elif harm == "no array":
        file.write_bytes(b"nonsense")
    else:
        file.write_bytes(content[:-4])
    assert np.array_equal(extract_sentences(encoder, split, 0, cache=tmp_path, key="k"), whole)
    assert sum(passes) == 120


def test_an_interrupted_pass_leaves_no_file(tmp_path, monkeypatch):
    encoder, split = tiny_encoder("bert"), tiny_task().train
    real = extract._batches

    def breaks(*arguments):
        yield next(real(*arguments))
        raise RuntimeError("out of memory")

    monkeypatch.setattr(extract, "_batches", breaks)
    with pytest.raises(RuntimeError, match="out of memory"):
        extract_sentences(encoder, split, 0, cache=tmp_path, key="k")
    assert [file.suffix for file in tmp_path.iterdir()] == [".lock"]


def test_float16(tmp_path):
    encoder, split = tiny_encoder("bert"), tiny_task().train
    half = extract_sentences(encoder, split, 0, precision="float16", cache=tmp_path, key="k")
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, extract_sentences(encoder, split, 0), atol=2e-3, rtol=1e-3)


def test_states_that_are_too_large(tmp_path):
    encoder, split = tiny_encoder("bert"), tiny_task(n_train=5).train
    with torch.no_grad():
        encoder.embeddings.LayerNorm.bias.fill_(1e5)
    with pytest.raises(WhichlayersError, match="too large for float16"):
        extract_sentences(encoder, split, 0, precision="float16", cache=tmp_path, key="k")
    with torch.no_grad():
        encoder.embeddings.LayerNorm.bias.fill_(float("nan"))
    with pytest.raises(WhichlayersError, match="not finite"):
        extract_sentences(encoder, split, 0)


def test_a_full_disk_is_found_before_the_pass(tmp_path, monkeypatch):
    monkeypatch.setattr(
        activation_files.shutil, "disk_usage", lambda folder: type("", (), {"free": 1000})(), raising=True
    )
    with pytest.raises(WhichlayersError, match="WHICHLAYERS_CACHE"):
        extract_sentences(tiny_encoder("bert"), tiny_task().train, 0, cache=tmp_path, key="k")


def test_the_cache_key_covers_everything_that_affects_the_states():
    plain = ("model", "task", 128, "mean", "float32")
    others = [("m", *plain[1:]), ("model", "t", *plain[2:]), ("model", "task", 64, "mean", "float32")]
    others += [(*plain[:3], "summary", "float32"), (*plain[:4], "float16")]
    assert len({cache_key(*key) for key in [plain, *others]}) == 6  # type: ignore[arg-type]
