"""Sentences that a speaker of English would say, and the same sentences with one thing wrong.

Every construction is a function from a Speaker to a pair (acceptable, unacceptable). It is drawn so that over
many pairs both sides have the same words equally often: "the dog sleeps / *sleep" comes with "the dogs sleep
/ *sleeps".
"""

from __future__ import annotations

from collections.abc import Callable

from whichlayers.data.grammar.phrases import Speaker, pieces
from whichlayers.data.grammar.words import Noun, Quality

Pair = tuple[str, str]


def _person(s: Speaker) -> Noun:
    return s.pick(s.pick((s.words.people, s.words.people, s.words.people, s.pick(s.words.gendered))))


def _describing(s: Speaker) -> Quality:
    return s.pick(s.pick((s.words.neutral, s.words.with_adverb)))


def _subject(s: Speaker, plural: bool) -> str:
    return f"[NP the {s.maybe(0.3, _describing(s).adj)} {_person(s).form(plural)}]"


def _thing(s: Speaker, plural: bool | None = None) -> str:
    plural = s.chance(0.5) if plural is None else plural
    return f"[NP the {s.maybe(0.3, s.pick(s.words.of_things).adj)} {s.pick(s.words.objects).form(plural)}]"


def _where(s: Speaker) -> str:
    return f"[PP {s.pick(('in', 'near', 'behind'))}] [NP the {s.pick(s.words.places).sg}]"


def _filled(frame: str, right: str, wrong: str) -> Pair:
    return frame.replace("@", right), frame.replace("@", wrong)


def _finite(s: Speaker, plural: bool) -> Pair:
    """A finite verb phrase with the right and with the wrong number; what follows is the same."""
    kind = s.pick(("alone", "person", "thing", "progressive", "perfect", "copula"))
    if kind == "copula":
        forms, rest = s.pick((("is", "are"), ("was", "were"))), f"] [ADJP {_describing(s).adj}]"
    elif kind == "progressive":
        forms, rest = ("is", "are"), f"{s.pick(s.words.alone).ing}]"
    elif kind == "perfect":
        forms, rest = ("has", "have"), f"{s.pick(s.words.alone).part}]"
    else:
        verb = s.pick({"alone": s.words.alone, "person": s.words.to_people, "thing": s.words.to_things}[kind])
        person = f"[NP the {_person(s).form(s.chance(0.5))}]"
        forms = (verb.present(plural=False), verb.present(plural=True))
        rest = "] " + {"alone": "", "person": person, "thing": _thing(s)}[kind]
    return _filled(f"[VP @ {rest}", forms[plural], forms[not plural])


def agreement(s: Speaker) -> Pair:
    """The dogs sleep. / *The dogs sleeps."""
    plural = s.chance(0.5)
    subject, (right, wrong) = _subject(s, plural), _finite(s, plural)
    where = s.maybe(0.4, _where(s))
    return f"{subject} {right} {where} .", f"{subject} {wrong} {where} ."


def agreement_across(s: Speaker) -> Pair:
    """The teacher near the lakes smiles. / *The teacher near the lakes smile."""
    plural = s.chance(0.5)
    noun = s.pick(s.pick((s.words.objects, s.words.animals)))
    between = f"[PP {s.pick(('near', 'behind', 'with'))}] [NP the {noun.form(s.chance(0.5))}]"
    subject, (right, wrong) = _subject(s, plural), _finite(s, plural)
    return f"{subject} {between} {right} .", f"{subject} {between} {wrong} ."


def determiner(s: Speaker) -> Pair:
    """Mary lost these keys. / *Mary lost this keys."""
    plural = s.chance(0.5)
    pairs = (("this", "these"), ("that/DT", "those"), ("every", "all"), ("each", "many"), ("another", "both"))
    one_or_many = s.pick(pairs)
    noun = f"{s.maybe(0.3, s.pick(s.words.of_things).adj)} {s.pick(s.words.objects).form(plural)}"
    frame = f"[NP {s.name()}] [VP {s.pick(s.words.to_things).past}] [NP @ {noun}] {s.maybe(0.5, _where(s))} ."
    return _filled(frame, one_or_many[plural], one_or_many[not plural])


def quantity(s: Speaker) -> Pair:
    """Anna bought too much rice. / *Anna bought too many rice."""
    noun, right, wrong = s.pick((
        (s.pick(s.words.mass).sg, "much/JJ", "many"),
        (s.pick(s.words.objects).pl, "many", "much/JJ"),
    ))  # fmt: skip
    start = f"[NP {s.name()}] [VP {s.pick(s.words.to_things).past}]"
    return _filled(f"{start} [NP {s.pick(('too', 'so', 'far too'))} @ {noun}] .", right, wrong)


def reflexive(s: Speaker) -> Pair:
    """The queen blamed herself. / *The queen blamed himself."""
    she, plural = s.chance(0.5), s.chance(0.33)
    own = ("himself", "herself")[she]
    if plural:
        subject, right, wrong = f"[NP the {_person(s).pl}]", "themselves", own
        if s.chance(0.5):  # so that "themselves" is wrong as often as it is right
            subject, right, wrong = f"[NP the {s.pick(s.words.gendered)[she].sg}]", own, "themselves"
    else:
        named = s.pick(s.words.women if she else s.words.men)
        subject = s.pick((f"[NP {named}]", f"[NP the {s.pick(s.words.gendered)[she].sg}]"))
        right, wrong = own, ("herself", "himself")[she]
    verb, where = s.pick(s.words.to_people).past, s.maybe(0.3, _where(s))
    return f"{subject} [VP {verb}] [NP {right}] {where} .", f"{subject} [VP {verb}] [NP {wrong}] {where} ."


def auxiliary(s: Speaker) -> Pair:
    """The nurse has arrived. / *The nurse has arrive."""
    on_thing = s.chance(0.5)
    verb = s.pick(s.words.to_things if on_thing else s.words.alone)
    forms = {"base": verb.base, "part": verb.part, "ing": verb.ing}
    needs, wants = s.pick((
        ("will", "base"), ("did not", "base"), ("can", "base"), ("has", "part"), ("had", "part"),
        ("has not", "part"), ("is", "ing"), ("was", "ing"), ("was not", "ing"),
    ))  # fmt: skip
    others = ("base",) if wants == "ing" else ("base", "ing") if wants == "part" else ("part", "ing")
    wrong = s.pick(tuple(o for o in others if forms[o].split("/")[0] != forms[wants].split("/")[0]))
    subject, rest = _subject(s, False), _thing(s) if on_thing else s.maybe(0.4, _where(s))
    return (
        f"{subject} [VP {needs} {forms[wants]}] {rest} .",
        f"{subject} [VP {needs} {forms[wrong]}] {rest} .",
    )


def order(s: Speaker) -> Pair:
    """The nurse found the old ring. / *Nurse the found old the ring. (words that left their places)"""
    right = s.pick((agreement, agreement_across, auxiliary, argument, manner))(s)[0]
    words = pieces(right)
    if s.chance(0.3):
        verb = next(i for i, word in enumerate(words) if "/VB" in word or "/MD" in word)
        words.insert(
            s.pick((0, len(words) - 2)), words.pop(verb)
        )  # the verb first, or last before the full stop
    i = 0
    while i < len(words) - 2:
        if words[i].endswith(("/DT", "/IN")) and (words == pieces(right) or s.chance(0.6)):
            words[i], words[i + 1] = words[i + 1], words[i]
            i += 1
        i += 1
    return right, " ".join(words)


def argument(s: Speaker) -> Pair:
    """The boy found the ring. / *The boy vanished the ring.   The boy vanished. / *The boy found."""
    subject, where = _subject(s, s.chance(0.5)), s.maybe(0.5, _where(s))
    taking, alone = s.pick(s.words.to_things).past, s.pick(s.words.alone).past
    if s.chance(0.5):
        thing = _thing(s)
        return f"{subject} [VP {taking}] {thing} {where} .", f"{subject} [VP {alone}] {thing} {where} ."
    return f"{subject} [VP {alone}] {where} .", f"{subject} [VP {taking}] {where} ."


def case(s: Speaker) -> Pair:
    """She thanked the pilot. / *Her thanked the pilot.   The pilot thanked her. / *The pilot thanked she."""
    nominative, accusative = s.pick(
        (("he", "him"), ("she", "her/PRP"), ("they", "them"), ("we", "us"), ("i", "me"))
    )
    verb, other = s.pick(s.words.to_people).past, f"[NP the {_person(s).form(s.chance(0.5))}]"
    if s.chance(0.5):
        return f"[NP {nominative}] [VP {verb}] {other} .", f"[NP {accusative}] [VP {verb}] {other} ."
    return f"{other} [VP {verb}] [NP {accusative}] .", f"{other} [VP {verb}] [NP {nominative}] ."


def manner(s: Speaker) -> Pair:
    """The calm judge smiled. / *The calmly judge smiled.   The judge calmly sang. / *The judge calm sang."""
    how, who = s.pick(s.words.with_adverb), _person(s).form(s.chance(0.5))
    rest = s.pick(
        (f"{s.pick(s.words.to_things).past}] {_thing(s)} .", f"{s.pick(s.words.alone).past}] {_where(s)} .")
    )
    if s.chance(0.5):
        return _filled(f"[NP the @ {who}] [VP {rest}", how.adj, how.adv)
    return _filled(f"[NP the {who}] [ADVP @] [VP {rest}", how.adv, how.adj)


def licensing(s: Speaker) -> Pair:
    """No nurse near the lake has ever smiled. / *The nurse near no lake has ever smiled."""
    who, place, verb = _person(s).sg, s.pick(s.words.places).sg, s.pick(s.words.alone).part
    near, rest = s.pick(("near", "in", "behind")), f"[VP has ever {verb}] ."
    return (
        f"[NP no {who}] [PP {near}] [NP the {place}] {rest}",
        f"[NP the {who}] [PP {near}] [NP no {place}] {rest}",
    )


# What everyone hears comes often, the subtle comes seldom.
CONSTRUCTIONS: dict[Callable[[Speaker], Pair], int] = {
    order: 12,
    case: 3,
    manner: 3,
    licensing: 2,
    auxiliary: 2,
    agreement: 1,
    agreement_across: 1,
    determiner: 1,
    quantity: 1,
    reflexive: 1,
    argument: 1,
}


def pair(s: Speaker) -> Pair:
    constructions = [c for c, weight in CONSTRUCTIONS.items() for _ in range(weight)]
    return s.pick(constructions)(s)
