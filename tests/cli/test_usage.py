"""Wrong values of options: one line that names option, value and what is allowed, without the parser's wording."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from whichlayers.cli import app

PARSER = ("Input should", "Value error", "valid integer", "unable to parse", "is not one of", "Invalid value")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("run", "s.toml", "--trials", "x"),
            "error: --trials x: must be an integer; see ",
        ),
        (("power", "s", "--add=0"), "--add 0: must be at least 1"),
        (("power", "s", "--difference", "much"), "--difference much: must be a number"),
        (("watch", "s", "--port", "99999"), "--port 99999: must be at most 65535"),
        (("export", "s", "--format", "xlsx"), "--format xlsx: must be one of csv, parquet, tensorboard"),
        (("modles",), "no such command 'modles'. Did you mean 'models'? See "),
        (("show", "s"), "missing argument 'TRIAL'; see "),
    ],
)
def test_messages(arguments, message):
    result = CliRunner(env={"COLUMNS": "300"}).invoke(app, list(arguments))
    assert result.exit_code == 2
    assert message in result.stderr


def options():
    """Every command and option, but flags, which take no value."""
    for name, command in typer.main.get_command(app).commands.items():
        for option in command.params:
            if option.opts[0].startswith("--") and not getattr(option, "is_flag", False):
                yield name, option.opts[0]


def test_no_option_shows_the_words_of_the_parser(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rejected = 0
    for command, option in options():
        for wrong in ("x", "-1e9", "nan"):
            result = CliRunner().invoke(app, [command, f"{option}={wrong}", "a", "b"])
            text = " ".join(result.stderr.split())
            assert not [words for words in PARSER if words in text], f"{command} {option}={wrong}: {text}"
            rejected += f"{option} {wrong}: must be" in text
    assert rejected > 40
    assert not list(tmp_path.iterdir())
