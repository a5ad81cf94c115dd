"""Format numbers, counts, durations, sizes and lists for messages, tables, figures and reports.

Scores are shown in points (100 times the metric) with one decimal, everywhere: "87.2" for an accuracy of 0.8716.
Exported files (CSV, JSON) hold the metric itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from whichlayers.catalog import DIFFERENCE, quantity

TIMES_100 = "× 100"
ROUNDING = 1e-9  # of scores
# of a table or figure that has such intervals
BEYOND_NOTE = (
    "Some t intervals extend beyond the possible values: these trials say little about the mean, and more are"
    " needed."
)


def in_points(metric: str) -> bool:
    """Whether a metric (or other quantity) is a fraction of 1, which is shown × 100."""
    return quantity(metric).decimals is None


def format_score(value: float, metric: str = "", signed: bool = False) -> str:
    """A score, or with `signed` a difference of scores: "87.2", "+3.1", "−0.4"; empty for NaN.

    There is no sign if the value rounds to zero. Digits beyond the ninth decimal are floating-point noise: without
    them, the same mean computed in two ways has the same text even if it is halfway between two numbers.
    """
    if math.isnan(value):
        return ""
    decimals = quantity(metric).decimals
    scaled, decimals = (100 * value, 1) if decimals is None else (value, decimals)
    text = f"{round(scaled, 9):{'+' if signed else ''}.{decimals}f}"
    return text.lstrip("+-") if float(text) == 0 else text.replace("-", "−")


def format_half_width(value: float, metric: str = "") -> str:
    """Half of an interval after its mean: "±5.2", or "±56" without decimals from 10 points on; empty for NaN."""
    if math.isnan(value):
        return ""
    wide = in_points(metric) and round(100 * value, 9) >= 9.95
    return f"±{round(100 * value, 9):.0f}" if wide else f"±{format_score(value, metric)}"


def format_range(low: float, high: float, metric: str = "", signed: bool = False) -> str:
    """The ends of an interval: "76.1 to 80.3"; empty if there is none (NaN)."""
    if math.isnan(low) or math.isnan(high):
        return ""
    return f"{format_score(low, metric, signed)} to {format_score(high, metric, signed)}"


def is_beyond(low: float, high: float, metric: str = "") -> bool:
    """Whether an interval extends beyond the range of a metric, or of a difference (`catalog.DIFFERENCE` + metric)."""
    limits = quantity(metric)
    return low < limits.low - ROUNDING or high > limits.high + ROUNDING


def beyond_note(low: float, high: float, metric: str = "") -> str:
    """ ", beyond the possible values" after the ends of an interval of which this is true; else empty."""
    if not is_beyond(low, high, metric):
        return ""
    return f", beyond the possible {'differences' if metric.startswith(DIFFERENCE) else 'values'}"


def format_p(p: float) -> str:
    """A p value: "0.012" or "<0.001"; empty for NaN."""
    return "" if math.isnan(p) else "<0.001" if p < 0.001 else f"{p:.3f}"


def format_percent(fraction: float) -> str:
    """A fraction that the user chose, in percent with all of its digits: "5%", "0.25%"."""
    return f"{100 * fraction:.6g}%"


def format_classes(counts: Mapping[str, int], most: int = 5) -> str:
    """Classes with their share of the training data, the most frequent first: "b 60.0%, a 40.0%", at most `most`."""
    total, ordered = sum(counts.values()), sorted(counts.items(), key=lambda item: -item[1])
    names = label_names([name for name, _ in ordered[:most]])
    shares = [f"{name} {100 * count / total:.1f}%" for name, (_, count) in zip(names, ordered, strict=False)]
    listed = ", ".join(shares)
    return listed + (f", {len(ordered) - most:,} more" if len(ordered) > most else "")


def label_names(labels: Sequence[str]) -> list[str]:
    """The names of classes for a list with commas: in quotes if one of them has a comma."""
    return [f'"{label}"' for label in labels] if any("," in label for label in labels) else list(labels)


def format_duration(seconds: float, fine: bool = False) -> str:
    """3900 -> "1 h 05 min", 200 -> "3 min 20 s", 12 -> "12 s"; with `fine`, 3.14 -> "3.1 s" """
    if fine and seconds < 10:
        return f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"


def format_bytes(number: float) -> str:
    """2_500_000 -> "2.5 MB" """
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def counted(number: int, noun: str) -> str:
    """A count with its noun in the singular or plural: "1 trial", "2,000 trials"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def outer_layers(end: str, count: int) -> str:
    """The layers at one end of a model: "the top layer", "the top 4 layers"."""
    return f"the {end} layer" if count == 1 else f"the {end} {count} layers"


def count_range(numbers: Iterable[int]) -> str:
    """The lowest and the highest of some counts: "3 to 5", or "3" if they are equal; "" without any."""
    ordered = sorted(map(int, numbers))
    if not ordered:
        return ""
    return str(ordered[0]) if ordered[0] == ordered[-1] else f"{ordered[0]} to {ordered[-1]}"


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Map each name of a model or task to a short form without "package:", "builtin:" or folders, if that is unique."""
    full = sorted(set(names))
    short = {name: _shorten(name) for name in full}
    short_forms = list(short.values())
    return {name: text if short_forms.count(text) == 1 else name for name, text in short.items()}


def _shorten(name: str) -> str:
    for prefix in ("package:", "builtin:"):
        name = name.removeprefix(prefix)
    return PurePath(name).name if name.startswith(("/", ".", "~")) else name


def longest_word(texts: Iterable[str]) -> int:
    """The length of the longest word of some texts; 0 without any."""
    return max((len(word) for text in texts for word in text.split()), default=0)


def join_list(items: Iterable[object], conjunction: str = "and") -> str:
    """Items as a list in a sentence: "a", "a and b", "a, b and c"; "" without items."""
    parts = [str(item) for item in items]
    return f"{', '.join(parts[:-1])} {conjunction} {parts[-1]}" if len(parts) > 1 else "".join(parts)


def consecutive(numbers: Iterable[int]) -> list[list[int]]:
    """Numbers in runs that go up by one: 1, 2, 3, 5 -> [1, 2, 3], [5]."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def join_numbers(numbers: Iterable[int]) -> str:
    """Numbers as a list in a sentence, with more than three consecutive ones as a range: "1 to 4, 6 and 7"."""
    runs = consecutive(numbers)
    parts = [[f"{run[0]} to {run[-1]}"] if len(run) > 3 else list(map(str, run)) for run in runs]
    return join_list(text for part in parts for text in part)
