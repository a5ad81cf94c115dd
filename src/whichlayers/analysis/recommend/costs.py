"""What a recommended model saves, as text."""

from __future__ import annotations

from collections.abc import Sequence

from whichlayers.analysis.recommend.base import Answer
from whichlayers.results.costs import ModelCost, find_cost
from whichlayers.text import format_bytes


def cost_text(answer: Answer, costs: Sequence[ModelCost]) -> str:
    """Parameters, size on disk, latency and training time compared with the full model; "" if nothing is known."""
    parts = []
    if answer.layers:
        small = find_cost(costs, answer.model_fingerprint, answer.layers)
        full = find_cost(costs, answer.model_fingerprint, range(1, answer.depth + 1))
        if small is not None and full is not None:
            parts.append(
                f"{_millions(small.parameters)} parameters instead of {_millions(full.parameters)}, "
                f"{format_bytes(small.bytes)} on disk instead of {format_bytes(full.bytes)}, "
                f"{small.milliseconds:.3g} ms per text of {small.tokens} tokens instead of "
                f"{full.milliseconds:.3g} ms ({small.device})"
            )
    for what, fraction in answer.savings.items():
        less = "fewer" if what.endswith("s") else "less"
        # 100% would be all of it
        share = "over 99" if 0.995 <= fraction < 1 else f"{100 * abs(fraction):.0f}"
        parts.append(f"{share}% {less if fraction > 0 else 'more'} {what}")
    text = "; ".join(parts)
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def _millions(count: int) -> str:
    return f"{count / 1e6:.3g}M" if count >= 1e5 else f"{count:,}"
