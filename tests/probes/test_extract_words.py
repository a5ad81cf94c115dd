"""Hidden states of words, against transformers with one sentence per pass; and the file that caches them."""

import dataclasses
import itertools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor

import numpy as np
import pytest
import torch
from word_models import (
    WORD_FAMILIES,
    corpus_of,
    one_sentence_at_a_time,
    random_words,
    word_encoder_of,
    word_tokenizer_of,
)

from whichlayers.data.conll import read_conllu
from whichlayers.errors import WhichlayersError
from whichlayers.probes.alignment import align
from whichlayers.probes.extract import corpus_fingerprint, extract_words, word_cache_key

HARD = corpus_of(
    "do n't can't she 's o'clock",
    "😀 cat 👩‍👩‍👧 é 漢字 ½ ﬁ",
    "mat",
    "unreadable-unbelievable-rebuilding mat http://a.b/c?d=e",
    "x" * 120 + " the readreadread",
    "the cat sat on the mat while the dogs were running home .",
)


@pytest.mark.parametrize("pooling", ["last", "first", "mean"])
@pytest.mark.parametrize("family", WORD_FAMILIES)
def test_one_pass_gives_what_single_sentences_give(family, pooling):
    encoder = word_encoder_of(family, positions=200)
    encoder.train()  # dropout must be off during extraction and on again afterwards
    tokenizer = word_tokenizer_of(family)
    assert tokenizer.padding_side == ("left" if family == "xlnet" else "right")
    found = extract_words(encoder, tokenizer, HARD, pooling=pooling, precision="float32", tokens_per_batch=60)
    assert encoder.training
    expected = one_sentence_at_a_time(
        encoder.eval(), word_tokenizer_of(family, prefix_space=family == "roberta"), HARD, pooling
    )
    assert found.states.shape == expected.shape == (HARD.n_words, 3, 16)
    np.testing.assert_allclose(found.states, expected, atol=3e-5, rtol=1e-4)


def test_left_padding_does_not_change_xlnet():
    """A batch as transformers pads it for XLNet, all padding before the words."""
    encoder, tokenizer = word_encoder_of("xlnet"), word_tokenizer_of("xlnet")
    corpus = corpus_of("the cat", "she sat on the mat", "dogs")
    batch = tokenizer(
        [list(s.words) for s in corpus.sentences], is_split_into_words=True, padding=True, return_tensors="pt"
    )
    assert (batch["attention_mask"][0, :2] == 0).all()
    with torch.no_grad():
        hidden = encoder(**batch, output_hidden_states=True).hidden_states
    expected = []
    for s, sentence in enumerate(corpus.sentences):
        word_ids = batch.word_ids(s)
        for w in range(len(sentence.words)):
            last = max(p for p, word in enumerate(word_ids) if word == w)
            expected.append(torch.stack([h[s, last] for h in hidden]))
    found = extract_words(encoder, tokenizer, corpus, precision="float32")
    np.testing.assert_allclose(found.states, torch.stack(expected), atol=3e-5, rtol=1e-4)


@pytest.mark.parametrize("family", WORD_FAMILIES)
def test_a_sentence_too_long_for_the_model_is_split(family):
    encoder, tokenizer = word_encoder_of(family, positions=24), word_tokenizer_of(family)
    sentence = ["unreadable", "cat"] * 12
    corpus = corpus_of("the mat", sentence)
    limit = {"max_length": 24} if family == "xlnet" else {}  # XLNet has no maximum length
    found = extract_words(encoder, tokenizer, corpus, precision="float32", **limit)
    [split] = found.report.split
    assert split.number == 4
    borders = align(corpus, tokenizer, 24).word_offsets[1:] - 2
    segments = [sentence[start:end] for start, end in itertools.pairwise(borders)]
    assert len(segments) == split.segments > 1
    alone = one_sentence_at_a_time(
        encoder,
        word_tokenizer_of(family, prefix_space=family == "roberta"),
        corpus_of("the mat", *segments),
        "last",
    )
    np.testing.assert_allclose(found.states, alone, atol=3e-5, rtol=1e-4)


def test_beyond_the_models_positions():
    with pytest.raises(WhichlayersError, match="max_length = 80 is more than the model's limit of 64"):
        extract_words(word_encoder_of("mpnet"), word_tokenizer_of("mpnet"), HARD, max_length=80)


def test_unknown_pooling():
    with pytest.raises(WhichlayersError, match="choose one of last, first, mean"):
        extract_words(word_encoder_of("bert"), word_tokenizer_of("bert"), HARD, pooling="middle")


def test_half_precision_is_the_same_rounded():
    encoder, tokenizer = word_encoder_of("bert", positions=200), word_tokenizer_of("bert")
    half = extract_words(encoder, tokenizer, HARD).states
    whole = extract_words(encoder, tokenizer, HARD, precision="float32").states
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, whole.astype(np.float16))


def test_states_too_large_for_half_precision():
    encoder = word_encoder_of("bert", positions=200)
    with torch.no_grad():
        encoder.embeddings.LayerNorm.weight.mul_(1e6)
    with pytest.raises(WhichlayersError, match="store the hidden states in float32"):
        extract_words(encoder, word_tokenizer_of("bert"), HARD)


# --- the file ---


def test_the_second_time_nothing_is_computed(tmp_path, passes):
    encoder, tokenizer = word_encoder_of("bert", positions=200), word_tokenizer_of("bert")
    reported = []
    options = {"cache": tmp_path, "key": word_cache_key("model", HARD), "on_words": reported.append}
    first = extract_words(encoder, tokenizer, HARD, **options)
    second = extract_words(encoder, tokenizer, HARD, **options)
    assert sum(passes) == HARD.n_words
    assert sum(reported) == 2 * HARD.n_words
    np.testing.assert_array_equal(first.states, second.states)
    assert first.report == second.report
    assert [p.suffix for p in sorted(tmp_path.iterdir())] == [".lock", ".npy"]


def test_a_damaged_file_is_computed_again(tmp_path, passes):
    encoder, tokenizer = word_encoder_of("bert", positions=200), word_tokenizer_of("bert")
    whole = np.array(extract_words(encoder, tokenizer, HARD, cache=tmp_path, key="k").states)
    file = tmp_path / "k.npy"
    raw = bytearray(file.read_bytes())
    raw[500] ^= 1
    file.write_bytes(raw)
    again = extract_words(encoder, tokenizer, HARD, cache=tmp_path, key="k").states
    np.testing.assert_array_equal(again, whole)
    assert sum(passes) == 2 * HARD.n_words


def test_the_cache_key_covers_everything_that_affects_the_states():
    other = corpus_of("the cat")
    keys = {
        word_cache_key("a", HARD),
        word_cache_key("b", HARD),
        word_cache_key("a", other),
        word_cache_key("a", HARD, "mean"),
        word_cache_key("a", HARD, precision="float32"),
        word_cache_key("a", HARD, max_length=40),
    }
    assert len(keys) == 6
    retagged = [dataclasses.replace(s, tags=("Z",) * len(s.tags)) for s in HARD.sentences]
    assert word_cache_key("a", dataclasses.replace(HARD, sentences=retagged)) == word_cache_key("a", HARD)
    assert corpus_fingerprint(corpus_of("a b", "c")) != corpus_fingerprint(corpus_of("a", "b c"))


def memory_growth() -> tuple[int, int]:
    """Growth of this process's anonymous memory, without mapped files, in kB: for a large and a small corpus."""
    encoder, tokenizer = word_encoder_of("bert"), word_tokenizer_of("bert")

    def held() -> int:
        with open("/proc/self/status") as status:
            return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))

    def most(n: int) -> int:
        corpus, seen = random_words(n, seed=0), []
        extract_words(encoder, tokenizer, corpus, precision="float32", on_words=lambda _: seen.append(held()))
        return max(seen) - seen[0]

    most(2000)
    return most(100_000), most(2000)


def test_memory_does_not_grow_with_the_corpus():
    """In a process of its own: what the heap of this one has free depends on the tests before."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        large, small = pool.submit(memory_growth).result()
    assert large < 8192 + small  # kB; the states of the large corpus take 19,200 kB


def test_real_text(shared):
    """Contractions, web addresses and all that English web text holds."""
    corpus = read_conllu(shared / "data" / "ud_english_ewt" / "en_ewt-ud-dev.conllu")
    few = dataclasses.replace(corpus, sentences=corpus.sentences[:150])
    for family in ("bert", "roberta", "xlnet"):
        encoder = word_encoder_of(family, positions=500)
        expected = one_sentence_at_a_time(
            encoder, word_tokenizer_of(family, prefix_space=family == "roberta"), few, "last"
        )
        found = extract_words(encoder, word_tokenizer_of(family), few, precision="float32")
        np.testing.assert_allclose(found.states, expected, atol=3e-5, rtol=1e-4)
