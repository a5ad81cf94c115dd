"""Prompts of sentence pairs against the tokenizer called on the filled template."""

import dataclasses

import numpy as np
import pytest
from tiny_tokenizers import KINDS, tiny_tokenizer

from whichlayers.data.prompts import _truncate, encode_prompts, fill_template
from whichlayers.data.tasks import Split, Task
from whichlayers.data.tokenize import tokenize
from whichlayers.errors import WhichlayersError

TEMPLATE = "Question: {first}\nSentence: {second} ->"
PAIRS = [("where is the city", "the old man said"), ("was it like this?", "not at all, the people said " * 3)]


def task(pairs: bool = True) -> Task:
    texts, second = zip(*PAIRS, strict=True)
    split = Split(list(texts), list(second) if pairs else None, np.array([0, 1]))
    return Task("t", "classification", ("a", "b"), "accuracy", ("accuracy",), split, {"": split})


def test_a_template_is_filled_in_any_order():
    for template in (TEMPLATE, "{second} / {first}", "{first}{second}"):
        prompt, (a, b), (c, d) = fill_template(template, "one {second}", "two")
        assert (prompt[a:b], prompt[c:d]) == ("one {second}", "two")
        assert len(prompt) == len(template) - len("{first}{second}") + len("one {second}two")


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_is_tokenized_as_a_whole(kind):
    tokenizer = tiny_tokenizer(kind, bos=True)
    expected = [tokenizer(f"Question: {a}\nSentence: {b} ->")["input_ids"] for a, b in PAIRS]
    assert encode_prompts(TEMPLATE, PAIRS, tokenizer, 500) == (expected, 0)
    data = tokenize(task(), tokenizer, 500, pair_template=TEMPLATE)
    assert data.train.ids.tolist() == [i for row in expected for i in row]
    assert data.train.type_ids is None
    assert data.pad_id == 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_longer_text_is_truncated_and_the_template_stays(kind):
    tokenizer = tiny_tokenizer(kind, bos=True)
    whole = tokenizer(fill_template(TEMPLATE, *PAIRS[1])[0])["input_ids"]
    length = len(whole) - 9
    [short], truncated = encode_prompts(TEMPLATE, PAIRS[1:], tokenizer, length)
    assert (len(short), truncated) == (length, 1)
    end = 2  # the tokens of " ->" at least
    assert short[-end:] == whole[-end:]
    second = fill_template(TEMPLATE, *PAIRS[1])[0].index("not at all")
    kept = tokenizer.decode(short)
    assert kept.replace(" ", "").startswith(tokenizer.decode(whole)[:second].replace(" ", "")[:20])
    assert tokenize(task(), tokenizer, length, pair_template=TEMPLATE).truncated[0] == 2
    with pytest.raises(WhichlayersError, match=r"template .* alone has more tokens"):
        encode_prompts(TEMPLATE, PAIRS, tokenizer, 5)


def test_the_template_is_part_of_the_cache_key(tmp_path):
    tokenizer = tiny_tokenizer("byte-level")
    for template in ("", TEMPLATE, "{first} {second}"):
        tokenize(task(), tokenizer, 90, tmp_path, "same", template)
    assert len(list(tmp_path.iterdir())) == 3
    tokenize(task(pairs=False), tokenizer, 90, tmp_path, "same", TEMPLATE)  # no pairs: not used
    single = dataclasses.replace(task(pairs=False))
    assert tokenize(single, tokenizer, 90, tmp_path, "same").train.ids.tolist() == [
        i for text, _ in PAIRS for i in tokenizer(text)["input_ids"]
    ]


def test_tokens_are_removed_from_the_ends_of_the_texts_only():
    """By hand: a special token, "Q:", a text of two tokens, "A", a text of one token."""
    offsets = [(0, 0), (0, 2), (3, 4), (5, 6), (7, 8), (9, 10)]
    texts = ((3, 6), (9, 10))
    ids = [10, 11, 12, 13, 14, 15]
    assert _truncate(ids, offsets, texts, 5, "Q: {} A {}") == [10, 11, 12, 14, 15]
    assert _truncate(ids, offsets, texts, 3, "Q: {} A {}") == [10, 11, 14]
    with pytest.raises(WhichlayersError, match="max_length = 2 is too small"):
        _truncate(ids, offsets, texts, 2, "Q: {} A {}")
