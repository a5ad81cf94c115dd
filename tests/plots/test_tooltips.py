"""Wording of tooltips."""

import math

import pytest

from whichlayers.plots.tooltips import box_lines, point_lines

NAN = math.nan


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            ("k: 3", "accuracy", 0.8712, (0.85, 0.89), "95% interval", 0.01, 5.0),
            ["k: 3", "mean accuracy: 87.1", "95% interval: 85.0 to 89.0", "n = 5, sd 1.0"],
        ),
        (
            ("k: 3", "accuracy", 0.8712, (NAN, NAN), "95% interval", NAN, 1.0),
            ["k: 3", "mean accuracy: 87.1", "n = 1, so there is no interval"],
        ),
        (  # a published value or the score of guessing
            ("", "dev_loss", 0.5, (NAN, NAN), "95% interval", NAN, NAN),
            ["mean evaluation loss: 0.500"],
        ),
    ],
)
def test_points(arguments, lines):
    assert point_lines(*arguments) == lines


def test_boxes():
    effect = "effect: +3.0 points (accuracy × 100)"
    assert box_lines(0.03, 0.01, 5, True, "accuracy") == [
        effect,
        "95% interval: +2.0 to +4.0",
        "n = 5 paired trials",
        "significantly different from zero (adjusted p below 0.05)",
    ]
    assert box_lines(0.03, 0.01, 5, False, "accuracy")[-1].startswith("not significantly")
    assert box_lines(0.03, NAN, 1, False, "accuracy") == [
        effect,
        "a single pair of trials, so there is no interval",
        "n = 1 paired trial",
    ]
