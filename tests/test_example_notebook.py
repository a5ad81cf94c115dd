"""The notebook in examples/ runs from top to bottom, with a tiny model and few trials."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from small_study import write_model

from whichlayers.data.load_task import load_task

NOTEBOOK = Path(__file__).resolve().parent.parent / "examples" / "smaller_model.ipynb"


@pytest.mark.slow
def test_the_notebook_runs(tmp_path, monkeypatch):
    words = sorted(
        {word for text in load_task("builtin:sentiment").train.texts for word in text.lower().split()}
    )
    monkeypatch.setenv("EXAMPLE_MODEL", str(write_model(tmp_path / "model", words, layers=3)))
    monkeypatch.setenv("EXAMPLE_TRIALS", "3")
    monkeypatch.setenv("EXAMPLE_EXAMPLES", "24")
    monkeypatch.setenv("EXAMPLE_FOLDER", str(tmp_path / "example"))
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    assert all(not cell.get("outputs") for cell in notebook.cells)  # committed without outputs
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    texts = [
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", ())
        if "text" in output
    ]
    assert any(text.startswith("Smallest model (reviews, 24 examples): ") for text in texts)
    assert any("# reviews: model, " in text for text in texts)
    assert (tmp_path / "example" / "model" / "model.safetensors").is_file()
