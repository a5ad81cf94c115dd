"""Words with their forms, and which of them a split may use: no lemma is in both splits.

A form is written `word/TAG` (Penn), the notation that phrases.py reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cache
from typing import Literal, get_args

from whichlayers.data.grammar import lexicon

Side = Literal["train", "dev"]
SIDES: tuple[Side, ...] = get_args(Side)
VOWELS = "aeiou"


@dataclass(frozen=True)
class Noun:
    lemma: str
    many: str

    @property
    def sg(self) -> str:
        return f"{self.lemma}/NN"

    @property
    def pl(self) -> str:
        return f"{self.many}/NNS"

    def form(self, plural: bool) -> str:
        return self.pl if plural else self.sg


@dataclass(frozen=True)
class Verb:
    lemma: str
    was: str
    been: str
    going: str
    goes: str

    @property
    def base(self) -> str:
        return f"{self.lemma}/VB"

    @property
    def past(self) -> str:
        return f"{self.was}/VBD"

    @property
    def part(self) -> str:
        return f"{self.been}/VBN"

    @property
    def ing(self) -> str:
        return f"{self.going}/VBG"

    def present(self, plural: bool) -> str:
        return f"{self.lemma}/VBP" if plural else f"{self.goes}/VBZ"


@dataclass(frozen=True)
class Quality:
    """An adjective and, where it has one, its adverb."""

    lemma: str
    manner: str

    @property
    def adj(self) -> str:
        return f"{self.lemma}/JJ"

    @property
    def adv(self) -> str:
        return f"{self.manner}/RB"


@dataclass(frozen=True)
class Lexicon:
    """All that one split may say."""

    people: tuple[Noun, ...]
    gendered: tuple[tuple[Noun, Noun], ...]  # he, she
    men: tuple[str, ...]
    women: tuple[str, ...]
    animals: tuple[Noun, ...]
    objects: tuple[Noun, ...]
    mass: tuple[Noun, ...]
    places: tuple[Noun, ...]
    cities: tuple[str, ...]
    days: tuple[str, ...]
    months: tuple[str, ...]
    hours: tuple[Noun, ...]
    years: tuple[str, ...]
    motives: tuple[Noun, ...]
    tools: tuple[Noun, ...]
    to_people: tuple[Verb, ...]
    to_things: tuple[Verb, ...]
    alone: tuple[Verb, ...]
    synonyms: tuple[tuple[Verb, Verb], ...]
    neutral: tuple[Quality, ...]
    with_adverb: tuple[Quality, ...]
    of_things: tuple[Quality, ...]
    sizes: tuple[Quality, ...]
    colors: tuple[Quality, ...]
    materials: tuple[Quality, ...]
    origins: tuple[Quality, ...]
    reviewed: tuple[tuple[Noun, tuple[Noun, ...]], ...]
    kinds: tuple[tuple[Noun, tuple[str, ...]], ...]  # fruit: a pear, a lemon, ...
    about: tuple[Verb, ...]
    good: tuple[Quality, ...]
    bad: tuple[Quality, ...]
    good_nouns: tuple[Noun, ...]
    bad_nouns: tuple[Noun, ...]
    liking: tuple[Verb, ...]
    disliking: tuple[Verb, ...]


def noun(entry: str) -> Noun:
    lemma, _, many = entry.partition(":")
    return Noun(lemma, many or _with_s(lemma))


def verb(entry: str) -> Verb:
    lemma, *odd = entry.split(":")
    stem = lemma.rstrip("*")
    doubled = stem + stem[-1] if lemma.endswith("*") else stem
    if stem.endswith("e"):
        regular, going = stem + "d", stem[:-1] + "ing"
    elif stem.endswith("y") and stem[-2] not in VOWELS:
        regular, going = stem[:-1] + "ied", stem + "ing"
    else:
        regular, going = doubled + "ed", doubled + "ing"
    if stem.endswith("ie"):
        going = stem[:-2] + "ying"
    was = odd[0] if odd else regular
    return Verb(stem, was, odd[-1] if odd else regular, going, _with_s(stem))


def quality(entry: str) -> Quality:
    lemma, _, manner = entry.partition(":")
    return Quality(lemma, manner)


def article(form: str) -> str:
    """a or an, by the letter, but for the few words of the lexicon where letter and sound disagree."""
    word = form.lower()
    vowel = word[0] in VOWELS and not word.startswith(("uni", "use", "eu"))
    return "an/DT" if vowel or word.startswith("honest") else "a/DT"


@cache
def lexicon_of(side: Side) -> Lexicon:
    sides = _sides()

    def mine(name: str) -> list:
        return [entry for entry in _raw(name) if sides[_lemma(next(iter(_flat([entry]))))] == side]

    read = {"Noun": noun, "Verb": verb, "Quality": quality, "str": lambda entry: f"{entry}/NNP"}
    made: dict[str, tuple] = {}
    for f in fields(Lexicon):
        kind = str(f.type)
        if f.name == "reviewed":
            made[f.name] = tuple((noun(item), tuple(noun(a) for a in parts)) for item, parts in mine(f.name))
        elif f.name == "kinds":
            made[f.name] = tuple(_kind(entry, things) for entry, things in mine(f.name))
        elif f.name in ("gendered", "synonyms"):
            reader = noun if f.name == "gendered" else verb
            made[f.name] = tuple((reader(one), reader(other)) for one, other in mine(f.name))
        else:
            made[f.name] = tuple(
                read[kind.removeprefix("tuple[").split(",")[0]](entry) for entry in mine(f.name)
            )
    made["years"] = tuple(f"{entry}/CD" for entry in mine("years"))
    return Lexicon(**made)


# Groups of words that must stay together are dealt out first; a word met again keeps its side.
_CLASSES = (
    *(
        "kinds",
        "synonyms",
        "gendered",
        "reviewed",
        "good",
        "bad",
        "good_nouns",
        "bad_nouns",
        "liking",
        "disliking",
    ),
    *(
        "alone",
        "to_people",
        "to_things",
        "with_adverb",
        "about",
        "people",
        "men",
        "women",
        "animals",
        "places",
    ),
    *("objects", "mass", "cities", "days", "months", "hours", "years", "motives", "tools", "neutral"),
    *("of_things", "sizes", "colors", "materials", "origins"),
)


@cache
def _sides() -> dict[str, Side]:
    """Every third entry of each class is for dev, the others for training."""
    sides: dict[str, Side] = {}
    for name in _CLASSES:
        dealt = 0
        for entry in _raw(name):
            lemmas = [_lemma(word) for word in _flat([entry])]
            known = [sides[lemma] for lemma in lemmas if lemma in sides]
            side: Side = known[0] if known else ("dev" if dealt % 3 == 1 else "train")
            dealt += not known
            sides.update({lemma: sides.get(lemma, side) for lemma in lemmas})
    return sides


def _raw(name: str) -> list:
    if name in ("reviewed", "kinds"):
        return [(item, tuple(parts.split())) for item, parts in getattr(lexicon, name.upper()).items()]
    entries = getattr(lexicon, name.upper())
    return entries.split() if isinstance(entries, str) else entries


def _kind(entry: str, things: tuple[str, ...]) -> tuple[Noun, tuple[str, ...]]:
    """The word for the kind, and noun phrases for things of that kind."""
    word, _, use = entry.partition(":")
    if use == "name":
        return noun(word), tuple(f"{thing}/NNP" for thing in things)
    if use == "mass":
        return noun(word), tuple(noun(thing).sg for thing in things)
    return noun(word), tuple(f"{article(thing)} {noun(thing).sg}" for thing in things)


def _flat(entries: Iterable) -> Iterable[str]:
    for entry in entries:
        if isinstance(entry, str):
            yield entry
        else:
            yield from _flat(entry)


def _lemma(entry: str) -> str:
    return entry.split(":")[0].rstrip("*")


def _with_s(word: str) -> str:
    if word.endswith(("s", "x", "z", "ch", "sh")):
        return word + "es"
    if word.endswith("y") and word[-2] not in VOWELS:
        return word[:-1] + "ies"
    return word + "s"
