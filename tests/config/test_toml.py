import tomllib

import pytest

from whichlayers.config.toml import key_lines, key_text, line_of, value_text


@pytest.mark.parametrize(
    "value",
    [
        1,
        -3,
        2e-5,
        1e-08,
        0.1,
        True,
        False,
        "a",
        'q"u\\o\te\n',
        "é\x7f\x01",
        [],
        [1, "all", 0.5],
        [[1], [2, 3]],
    ],
)
def test_values_are_read_back_as_they_were(value):
    back = tomllib.loads(f"v = {value_text(value)}")["v"]
    assert back == value
    assert type(back) is type(value)


def test_tables_are_written_inline_and_odd_keys_quoted():
    table = {"500": 50, "default": 3, "a b": 1}
    assert tomllib.loads(f"v = {value_text(table)}")["v"] == table


def test_key_text():
    assert key_text(("experiments", 0, "keep")) == "experiments[0].keep"
    assert key_text(("train_sizes", 2)) == "train_sizes[2]"
    assert key_text(()) == ""
    assert key_text(("a b",)) == '"a b"'


TEXT = '''# a comment with a = 1 and [brackets
name = "x = [ # not structure"
sizes = [
  1,
  2,  # depth = 3 stays inside
]
note = """
inside = 1
[[models]]
"""
"quoted key" = 1
[[models]]
name = 'b'
[[models]]
  name = "c"
[training]
lr = 1
betas.first = 2
'''


def test_key_lines_name_the_line_of_every_key():
    lines = key_lines(TEXT)
    assert lines == {
        ("name",): 2,
        ("sizes",): 3,
        ("note",): 7,
        ("quoted key",): 11,
        ("models", 0): 12,
        ("models", 0, "name"): 13,
        ("models", 1): 14,
        ("models", 1, "name"): 15,
        ("training",): 16,
        ("training", "lr"): 17,
        ("training", "betas", "first"): 18,
    }


def test_a_key_without_a_line_has_the_line_of_its_table():
    lines = key_lines(TEXT)
    assert line_of(("models", 1, "revision"), lines) == 14
    assert line_of(("sizes", 1), lines) == 3
    assert line_of(("absent",), lines) is None
