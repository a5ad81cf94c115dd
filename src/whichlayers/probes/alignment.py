"""Aligns tokens with words: tokenizes a tagged corpus into flat arrays with the token span of every word.

    aligned = align(corpus, tokenizer, max_length=512)
    aligned.ids[aligned.first_token[w] : aligned.last_token[w] + 1]    # the subwords of word w

Every word is tokenized separately, as if preceded by a space, so the word of each token is known for WordPiece,
byte-level BPE and SentencePiece alike. The tokens are those of the words in running text. Every segment is checked:
each word has tokens, in the order of the words.

- A sentence longer than the model's maximum length is split at word boundaries into as few segments as possible, of
  about equal length. A word then has only its segment as context. The report lists these sentences.
- A word that the tokenizer maps to no token (a zero-width space, with BERT) is replaced by the unknown token. The
  report lists these words.
- A single word longer than the maximum length is an error, and so is a sentence without words.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from whichlayers.data.conll import TaggedCorpus, TaggedSentence
from whichlayers.errors import WhichlayersError
from whichlayers.text import counted

SENTENCES_PER_CALL = 1000  # sentences that are tokenized at once
MAX_LISTED = 3  # items that a warning lists


@dataclass(frozen=True)
class SplitSentence:
    """A sentence that is longer than the model's maximum length."""

    number: int  # line number of its first word, as in TaggedSentence
    words: int
    segments: int


@dataclass(frozen=True)
class AlignmentReport:
    """Counts of an alignment, and what it had to change."""

    corpus: str
    sentences: int
    words: int
    tokens: int  # including special tokens
    split: tuple[SplitSentence, ...]  # sentences longer than the model's maximum length
    replaced: tuple[tuple[int, str], ...]  # (sentence number, word) replaced by the unknown token
    unknown: int  # number of words whose tokens are all unknown

    def warnings(self) -> list[str]:
        """Messages about split sentences and replaced words; empty if there are none."""
        found = []
        if self.split:
            listed = ", ".join(
                f"{s.number} ({counted(s.segments, 'segment')})" for s in self.split[:MAX_LISTED]
            )
            found.append(
                f"{self.corpus}: split {counted(len(self.split), 'sentence')} longer than the model's maximum length "
                f"at word boundaries: line {listed}{_and_more(self.split)}"
            )
        if self.replaced:
            listed = ", ".join(f"{number} ({word!a})" for number, word in self.replaced[:MAX_LISTED])
            found.append(
                f"{self.corpus}: replaced {counted(len(self.replaced), 'word')} without any token by the tokenizer's "
                f"unknown token: in the sentence at line {listed}{_and_more(self.replaced)}"
            )
        return found


@dataclass(frozen=True, eq=False)
class Alignment:
    """All segments concatenated, in corpus order; a segment is one input sequence of the model."""

    ids: np.ndarray  # (tokens,) int32, including special tokens
    type_ids: np.ndarray  # (tokens,) uint8
    offsets: np.ndarray  # (segments + 1,) int64: where each segment starts in `ids`
    word_offsets: np.ndarray  # (segments + 1,) int64: index of the first word of each segment
    first_token: np.ndarray  # (words,) int64: index in `ids` of each word's first subword
    last_token: np.ndarray  # (words,) int64: index in `ids` of each word's last subword
    report: AlignmentReport


def align(corpus: TaggedCorpus, tokenizer: Any, max_length: int | None = None) -> Alignment:
    """Tokenize a corpus word by word.

    Args:
        corpus: The tagged sentences.
        tokenizer: A fast tokenizer of transformers.
        max_length: Maximum length of a segment in tokens, including special tokens; None for no limit.
    """
    backend, prefix = word_tokenizer(tokenizer)
    max_subwords = _max_subwords(backend, max_length)
    unknown = tokenizer.unk_token_id
    ids, types, firsts, lasts = ([] for _ in range(4))
    sizes: list[tuple[int, int]] = []  # (tokens, words) of each segment
    split: list[SplitSentence] = []
    replaced: list[tuple[int, str]] = []
    n_tokens = n_unknown = 0
    for sentences in _batched(corpus.sentences):
        _check_sentences(corpus.name, sentences)
        for sentence, segments, missing in _tokenize_sentences(
            corpus.name, sentences, backend, prefix, tokenizer.unk_token, max_subwords
        ):
            if len(segments) > 1:
                split.append(SplitSentence(sentence.number, len(sentence.words), len(segments)))
            replaced += [(sentence.number, sentence.words[w]) for w in missing]
            for segment in segments:
                first, last = _word_spans(segment)
                flat = np.array(segment.ids, np.int32)
                ids.append(flat)
                types.append(np.array(segment.type_ids, np.uint8))
                firsts.append(first + n_tokens)
                lasts.append(last + n_tokens)
                sizes.append((len(flat), len(first)))
                n_unknown += _count_unknown_words(flat, first, last, unknown)
                n_tokens += len(flat)
    tokens, words = np.array(sizes, np.int64).reshape(-1, 2).T
    report = AlignmentReport(
        corpus=corpus.name,
        sentences=len(corpus.sentences),
        words=int(words.sum()),
        tokens=n_tokens,
        split=tuple(split),
        replaced=tuple(replaced),
        unknown=n_unknown,
    )
    return Alignment(
        ids=np.concatenate(ids),
        type_ids=np.concatenate(types),
        offsets=np.concatenate([[0], tokens.cumsum()]),
        word_offsets=np.concatenate([[0], words.cumsum()]),
        first_token=np.concatenate(firsts),
        last_token=np.concatenate(lasts),
        report=report,
    )


def word_tokenizer(tokenizer: Any) -> tuple[Tokenizer, str]:
    """A copy of the backend tokenizer that tokenizes each word as if preceded by a space, and a prefix of each word.

    Without this, byte-level BPE and SentencePiece tokenize every word of a list like the inside of a longer word;
    transformers 5 does not warn about it. The prefix is a space where the tokenizer's rules cannot add it, else "".
    """
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    prefix = _add_prefix_space(_parts(rules, "pre_tokenizer"), _parts(rules, "normalizer"))
    copy = Tokenizer.from_str(json.dumps(rules))
    copy.no_truncation()
    copy.no_padding()
    return copy, prefix


def _parts(rules: dict[str, Any], key: str) -> list[dict[str, Any]]:
    """The parts of a tokenizer's normalizer or pre-tokenizer, which may be a sequence."""
    whole = rules.get(key)
    return [] if whole is None else whole.get("pretokenizers", whole.get("normalizers", [whole]))


def _add_prefix_space(pre_tokenizers: list[dict[str, Any]], normalizers: list[dict[str, Any]]) -> str:
    """Change the rules of a tokenizer such that words get a leading space, in place; returns the prefix of words."""
    kinds = [part["type"] for part in pre_tokenizers]
    for part in pre_tokenizers:
        if part["type"] == "Metaspace" and part.get("prepend_scheme") == "first":
            part["prepend_scheme"] = "always"
    if "ByteLevel" in kinds:
        level = pre_tokenizers[kinds.index("ByteLevel")]
        if not level["add_prefix_space"] and kinds[0] != "ByteLevel":
            return " "  # earlier parts split words (at digits, by a pattern): each piece would get a space
        level["add_prefix_space"] = True
    elif "Metaspace" not in kinds and any(_replaces_spaces(part) for part in normalizers):
        # SentencePiece in the normalizer; Llama 2 also prepends a space there, Gemma does not
        return "" if any(part["type"] == "Prepend" for part in normalizers) else " "
    return ""


def _replaces_spaces(normalizer: dict[str, Any]) -> bool:
    """Whether a normalizer replaces spaces by another character."""
    return normalizer["type"] == "Replace" and normalizer["pattern"] == {"String": " "}


def _max_subwords(backend: Tokenizer, max_length: int | None) -> int | None:
    """Maximum number of subwords of a segment, without special tokens; None for no limit."""
    if max_length is None:
        return None
    special = backend.num_special_tokens_to_add(False)
    if max_length <= special:
        raise WhichlayersError(
            f"max_length = {max_length} leaves no room for a word: this tokenizer adds "
            f"{counted(special, 'special token')}; use {special + 1} or more"
        )
    return max_length - special


def _check_sentences(name: str, sentences: Sequence[TaggedSentence]) -> None:
    for sentence in sentences:
        if not sentence.words:
            raise WhichlayersError(
                f"{name}:{sentence.number}: the sentence has no words; remove it from the corpus"
            )
        if len(sentence.words) != len(sentence.tags):
            raise WhichlayersError(
                f"{name}:{sentence.number}: {counted(len(sentence.words), 'word')} but "
                f"{counted(len(sentence.tags), 'tag')}; every word needs exactly one tag"
            )


def _tokenize_sentences(
    name: str,
    sentences: Sequence[TaggedSentence],
    backend: Tokenizer,
    prefix: str,
    unknown_token: str | None,
    max_subwords: int | None,
) -> Iterator[tuple[TaggedSentence, list[Encoding], list[int]]]:
    """Yields (sentence, its segments, indices of the words replaced by the unknown token)."""
    whole = backend.encode_batch(
        [[prefix + word for word in s.words] for s in sentences], is_pretokenized=True
    )
    for sentence, encoding in zip(sentences, whole, strict=True):
        words = [prefix + word for word in sentence.words]
        missing = _words_without_tokens(encoding, len(words))
        if missing and unknown_token is not None:
            for w in missing:
                words[w] = prefix + unknown_token
            encoding = backend.encode(words, is_pretokenized=True)
        still_missing = _words_without_tokens(encoding, len(words))
        if still_missing:
            raise WhichlayersError(
                f"{name}:{sentence.number}: the tokenizer produces no token for the word "
                f"{sentence.words[still_missing[0]]!a} and has no unknown token to replace it; remove the word"
            )
        segments, bounds = [encoding], [(0, len(words))]
        counts = np.bincount([w for w in encoding.word_ids if w is not None], minlength=len(words))
        if max_subwords is not None and counts.sum() > max_subwords:
            bounds = _segment_bounds(name, sentence, counts, max_subwords)
            segments = backend.encode_batch([words[a:b] for a, b in bounds], is_pretokenized=True)
        for segment, (a, b) in zip(segments, bounds, strict=True):
            _check_word_order(name, sentence, segment, b - a)
        yield sentence, segments, missing


def _words_without_tokens(encoding: Encoding, n_words: int) -> list[int]:
    return sorted(set(range(n_words)).difference(encoding.word_ids))


def _segment_bounds(
    name: str, sentence: TaggedSentence, counts: np.ndarray, max_subwords: int
) -> list[tuple[int, int]]:
    """Word ranges [start, end) of the fewest possible segments, with the longest as short as possible.

    `counts`: (words,) number of subwords of each word.
    """
    longest = int(counts.argmax())
    if counts[longest] > max_subwords:
        word = sentence.words[longest]
        raise WhichlayersError(
            f"{name}:{sentence.number}: the word {word[:40]!r}{'...' if len(word) > 40 else ''} has "
            f"{counts[longest]} subwords, but the model accepts at most {max_subwords}; shorten or remove it"
        )
    fewest = len(_split_greedily(counts, max_subwords))
    smallest = max(int(counts[longest]), math.ceil(counts.sum() / fewest))
    return next(
        bounds
        for limit in range(smallest, max_subwords + 1)
        if len(bounds := _split_greedily(counts, limit)) == fewest
    )


def _split_greedily(counts: np.ndarray, limit: int) -> list[tuple[int, int]]:
    """Word ranges [start, end) of segments, each with as many words as fit into `limit` subwords."""
    borders, filled = [0], 0
    for w, count in enumerate(counts.tolist()):
        if filled + count > limit:
            borders.append(w)
            filled = 0
        filled += count
    borders.append(len(counts))
    return list(itertools.pairwise(borders))


def _check_word_order(name: str, sentence: TaggedSentence, segment: Encoding, n_words: int) -> None:
    """Check that the word indices of the tokens are 0, 0, 1, 2, 2, ...: none missing, none out of order."""
    indices = np.array([w for w in segment.word_ids if w is not None])
    if (
        len(indices) == 0
        or indices[0] != 0
        or indices[-1] != n_words - 1
        or not np.isin(np.diff(indices), (0, 1)).all()
    ):
        raise WhichlayersError(
            f"{name}:{sentence.number}: the tokens are not in the order of the words "
            f"({' '.join(sentence.words)[:60]!r}); this tokenizer cannot be used for word-level probing"
        )


def _word_spans(segment: Encoding) -> tuple[np.ndarray, np.ndarray]:
    """Indices (words,) in the segment of each word's first and last token."""
    word = np.array([-1 if w is None else w for w in segment.word_ids])
    real = np.flatnonzero(word >= 0)
    starts = np.flatnonzero(np.diff(word[real], prepend=-1))
    ends = np.append(starts[1:], len(real)) - 1
    return real[starts], real[ends]


def _count_unknown_words(ids: np.ndarray, first: np.ndarray, last: np.ndarray, unknown: int | None) -> int:
    """Number of words whose tokens are all the unknown token."""
    known = np.concatenate([[0], np.cumsum(ids != unknown)])
    return int((known[last + 1] == known[first]).sum())


def _batched(sentences: Sequence[TaggedSentence]) -> Iterator[Sequence[TaggedSentence]]:
    if not sentences:
        raise WhichlayersError("the corpus has no sentences")
    for start in range(0, len(sentences), SENTENCES_PER_CALL):
        yield sentences[start : start + SENTENCES_PER_CALL]


def _and_more(items: Sequence[object]) -> str:
    return f" and {len(items) - MAX_LISTED} more" if len(items) > MAX_LISTED else ""
