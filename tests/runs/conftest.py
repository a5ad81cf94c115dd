"""A folder for a study, and files beside it for the log of the fake handler."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "computed"))
    monkeypatch.setenv("FAKE_KILL_LOG", str(tmp_path / "deaths"))
    return tmp_path / "study"
