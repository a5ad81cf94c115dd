"""Saved models that several test files read."""

import pytest
from small_models import small_model


@pytest.fixture(scope="session")
def saved_bert(tmp_path_factory):
    """A small BERT with its pooler, saved as one safetensors file. Read only."""
    folder = tmp_path_factory.mktemp("bert")
    small_model("bert", depth=2).save_pretrained(folder)
    return folder
