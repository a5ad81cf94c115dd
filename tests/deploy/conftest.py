"""A finished study of a tiny model, shared by the tests of this folder."""

import pytest
from easy_study import easy_study

import whichlayers


@pytest.fixture(scope="session")
def easy_results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("easy")
    return whichlayers.run(easy_study(folder), folder / "study", workers=0, progress=False)
