"""Which tokens belong to which word: a tagged corpus as the flat arrays a model reads.

    aligned = align(corpus, tokenizer, max_length=512)
    aligned.ids[aligned.first[w] : aligned.last[w] + 1]    # the sub-words of word w

Every word is cut into sub-words by itself, as if a space stood before it, so that the word of each token is
known and never guessed: WordPiece, byte-level BPE and SentencePiece alike. That every word got its tokens, in
order, is asserted word for word.

- A sentence longer than the model allows is cut at word borders into as few pieces as it takes, of about the
  same length. A word then sees the words of its piece alone. The report lists these sentences.
- The tokenizer's unknown token stands for a word of which the tokenizer makes no token at all (a zero-width
  space, with BERT). The report lists these words.
- A single word longer than the model allows is an error, as is a sentence without words.
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

CHUNK = 1000  # sentences that are tokenised at once
SHOWN = 3  # of the things that a report or an error lists


@dataclass(frozen=True)
class SplitSentence:
    """A sentence that went through the model in pieces."""

    number: int  # as in TaggedSentence: the line of its first word
    words: int
    pieces: int


@dataclass(frozen=True)
class AlignmentReport:
    corpus: str
    sentences: int
    words: int
    tokens: int  # with the special ones
    split: tuple[SplitSentence, ...]  # longer than the model allows
    stood_in: tuple[tuple[int, str], ...]  # (sentence number, word) for which the unknown token stands
    unknown: int  # words of which the tokenizer knows no part

    def lines(self) -> list[str]:
        """What the user should be told; nothing, where all went as usual."""
        found = []
        if self.split:
            some = ", ".join(f"{s.number} ({s.pieces} pieces)" for s in self.split[:SHOWN])
            found.append(
                f"{self.corpus}: {len(self.split)} sentences are longer than the model allows and were split "
                f"at word borders: line {some}{_and_more(self.split)}"
            )
        if self.stood_in:
            some = ", ".join(f"{number} ({word!a})" for number, word in self.stood_in[:SHOWN])
            found.append(
                f"{self.corpus}: the tokenizer makes nothing of {len(self.stood_in)} words, its unknown token "
                f"stands for them: in the sentence at line {some}{_and_more(self.stood_in)}"
            )
        return found


@dataclass(frozen=True, eq=False)
class Alignment:
    """All pieces in a row, in the order of the corpus; a piece is what goes through the model at once."""

    ids: np.ndarray  # (tokens,) int32, special tokens included
    type_ids: np.ndarray  # (tokens,) uint8
    offsets: np.ndarray  # (pieces + 1,) int64: where each piece starts in `ids`
    words: np.ndarray  # (pieces + 1,) int64: the first word of each piece
    first: np.ndarray  # (words,) int64: place in `ids` of each word's first sub-word
    last: np.ndarray  # (words,) int64: and of its last
    report: AlignmentReport


def align(corpus: TaggedCorpus, tokenizer: Any, max_length: int | None = None) -> Alignment:
    """`tokenizer`: a fast tokenizer of transformers. `max_length`: in tokens, special ones included."""
    backend = word_tokenizer(tokenizer)
    room = _room(backend, max_length)
    unknown = tokenizer.unk_token_id
    ids, types, firsts, lasts = ([] for _ in range(4))
    sizes: list[tuple[int, int]] = []  # (tokens, words) of each piece
    split: list[SplitSentence] = []
    stood_in: list[tuple[int, str]] = []
    place = no_part_known = 0
    for sentences in _chunks(corpus.sentences):
        _check(corpus.name, sentences)
        for sentence, pieces, lost in _encoded(corpus.name, sentences, backend, tokenizer.unk_token, room):
            if len(pieces) > 1:
                split.append(SplitSentence(sentence.number, len(sentence.words), len(pieces)))
            stood_in += [(sentence.number, sentence.words[w]) for w in lost]
            for piece in pieces:
                first, last = _word_spans(piece)
                flat = np.array(piece.ids, np.int32)
                ids.append(flat)
                types.append(np.array(piece.type_ids, np.uint8))
                firsts.append(first + place)
                lasts.append(last + place)
                sizes.append((len(flat), len(first)))
                no_part_known += _all_unknown(flat, first, last, unknown)
                place += len(flat)
    tokens, words = np.array(sizes, np.int64).reshape(-1, 2).T
    report = AlignmentReport(
        corpus=corpus.name,
        sentences=len(corpus.sentences),
        words=int(words.sum()),
        tokens=place,
        split=tuple(split),
        stood_in=tuple(stood_in),
        unknown=no_part_known,
    )
    return Alignment(
        ids=np.concatenate(ids),
        type_ids=np.concatenate(types),
        offsets=np.concatenate([[0], tokens.cumsum()]),
        words=np.concatenate([[0], words.cumsum()]),
        first=np.concatenate(firsts),
        last=np.concatenate(lasts),
        report=report,
    )


def word_tokenizer(tokenizer: Any) -> Tokenizer:
    """A copy of the tokenizer's own rules that reads each word as if a space stood before it.

    Byte-level BPE would otherwise read every word of a list as the inside of a longer one, without a word of
    warning from transformers 5.
    """
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    _put_space_before(rules["pre_tokenizer"])
    copy = Tokenizer.from_str(json.dumps(rules))
    copy.no_truncation()
    copy.no_padding()
    return copy


def _put_space_before(pre_tokenizer: dict[str, Any] | None) -> None:
    for part in [] if pre_tokenizer is None else pre_tokenizer.get("pretokenizers", [pre_tokenizer]):
        if part["type"] == "ByteLevel":
            part["add_prefix_space"] = True
        elif part["type"] == "Metaspace" and part.get("prepend_scheme") == "first":
            part["prepend_scheme"] = "always"


def _room(backend: Tokenizer, max_length: int | None) -> int | None:
    """How many sub-words a piece may have."""
    if max_length is None:
        return None
    special = backend.num_special_tokens_to_add(False)
    if max_length <= special:
        raise WhichlayersError(
            f"max_length = {max_length} leaves no room for a word: this tokenizer adds {special} special "
            f"tokens; use {special + 1} or more"
        )
    return max_length - special


def _check(name: str, sentences: Sequence[TaggedSentence]) -> None:
    for sentence in sentences:
        if not sentence.words:
            raise WhichlayersError(
                f"{name}:{sentence.number}: the sentence has no words; leave it out of the corpus"
            )
        if len(sentence.words) != len(sentence.tags):
            raise WhichlayersError(
                f"{name}:{sentence.number}: {len(sentence.words)} words and {len(sentence.tags)} tags; "
                "every word needs one tag"
            )


def _encoded(
    name: str, sentences: Sequence[TaggedSentence], backend: Tokenizer, stand_in: str | None, room: int | None
) -> Iterator[tuple[TaggedSentence, list[Encoding], list[int]]]:
    """(sentence, its pieces, the words for which the unknown token stands)."""
    whole = backend.encode_batch([list(s.words) for s in sentences], is_pretokenized=True)
    for sentence, encoding in zip(sentences, whole, strict=True):
        words, lost = list(sentence.words), _lost(encoding, len(sentence.words))
        if lost and stand_in is not None:
            for w in lost:
                words[w] = stand_in
            encoding = backend.encode(words, is_pretokenized=True)
        still = _lost(encoding, len(words))
        if still:
            raise WhichlayersError(
                f"{name}:{sentence.number}: the tokenizer makes no token of the word {sentence.words[still[0]]!a} "
                "and has no unknown token to stand for it; remove the word"
            )
        pieces, runs = [encoding], [(0, len(words))]
        counts = np.bincount([w for w in encoding.word_ids if w is not None], minlength=len(words))
        if room is not None and counts.sum() > room:
            runs = _runs(name, sentence, counts, room)
            pieces = backend.encode_batch([words[a:b] for a, b in runs], is_pretokenized=True)
        for piece, (a, b) in zip(pieces, runs, strict=True):
            _assert_word_for_word(name, sentence, piece, b - a)
        yield sentence, pieces, lost


def _lost(encoding: Encoding, n_words: int) -> list[int]:
    return sorted(set(range(n_words)).difference(encoding.word_ids))


def _runs(name: str, sentence: TaggedSentence, counts: np.ndarray, room: int) -> list[tuple[int, int]]:
    """Words (from, to) of each piece: as few as it takes, their longest as short as that allows."""
    longest = int(counts.argmax())
    if counts[longest] > room:
        word = sentence.words[longest]
        raise WhichlayersError(
            f"{name}:{sentence.number}: the word {word[:40]!r}{'...' if len(word) > 40 else ''} alone is "
            f"{counts[longest]} sub-words, and the model takes {room}; shorten or remove it"
        )
    fewest = len(_cut(counts, room))
    least = max(int(counts[longest]), math.ceil(counts.sum() / fewest))
    return next(runs for limit in range(least, room + 1) if len(runs := _cut(counts, limit)) == fewest)


def _cut(counts: np.ndarray, limit: int) -> list[tuple[int, int]]:
    """As many words as fit, piece after piece."""
    borders, filled = [0], 0
    for w, count in enumerate(counts.tolist()):
        if filled + count > limit:
            borders.append(w)
            filled = 0
        filled += count
    borders.append(len(counts))
    return list(itertools.pairwise(borders))


def _assert_word_for_word(name: str, sentence: TaggedSentence, piece: Encoding, n_words: int) -> None:
    """The words of the tokens are 0, 0, 1, 2, 2, ...: none left out, none out of order."""
    places = np.array([w for w in piece.word_ids if w is not None])
    if (
        len(places) == 0
        or places[0] != 0
        or places[-1] != n_words - 1
        or not np.isin(np.diff(places), (0, 1)).all()
    ):
        raise WhichlayersError(
            f"{name}:{sentence.number}: the tokenizer's tokens do not follow the words one by one "
            f"({' '.join(sentence.words)[:60]!r}); it cannot be used for word-level probes"
        )


def _word_spans(piece: Encoding) -> tuple[np.ndarray, np.ndarray]:
    """Places in the piece of each word's first and last token."""
    word = np.array([-1 if w is None else w for w in piece.word_ids])
    real = np.flatnonzero(word >= 0)
    starts = np.flatnonzero(np.diff(word[real], prepend=-1))
    ends = np.append(starts[1:], len(real)) - 1
    return real[starts], real[ends]


def _all_unknown(ids: np.ndarray, first: np.ndarray, last: np.ndarray, unknown: int | None) -> int:
    known = np.concatenate([[0], np.cumsum(ids != unknown)])
    return int((known[last + 1] == known[first]).sum())


def _chunks(sentences: Sequence[TaggedSentence]) -> Iterator[Sequence[TaggedSentence]]:
    if not sentences:
        raise WhichlayersError("the corpus has no sentences")
    for start in range(0, len(sentences), CHUNK):
        yield sentences[start : start + CHUNK]


def _and_more(things: Sequence[object]) -> str:
    return f" and {len(things) - SHOWN} more" if len(things) > SHOWN else ""
