"""Templates become sentences whose every word has a part of speech and a chunk.

    [NP the old/JJ dog/NN] [VP was sleeping/VBG] [PP near] [NP the bridge/NN] .

A bracket is a chunk as in CoNLL-2000; what stands outside one is O. A content word carries its Penn tag after
a slash; function words have theirs from FUNCTION and may be given another one (`what/WDT`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TypeVar

from whichlayers.data.grammar.words import Lexicon, Side, article, lexicon_of

T = TypeVar("T")

FUNCTION: dict[str, str] = {}
for _tag, _words in {
    "DT": "the a an this these that those every no each both all another",
    "IN": "in on at near with of from about behind because although though after out",
    "TO": "to",
    "CC": "but and",
    "RB": "not really quite never ever truly simply too so far",
    "JJ": "many first",
    "PRP": "i we he she it they him her them us me himself herself themselves",
    "WP": "who what",
    "WRB": "where when why",
    "MD": "will can",
    "VBZ": "is has",
    "VBP": "are have",
    "VBD": "was were had did",
    ",": ",",
    ".": ". ?",
    "NN": "color material",
}.items():
    FUNCTION.update(dict.fromkeys(_words.split(), _tag))

AUXILIARIES = {"is", "has", "are", "have", "was", "were", "had", "did"}
UPOS = {
    "DT": "DET", "IN": "ADP", "TO": "PART", "CC": "CCONJ", "RB": "ADV", "JJ": "ADJ", "PRP": "PRON",
    "WP": "PRON", "WDT": "DET", "WRB": "ADV", "MD": "AUX", "VBZ": "VERB", "VBP": "VERB", "VBD": "VERB",
    "VB": "VERB", "VBN": "VERB", "VBG": "VERB", ",": "PUNCT", ".": "PUNCT", "CD": "NUM", "NN": "NOUN",
    "NNS": "NOUN", "NNP": "PROPN",
}  # fmt: skip
NO_SPACE_BEFORE = {",", ".", "?"}


@dataclass(frozen=True)
class Word:
    form: str
    xpos: str
    upos: str
    chunk: str


class Speaker:
    """Dice and words: all chance in the grammar goes through `random.Random.random`, whose sequence Python
    promises to keep, so the same seed writes the same sentences everywhere."""

    def __init__(self, side: Side, seed: str):
        self.words: Lexicon = lexicon_of(side)
        self._random = Random(f"{seed}/{side}").random

    def pick(self, options: tuple[T, ...] | list[T]) -> T:
        return options[int(self._random() * len(options))]

    def two(self, options: tuple[T, ...]) -> tuple[T, T]:
        one = self.pick(options)
        return one, self.pick(tuple(option for option in options if option != one))

    def chance(self, share: float) -> bool:
        return self._random() < share

    def maybe(self, share: float, text: str) -> str:
        return text if self.chance(share) else ""

    def name(self) -> str:
        return self.pick(self.pick((self.words.men, self.words.women)))


def read(template: str) -> tuple[Word, ...]:
    words: list[Word] = []
    chunk, opening = "O", False
    for piece in template.replace("]", " ] ").split():
        if piece == "]":
            chunk = "O"
        elif piece.startswith("["):
            chunk, opening = piece[1:], True
        else:
            label = "O" if chunk == "O" else f"{'B' if opening else 'I'}-{chunk}"
            opening = False
            words.append(_word(piece, label))
    first = words[0]
    words[0] = Word(first.form[0].upper() + first.form[1:], first.xpos, first.upos, first.chunk)
    return tuple(words)


def text(template: str) -> str:
    """The sentence as it is printed."""
    parts: list[str] = []
    for word in read(template):
        if parts and word.form not in NO_SPACE_BEFORE:
            parts.append(" ")
        parts.append(word.form)
    return "".join(parts)


def pieces(template: str) -> list[str]:
    """The words of a template without its chunks, each with its tag, the first one as inside a sentence."""
    found = [f"{word.form}/{word.xpos}" for word in read(template)]
    if not found[0].endswith("/NNP") and found[0] != "I/PRP":
        found[0] = found[0][0].lower() + found[0][1:]
    return found


def a(form: str) -> str:
    """The form with its indefinite article before it."""
    return f"{article(form)} {form}"


@cache
def _word(piece: str, chunk: str) -> Word:
    form, slash, xpos = piece.rpartition("/") if "/" in piece else (piece, "", "")
    if not slash:
        xpos = FUNCTION[form.lower()]  # a KeyError here is a content word without its tag
    upos = UPOS[xpos]
    if form.lower() in AUXILIARIES and xpos.startswith("VB"):
        upos = "AUX"
    elif xpos == "IN" and chunk.endswith("SBAR"):
        upos = "SCONJ"
    elif form == "not":
        upos = "PART"
    form = "I" if form == "i" else form
    return Word(form, xpos, upos, chunk)
