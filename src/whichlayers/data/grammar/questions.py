"""A question and a sentence that answers it or does not.

The sentence repeats the question's words as much when it answers as when it does not: what decides is whether
it tells of the kind of thing that was asked for. The small words do not tell either: "in" and "at" open
places and times, "with" people and tools, "a" goes before a pear as before a tiger.

Every construction is a function from a Speaker and whether to answer, to (question, sentence).
"""

from __future__ import annotations

from collections.abc import Callable

from whichlayers.data.grammar.phrases import Speaker, a
from whichlayers.data.grammar.words import Verb

QuestionAndSentence = tuple[str, str]

ASKING = {  # what is asked -> the question around subject, verb and object
    "place": "[ADVP where] did {who} [VP {verb}] {what} ?",
    "time": "[ADVP when] did {who} [VP {verb}] {what} ?",
    "motive": "[ADVP why] did {who} [VP {verb}] {what} ?",
    "company": "[NP who] did {who} [VP {verb}] {what} [PP with] ?",
    "tool": "[NP what] did {who} [VP {verb}] {what} [PP with] ?",
}


def _place(s: Speaker) -> str:
    return s.pick((
        f"[PP in] [NP {s.pick(s.words.cities)}]",
        f"[PP {s.pick(('in', 'near', 'behind', 'at'))}] [NP the {s.pick(s.words.places).sg}]",
        f"[PP {s.pick(('in', 'near'))}] [NP {a(s.pick(s.words.places).sg)}]",
    ))  # fmt: skip


def _time(s: Speaker) -> str:
    return s.pick((
        f"[PP in] [NP {s.pick(s.words.months)}]",
        f"[PP in] [NP {s.pick(s.words.years)}]",
        f"[PP {s.pick(('at', 'near', 'after'))}] [NP {s.pick(s.words.hours).sg}]",
        f"[PP {s.pick(('on', 'after', 'on'))}] [NP {s.maybe(0.3, 'a')} {s.pick(s.words.days)}]",
    ))  # fmt: skip


def _motive(s: Speaker) -> str:
    return f"[PP {s.pick(('out of', 'because of'))}] [NP {s.pick(s.words.motives).sg}]"


def _company(s: Speaker) -> str:
    person = s.pick(s.pick((s.words.people, s.pick(s.words.gendered)))).sg
    return s.pick(
        (f"[PP with] [NP {a(person)}]", f"[PP with] [NP the {person}]", f"[PP with] [NP {s.name()}]")
    )


def _tool(s: Speaker) -> str:
    tool = s.pick(s.words.tools).sg
    return s.pick((f"[PP with] [NP {a(tool)}]", f"[PP with] [NP the {tool}]"))


TELLING: dict[str, Callable[[Speaker], str]] = {
    "place": _place,
    "time": _time,
    "motive": _motive,
    "company": _company,
    "tool": _tool,
}


def _person(s: Speaker) -> str:
    return s.pick((f"[NP {s.name()}]", f"[NP the {s.pick(s.words.people).sg}]"))


def _thing(s: Speaker) -> str:
    return f"[NP the {s.maybe(0.3, s.pick(s.words.of_things).adj)} {s.pick(s.words.objects).sg}]"


def _deed(s: Speaker) -> Verb:
    return s.pick((s.pick(s.pick(s.words.synonyms)), s.pick(s.words.to_things)))


def circumstance(s: Speaker, answers: bool) -> QuestionAndSentence:
    """Where did Anna find the ring? Anna found the ring in the garden. / Anna found the ring in June."""
    asked, other = s.two(tuple(ASKING))
    third = s.pick(tuple(topic for topic in ASKING if topic not in (asked, other)))
    who, what, verb = _person(s), _thing(s), _deed(s)
    told = [asked if answers else other]
    if s.chance(0.3):
        told.insert(s.pick((0, 1)), third)
    question = ASKING[asked].format(who=who, what=what, verb=verb.base)
    return question, f"{who} [VP {verb.past}] {what} {' '.join(TELLING[topic](s) for topic in told)} ."


def deed(s: Speaker, answers: bool) -> QuestionAndSentence:
    """Where did Paul repair the car? Paul fixed the car in Rome. / Paul sold the car in Rome."""
    asked = s.pick(tuple(ASKING))
    who, what = _person(s), _thing(s)
    same, different = s.two(s.words.synonyms)
    verb, synonym = same if s.chance(0.5) else same[::-1]
    told = synonym if answers else s.pick(different)
    question = ASKING[asked].format(who=who, what=what, verb=verb.base)
    return question, f"{who} [VP {told.past}] {what} {TELLING[asked](s)} ."


def kind(s: Speaker, answers: bool) -> QuestionAndSentence:
    """Which fruit did Anna choose? Anna chose a pear and a plum. / Anna chose a tiger and a camel."""
    (asked, things), (_, others) = s.two(s.words.kinds)
    who, verb = _person(s), s.pick(s.words.about)
    one, other = s.two(things if answers else others)
    told = f"[NP {one}] and [NP {other}]" if s.chance(0.8) else f"[NP {one}]"
    which = s.pick(("which/WDT", "what/WDT"))
    question = f"[NP {which} {asked.sg}] did {who} [VP {verb.base}] ?"
    return question, f"{who} [VP {verb.past}] {told} ."


def trait(s: Speaker, answers: bool) -> QuestionAndSentence:
    """What color is the vase in the office? The vase in the office is green. / ... is wooden."""
    topics = {
        "[NP what/WDT color] [VP is]": s.words.colors,
        "[NP what/WDT material] [VP is]": s.words.materials,
        "[NP what/WDT country/NN] [VP is]": s.words.origins,
        "[NP what/WDT size/NN] [VP is]": s.words.sizes,
    }
    asked, other = s.two(tuple(topics))
    thing = f"[NP the {s.pick(s.words.objects).sg}] [PP in] [NP the {s.pick(s.words.places).sg}]"
    told = s.pick(topics[asked if answers else other]).adj
    tail = " [PP from]" if "country" in asked else ""
    return f"{asked} {thing}{tail} ?", f"{thing} [VP is] [ADJP {told}] ."


CONSTRUCTIONS: dict[Callable[[Speaker, bool], QuestionAndSentence], int] = {
    kind: 15,
    trait: 1,
    circumstance: 1,
    deed: 1,
}


def question_and_sentence(s: Speaker, answers: bool) -> QuestionAndSentence:
    constructions = [c for c, weight in CONSTRUCTIONS.items() for _ in range(weight)]
    return s.pick(constructions)(s, answers)
