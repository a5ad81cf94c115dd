"""Token spans of words, against each word tokenized separately, for every type of tokenizer."""

import numpy as np
import pytest
from word_models import WORD_FAMILIES, corpus_of, word_tokenizer_of

from whichlayers.data.conll import TaggedCorpus, TaggedSentence
from whichlayers.errors import WhichlayersError
from whichlayers.probes.alignment import _split_greedily, align, word_tokenizer

HARD = (
    "do n't can't she 's o'clock",
    "😀 cat 👩‍👩‍👧 é 漢字 \u0e01\u0e33 ½ ﬁ",
    "unreadable-unbelievable-rebuilding mat http://a.b/c?d=e&f=g",
    "x" * 150 + " the " + "read" * 12,
    "`` '' \" -- ... 1,999.50 $ % @-@ <unk> a_b ▁",
)


def segments_of(aligned):
    for start, end in zip(aligned.offsets, aligned.offsets[1:], strict=False):
        yield aligned.ids[start:end]


@pytest.mark.parametrize("family", WORD_FAMILIES)
def test_every_word_has_the_tokens_of_the_word_alone(family):
    tokenizer, corpus = word_tokenizer_of(family), corpus_of(*HARD)
    aligned = align(corpus, tokenizer)
    words = [word for sentence in corpus.sentences for word in sentence.words]
    assert len(aligned.first_token) == len(aligned.last_token) == len(words) == corpus.n_words
    alone, prefix = word_tokenizer(tokenizer)
    assert prefix == ""
    for word, a, b in zip(words, aligned.first_token, aligned.last_token, strict=True):
        expected = alone.encode([word], is_pretokenized=True, add_special_tokens=False).ids
        assert aligned.ids[a : b + 1].tolist() == expected, word
    assert aligned.report.split == aligned.report.replaced == ()
    assert aligned.report.warnings() == []


@pytest.mark.parametrize("family", WORD_FAMILIES)
def test_segments_are_what_the_model_reads(family):
    """Special tokens included: XLNet's come last."""
    tokenizer, corpus = word_tokenizer_of(family, prefix_space=family == "roberta"), corpus_of(*HARD)
    aligned = align(corpus, tokenizer)
    expected = tokenizer([list(s.words) for s in corpus.sentences], is_split_into_words=True)
    assert [ids.tolist() for ids in segments_of(aligned)] == expected["input_ids"]
    if "token_type_ids" in expected:
        assert aligned.type_ids.tolist() == [t for row in expected["token_type_ids"] for t in row]
    assert aligned.report.tokens == len(aligned.ids)


def test_byte_level_bpe_reads_words_as_words():
    """transformers 5 would tokenize `cat` in a list like the end of a longer word."""
    tokenizer = word_tokenizer_of("roberta")
    aligned = align(corpus_of("the cat"), tokenizer)
    tokens = tokenizer.convert_ids_to_tokens(aligned.ids.tolist())
    assert [tokens[i][0] for i in aligned.first_token] == ["Ġ", "Ġ"]
    assert not tokenizer.backend_tokenizer.pre_tokenizer.add_prefix_space  # the user's own stays as it is


def test_the_users_truncation_and_padding_are_ignored():
    tokenizer = word_tokenizer_of("bert")
    tokenizer(["the cat sat on the mat", "the"], padding=True, truncation=True, max_length=4)
    aligned = align(corpus_of("the cat sat on the mat", "the"), tokenizer)
    assert len(aligned.first_token) == 7
    assert tokenizer.pad_token_id not in aligned.ids


@pytest.mark.parametrize("family", WORD_FAMILIES)
def test_a_long_sentence_is_split_at_word_boundaries(family):
    tokenizer = word_tokenizer_of(family)
    corpus = corpus_of("the cat", " ".join(["unreadable cat"] * 20), "on the mat")
    unsplit, aligned = align(corpus, tokenizer), align(corpus, tokenizer, max_length=20)
    lengths = np.diff(aligned.offsets)
    assert lengths.max() <= 20 < np.diff(unsplit.offsets).max()
    [split] = aligned.report.split
    assert (split.number, split.words) == (4, 40)
    assert split.segments == len(lengths) - 2
    assert lengths[1:-1].min() > 10  # of similar length: no segment with a single leftover word
    assert (unsplit.ids[unsplit.first_token] == aligned.ids[aligned.first_token]).all()
    assert (unsplit.ids[unsplit.last_token] == aligned.ids[aligned.last_token]).all()
    assert np.diff(aligned.word_offsets).sum() == corpus.n_words
    assert "made-up: split 1 sentence longer than the model's maximum length" in aligned.report.warnings()[0]
    assert "line 4" in aligned.report.warnings()[0]


def test_segments_are_as_few_as_possible():
    counts = np.array([3, 1, 4, 1, 5, 2, 2])
    assert _split_greedily(counts, 8) == [(0, 3), (3, 6), (6, 7)]
    assert _split_greedily(counts, 100) == [(0, 7)]


def test_a_word_that_is_too_long_for_the_model():
    word = "readable" * 30
    with pytest.raises(
        WhichlayersError, match=r"made-up:3: the word 'readablereadable.*\.\.\. has \d+ subwords"
    ):
        align(corpus_of("the", f"a {word} mat"), word_tokenizer_of("roberta"), max_length=20)


def test_words_without_tokens_are_replaced():
    tokenizer = word_tokenizer_of("bert")
    corpus = corpus_of("the cat", ["the", "\u200b", "mat", "\x00"])
    aligned = align(corpus, tokenizer)
    assert aligned.report.replaced == ((4, "\u200b"), (4, "\x00"))
    unknown = tokenizer.unk_token_id
    assert [aligned.ids[a] for a in aligned.first_token[[3, 5]]] == [unknown, unknown]
    assert aligned.report.unknown == 2
    assert r"line 4 ('\u200b')" in aligned.report.warnings()[0]
    assert aligned.ids[aligned.first_token[4]] == align(corpus_of("mat"), tokenizer).ids[1]


def test_a_word_without_tokens_and_no_unknown_token():
    tokenizer = word_tokenizer_of("bert")
    from whichlayers.probes import alignment

    with pytest.raises(
        WhichlayersError, match=r"made-up:4: the tokenizer produces no token for the word '\\u200b'"
    ):
        list(
            alignment._tokenize_sentences(
                "made-up", corpus_of("the cat", ["\u200b"]).sentences, *word_tokenizer(tokenizer), None, None
            )
        )


def test_unknown_words_are_counted():
    aligned = align(corpus_of("the 漢 😀 cat"), word_tokenizer_of("electra"))
    assert aligned.report.unknown == 2
    assert align(corpus_of("the 漢 😀 cat"), word_tokenizer_of("roberta")).report.unknown == 0


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        (TaggedSentence((), (), 7), "made-up:7: the sentence has no words"),
        (TaggedSentence(("a", "b"), ("X",), 9), "made-up:9: 2 words but 1 tag;"),
    ],
)
def test_sentences_that_cannot_be_read(sentence, message):
    corpus = TaggedCorpus("made-up", [TaggedSentence(("the",), ("X",), 1), sentence])
    with pytest.raises(WhichlayersError, match=message):
        align(corpus, word_tokenizer_of("bert"))


def test_an_empty_corpus():
    with pytest.raises(WhichlayersError, match="no sentences"):
        align(TaggedCorpus("made-up", []), word_tokenizer_of("bert"))


def test_no_room_for_a_word():
    with pytest.raises(WhichlayersError, match="adds 2 special tokens; use 3 or more"):
        align(corpus_of("the cat"), word_tokenizer_of("bert"), max_length=2)
