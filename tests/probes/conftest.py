"""What several tests of probes need."""

import pytest

from whichlayers.probes import extract_sentences, extract_words


@pytest.fixture
def passes(monkeypatch):
    """Counts what goes through the encoder: the examples of tasks, the words of corpora."""
    seen = []
    for module in (extract_sentences, extract_words):

        def counted(*arguments, original=module._batches):
            for which, states in original(*arguments):
                seen.append(len(which))
                yield which, states

        monkeypatch.setattr(module, "_batches", counted)
    return seen
