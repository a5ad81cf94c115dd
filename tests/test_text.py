"""Numbers for people: one rounding, one sign, one unit."""

from __future__ import annotations

import math

import pytest

from whichlayers.text import (
    format_bytes,
    format_classes,
    format_duration,
    format_half_width,
    format_p,
    format_percent,
    format_range,
    format_score,
    join_numbers,
    label_names,
)


@pytest.mark.parametrize(
    ("value", "metric", "signed", "expected"),
    [
        (0.8716, "accuracy", False, "87.2"),
        (0.5024996, "accuracy", False, "50.2"),  # 50.3 if rounded to 50.25 first
        (0.1474996, "mcc", True, "+14.7"),
        (-0.0004, "", True, "0.0"),
        (-0.0004, "", False, "0.0"),
        (-0.0006, "", True, "−0.1"),
        (0.5, "", True, "+50.0"),
        (2.345678, "compression", False, "2.35"),
        (-0.0004, "difference in compression", True, "0.00"),
        (0.0213, "distance", False, "0.021"),
        (0.98412, "r", True, "+0.984"),
        (math.nan, "accuracy", True, ""),
    ],
)
def test_scores_are_in_points_and_other_quantities_are_not(value, metric, signed, expected):
    assert format_score(value, metric, signed) == expected


@pytest.mark.parametrize("tie", [0.5025, 0.1475, 0.8725, 0.00125, -0.3375])
def test_a_tie_has_the_same_text_however_it_was_computed(tie):
    assert len({format_score(math.nextafter(tie, way)) for way in (-1, tie, 1)}) == 1


def test_wide_half_widths_have_no_decimals():
    texts = [format_half_width(half) for half in (0.0994, 0.0996, 0.56, float("nan"))]
    assert texts == ["±9.9", "±10", "±56", ""]
    assert format_half_width(12.0, "compression") == "±12.00"


def test_ranges_p_values_and_percentages():
    assert format_range(0.761, 0.8031) == "76.1 to 80.3"
    assert format_range(-0.01, 0.02, "accuracy", signed=True) == "−1.0 to +2.0"
    assert format_range(math.nan, math.nan) == ""
    assert [format_p(p) for p in (0.0123, 0.0009, math.nan)] == ["0.012", "<0.001", ""]
    assert [format_percent(share) for share in (0.05, 0.0025)] == ["5%", "0.25%"]


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (12, "12 s"),
        (59.6, "1 min 00 s"),
        (200, "3 min 20 s"),
        (3900, "1 h 05 min"),
        (3_600_000, "1,000 h 00 min"),
    ],
)
def test_durations(seconds, expected):
    assert format_duration(seconds) == expected


def test_short_durations_have_two_digits_where_asked_for():
    assert [format_duration(s, fine=True) for s in (0.123, 3.14, 12.4, 200)] == [
        "0.12 s",
        "3.1 s",
        "12 s",
        "3 min 20 s",
    ]


def test_sizes():
    assert [format_bytes(n) for n in (999, 2_500_000, 3e15)] == ["999 B", "2.5 MB", "3000.0 TB"]


def test_consecutive_numbers_are_joined_as_ranges():
    assert join_numbers([]) == ""
    assert join_numbers([1, 2, 3]) == "1, 2 and 3"
    assert join_numbers([1, 2, 3, 4]) == "1 to 4"
    assert join_numbers([1, 2, 3, 4, 6, 7, 12]) == "1 to 4, 6, 7 and 12"
    assert join_numbers([4, 3, 2, 1]) == "4, 3, 2 and 1"


def test_classes_with_commas_are_in_quotes():
    assert label_names(["no", "yes"]) == ["no", "yes"]
    assert label_names(["good, indeed", "no"]) == ['"good, indeed"', '"no"']
    assert format_classes({"no": 1, "good, indeed": 3}) == '"good, indeed" 75.0%, "no" 25.0%'
