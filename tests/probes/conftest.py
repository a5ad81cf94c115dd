"""Fixtures shared by the tests of probes."""

import pytest

from whichlayers.probes import extract


@pytest.fixture
def passes(monkeypatch):
    """Sizes of the batches that go through the encoder: examples of tasks, words of corpora."""
    seen = []
    original = extract._batches

    def counted(*arguments):
        for which, states in original(*arguments):
            seen.append(len(which))
            yield which, states

    monkeypatch.setattr(extract, "_batches", counted)
    return seen
