"""Pairs of texts as one prompt, for decoders, whose tokenizers have no separators of texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from whichlayers.errors import WhichlayersError

FIRST, SECOND = "{first}", "{second}"

Span = tuple[int, int]  # characters [start, end) of a prompt


def fill_template(template: str, first: str, second: str) -> tuple[str, Span, Span]:
    """The prompt of a pair of texts, and where the first and the second text are in it."""
    start, (one, other) = "", ((FIRST, first), (SECOND, second))
    if template.index(SECOND) < template.index(FIRST):
        one, other = other, one
    start, _, rest = template.partition(one[0])
    middle, _, end = rest.partition(other[0])
    spans = {one[0]: (len(start), len(start) + len(one[1]))}
    after = len(start) + len(one[1]) + len(middle)
    spans[other[0]] = (after, after + len(other[1]))
    return f"{start}{one[1]}{middle}{other[1]}{end}", spans[FIRST], spans[SECOND]


def encode_prompts(
    template: str, pairs: Iterable[tuple[str, str]], tokenizer: Any, max_length: int
) -> tuple[list[list[int]], int]:
    """Token ids of the prompts of pairs of texts, with special tokens, and how many prompts were truncated.

    A prompt is tokenized as a whole. If it has more than `max_length` tokens, tokens are removed from the end of the
    longer text, one at a time; the template stays as it is.
    """
    filled = [fill_template(template, first, second) for first, second in pairs]
    batch = tokenizer(
        [prompt for prompt, _, _ in filled],
        truncation=False,
        padding=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=True,
        verbose=False,  # no warning that rows are longer than the model allows
    )
    result, truncated = [], 0
    for ids, offsets, (_, first, second) in zip(
        batch["input_ids"], batch["offset_mapping"], filled, strict=True
    ):
        if len(ids) > max_length:
            ids = _truncate(ids, offsets, (first, second), max_length, template)
            truncated += 1
        result.append(ids)
    return result, truncated


def _truncate(
    ids: list[int], offsets: list[Span], texts: tuple[Span, Span], max_length: int, template: str
) -> list[int]:
    """The token ids without as many tokens of the two texts as necessary; as Hugging Face, longest first."""
    first, second = (
        [i for i, (a, b) in enumerate(offsets) if a < b and start < b and b <= end] for start, end in texts
    )
    removed = set()
    for _ in range(len(ids) - max_length):
        longer = first if len(first) > len(second) else second
        if not longer:
            raise WhichlayersError(
                f"max_length = {max_length} is too small: the template {template!r} alone has more tokens; use a "
                "shorter template or a larger max_length"
            )
        removed.add(longer.pop())
    return [token for i, token in enumerate(ids) if i not in removed]
