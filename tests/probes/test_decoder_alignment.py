"""Words and their tokens for the tokenizers of decoders, word by word against the offsets of running text."""

import pytest
import torch
from small_models import small_model
from tiny_tokenizers import KINDS, tiny_tokenizer
from word_models import corpus_of

from whichlayers.errors import WhichlayersError
from whichlayers.models.tokenizers import set_bos
from whichlayers.probes.alignment import align
from whichlayers.probes.extract import extract_words

SENTENCES = (
    "The old city was n't like the 1990s , she 'd said .",
    "1,999.50 % of 4567 people do n't know ( at all ) - they 're not",
    "Where there is a will there is a way",
)
PREPENDS = ("sentencepiece", "metaspace")  # the tokenizer itself adds a space before a text


@pytest.mark.parametrize("bos", [False, True], ids=["no BOS", "BOS"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_word_has_its_tokens_of_running_text(kind, bos):
    tokenizer = tiny_tokenizer(kind, bos=bos)
    corpus = corpus_of(*SENTENCES)
    aligned = align(corpus, tokenizer)
    word = 0
    for number, sentence in enumerate(corpus.sentences):
        text = ("" if kind in PREPENDS else " ") + " ".join(sentence.words)
        running = tokenizer(text, return_offsets_mapping=True)
        start, end = aligned.offsets[number : number + 2]
        assert aligned.ids[start:end].tolist() == running["input_ids"]
        position = 0
        for text_of_word in sentence.words:
            begin = text.index(text_of_word, position)
            position = begin + len(text_of_word)
            # the tokens of a word are those that end inside it, and a leading space
            expected = [
                i
                for i, (a, b) in enumerate(running["offset_mapping"])
                if a < b and (begin < b <= position or (b == begin and text[a:b] == " "))
            ]
            span = range(aligned.first_token[word] - start, aligned.last_token[word] - start + 1)
            assert list(span) == expected, (text_of_word, kind)
            word += 1
    assert word == len(aligned.first_token)


@pytest.mark.parametrize("kind", KINDS)
def test_bos_can_be_added_and_left_out(kind):
    without, with_bos = tiny_tokenizer(kind), tiny_tokenizer(kind, bos=True)
    texts = ["the old city", "a way"]
    plain, started = (t(texts)["input_ids"] for t in (without, with_bos))
    assert [[1, *ids] for ids in plain] == started
    for tokenizer in (without, with_bos):
        set_bos(tokenizer, True, "m")
        assert tokenizer(texts)["input_ids"] == started
        assert tokenizer.num_special_tokens_to_add() == 1
        assert align(corpus_of("the old city"), tokenizer).ids[0] == 1
        set_bos(tokenizer, False, "m")
        assert tokenizer(texts)["input_ids"] == plain
        assert align(corpus_of("the old city"), tokenizer).ids[0] != 1
    without.bos_token = None
    with pytest.raises(WhichlayersError, match="has no BOS token"):
        set_bos(without, True, "m")


@torch.no_grad()
def test_a_word_sees_only_what_is_left_of_it():
    """The hidden states of the first words do not depend on the words after them."""
    tokenizer, model = tiny_tokenizer("byte-level"), small_model("llama")
    model.resize_token_embeddings(len(tokenizer))
    first, second = corpus_of("the old city said"), corpus_of("the old city was not amused")
    one, other = (
        torch.from_numpy(extract_words(model, tokenizer, corpus, precision="float32").states)
        for corpus in (first, second)
    )
    torch.testing.assert_close(one[:3], other[:3], rtol=1e-4, atol=1e-5)
    assert (one[3] - other[3]).abs().max() > 0.01
