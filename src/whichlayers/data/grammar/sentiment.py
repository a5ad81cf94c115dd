"""Short reviews, kind or unkind. Words of praise and blame stand in both: a negation turns them round, and
where two judgements meet the main clause has the last word.

Every construction is a function from a Speaker and the label to a sentence; its function words are the same
whichever label is asked for.
"""

from __future__ import annotations

from collections.abc import Callable

from whichlayers.data.grammar.phrases import Speaker, a


def _adjective(s: Speaker, kind: bool) -> str:
    return s.pick(s.words.good if kind else s.words.bad).adj


def _verdict(s: Speaker, kind: bool) -> str:
    return s.pick(s.words.good_nouns if kind else s.words.bad_nouns).sg


def _feeling(s: Speaker, kind: bool):
    return s.pick(s.words.liking if kind else s.words.disliking)


def _subject(s: Speaker) -> str:
    """this film, the plot, the plot of this film"""
    item, parts = s.pick(s.words.reviewed)
    whole, part = f"[NP {s.pick(('this', 'the'))} {item.sg}]", f"[NP the {s.pick(parts).sg}]"
    return s.pick((whole, part, f"{part} [PP of] {whole}"))


def _two_subjects(s: Speaker) -> tuple[str, str]:
    item, parts = s.pick(s.words.reviewed)
    one, other = s.two((item, *parts))
    return f"[NP the {one.sg}]", f"[NP the {other.sg}]"


def _who(s: Speaker) -> str:
    return s.pick(("[NP i]", "[NP we]", f"[NP {s.name()}]", f"[NP the {s.pick(s.words.people).sg}]"))


def plain(s: Speaker, kind: bool) -> str:
    """The plot of this film was really wonderful."""
    very = s.maybe(0.6, s.pick(("really", "quite", "truly", "simply", "so")))
    return f"{_subject(s)} [VP was] [ADJP {very} {_adjective(s, kind)}] ."


def attributive(s: Speaker, kind: bool) -> str:
    """Mary thought it was a superb novel."""
    item, _ = s.pick(s.words.reviewed)
    phrase = f"{a(_adjective(s, kind))} {item.sg}"
    return s.pick((
        f"[NP this] [VP is] [NP {phrase}] .",
        f"[NP it] [VP was] [NP {phrase}] [PP from] [NP start/NN] [PP to] [NP finish/NN] .",
        f"{_who(s)} [VP thought/VBD] [NP it] [VP was] [NP {phrase}] .",
        f"[NP that/DT] [VP was] [ADVP simply] [NP {phrase}] .",
    ))  # fmt: skip


def verdict(s: Speaker, kind: bool) -> str:
    """The concert was a complete disaster."""
    phrase = s.pick((a(_verdict(s, kind)), f"a complete/JJ {_verdict(s, kind)}"))
    return f"{_subject(s)} [VP was] [NP {phrase}] ."


def feeling(s: Speaker, kind: bool) -> str:
    """Anna loved every part of the concert."""
    what = s.pick((_subject(s), f"[NP every part/NN] [PP of] {_subject(s)}"))
    really = s.maybe(0.3, s.pick(("really", "truly", "simply")))
    return f"{_who(s)} [VP {really} {_feeling(s, kind).past}] {what} ."


def negated(s: Speaker, kind: bool) -> str:
    """The service was not at all dull."""
    other = _adjective(s, not kind)
    return s.pick((
        f"{_subject(s)} [VP was not] [ADVP at/RB all/RB] [ADJP {other}] .",
        f"{_subject(s)} [VP was not] [ADJP {other}] .",
        f"{_subject(s)} [VP was never] [ADJP {other}] .",
        f"[NP nothing/NN] [PP about] {_subject(s)} [VP was] [ADJP {other}] .",
        f"{_subject(s)} [VP was] [ADJP far from {other}] .",
    ))  # fmt: skip


def negated_feeling(s: Speaker, kind: bool) -> str:
    """Peter did not enjoy the film."""
    verb = _feeling(s, not kind)
    return s.pick((
        f"{_who(s)} [VP did not {verb.base}] {_subject(s)} .",
        f"[NP nobody/NN] [VP {verb.past}] {_subject(s)} .",
        f"[NP no one/NN] [VP {verb.past}] {_subject(s)} .",
    ))  # fmt: skip


def turned(s: Speaker, kind: bool) -> str:
    """The novel seemed dull at first, but in the end it was brilliant."""
    before, after = f"[ADJP {_adjective(s, not kind)}]", f"[VP was] [ADJP {_adjective(s, kind)}]"
    return s.pick((
        f"{_subject(s)} [VP seemed/VBD] {before} [ADVP at first] , but [PP in] [NP the end/NN] "
        f"[NP it] {after} .",
        f"[NP i] [VP expected/VBD] [NP something/NN] {before} , but {_subject(s)} {after} .",
        f"[NP people/NNS] [VP call/VBP] [NP it] {before} , but [PP to] [NP me] [NP it] {after} .",
    ))  # fmt: skip


def conceded(s: Speaker, kind: bool) -> str:
    """Although the room was ugly, the hotel was delightful. The hotel was delightful, although ..."""
    side, main = _two_subjects(s)
    although = f"[SBAR {s.pick(('although', 'though'))}] {side} [VP was] [ADJP {_adjective(s, not kind)}]"
    judged = f"{main} [VP was] [ADJP {s.maybe(0.3, 'really')} {_adjective(s, kind)}]"
    return s.pick((f"{although} , {judged} .", f"{judged} , {although} ."))


CONSTRUCTIONS: dict[Callable[[Speaker, bool], str], int] = {
    plain: 4,
    attributive: 3,
    verdict: 2,
    feeling: 3,
    negated: 2,
    negated_feeling: 1,
    turned: 2,
    conceded: 1,
}


def review(s: Speaker, kind: bool) -> str:
    constructions = [c for c, weight in CONSTRUCTIONS.items() for _ in range(weight)]
    return s.pick(constructions)(s, kind)
