"""Predictions for files: every format, in chunks, with memory that does not depend on the file."""

import csv
import dataclasses
import json
import tracemalloc

import numpy as np
import pandas as pd
import pyarrow.parquet
import pytest
from easy_study import texts_and_labels, write_csv

import whichlayers
from whichlayers.deploy import predict as predict_module
from whichlayers.deploy.predict import TextColumns, predict_file
from whichlayers.deploy.text_model import TextModel
from whichlayers.errors import WhichlayersError

TEXTS = [text for text, _ in texts_and_labels(50, seed=3)]


@pytest.fixture(scope="module")
def folder(easy_results, tmp_path_factory):
    return easy_results.build(tmp_path_factory.mktemp("m") / "model", layers=[1, 2])[0].folder


@pytest.fixture(scope="module")
def expected(folder):
    """Probabilities of one text at a time."""
    model = whichlayers.load_model(folder)
    return np.concatenate([model.predict_proba([text]) for text in TEXTS])


def write_input(path):
    rows = [{"id": i, "text": text} for i, text in enumerate(TEXTS)]
    if path.suffix == ".parquet":
        pd.DataFrame(rows).to_parquet(path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        pd.DataFrame(rows).to_csv(path, index=False, sep="," if path.suffix == ".csv" else "\t")
    return path


@pytest.mark.parametrize("extension", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_every_format(folder, expected, tmp_path, monkeypatch, extension):
    monkeypatch.setattr(predict_module, "CHUNK", 7)
    file, out = write_input(tmp_path / f"in{extension}"), tmp_path / f"out{extension}"
    assert whichlayers.predict(folder, file, "text", keep=["id"], out=out) == out
    if extension == ".jsonl":
        table = pd.read_json(out, lines=True)
    elif extension == ".parquet":
        table = pd.read_parquet(out)
    else:
        table = pd.read_csv(out, sep="," if extension == ".csv" else "\t")
    assert list(table) == ["text", "id", "prediction", "probability", "p bad", "p good"]
    assert list(table["id"].astype(int)) == list(range(50))
    assert list(table["text"]) == TEXTS
    np.testing.assert_allclose(table[["p bad", "p good"]], expected, atol=1e-5)
    assert list(table["prediction"]) == [("bad", "good")[i] for i in expected.argmax(1)]
    np.testing.assert_allclose(table["probability"], expected.max(1), atol=1e-5)


def test_without_out_a_data_frame(folder, expected, tmp_path):
    table = whichlayers.predict(folder, write_input(tmp_path / "in.csv"), "text")
    np.testing.assert_allclose(table["p good"], expected[:, 1], atol=1e-5)


def test_the_model_learned_its_task(folder, tmp_path):
    """The labels of new texts are right more often than not: the saved model is not a random one."""
    file = write_csv(tmp_path / "new.csv", 100, seed=9)
    table = whichlayers.predict(folder, file, "text", keep=["label"])
    assert (table["prediction"] == table["label"]).mean() > 0.65


def test_memory_does_not_grow_with_the_file(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(predict_module, "CHUNK", 50)
    model = whichlayers.load_model(folder)
    monkeypatch.setattr(model, "logits", lambda texts, *_: np.zeros((len(texts), 2), np.float32))

    def peak(rows):
        file = tmp_path / f"{rows}.csv"
        with open(file, "w", newline="") as handle:
            writer = csv.writer(handle)
            writer.writerow(["text"])
            writer.writerows([f"w1 w2 {i} {'x' * 200}"] for i in range(rows))
        tracemalloc.start()
        predict_file(model, file, TextColumns("text"), tmp_path / "out.csv")
        used = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return used

    peak(200)  # imports
    assert peak(8000) < 1.5 * peak(400)


def test_bad_files(folder, tmp_path):
    file = tmp_path / "in.csv"
    file.write_text("text,id\nw1,1\n,2\nw2\n")
    out = tmp_path / "out.csv"
    with pytest.raises(WhichlayersError, match=r"in\.csv:3: column 'text' has no text"):
        whichlayers.predict(folder, file, "text", out=out)
    assert not out.exists()
    with pytest.raises(WhichlayersError, match="did you mean 'text'"):
        whichlayers.predict(folder, file, "txt")
    with pytest.raises(WhichlayersError, match="takes one text: leave out --pair"):
        whichlayers.predict(folder, file, "text", "id")
    with pytest.raises(WhichlayersError, match=r"must be one of \.tsv"):
        whichlayers.predict(folder, write_input(tmp_path / "good.csv"), "text", out=tmp_path / "out.xlsx")
    with pytest.raises(WhichlayersError, match="would be replaced: choose another name"):
        whichlayers.predict(folder, file, "text", out=file)
    with pytest.raises(WhichlayersError, match="device nope: no such device"):
        whichlayers.load_model(folder, device="nope")
    with pytest.raises(WhichlayersError, match=r"no whichlayers\.json"):
        whichlayers.predict(tmp_path, file, "text")


def test_texts_are_a_list_of_texts(folder):
    model = whichlayers.load_model(folder)
    for method in (model.predict, model.predict_proba, model.logits):
        with pytest.raises(
            WhichlayersError, match=r"texts = 'w1 w2': give a list of texts, such as \['w1 w2'\]"
        ):
            method("w1 w2")
    with pytest.raises(WhichlayersError, match="texts: item 1 is None, not a text"):
        model.predict(["w1", None])
    with pytest.raises(WhichlayersError, match="takes one text: leave out pairs"):
        model.predict(["w1"], "w2")
    for texts in (pd.Series(["w1", "w2"]), np.array(["w1", "w2"]), ("w1", "w2")):
        np.testing.assert_allclose(model.predict_proba(texts), model.predict_proba(["w1", "w2"]))


def test_texts_and_pairs_have_the_same_length(folder):
    model = whichlayers.load_model(folder)
    pairs = TextModel(model.module, model.tokenizer, dataclasses.replace(model.metadata, pairs=True))
    with pytest.raises(WhichlayersError, match="2 texts and 1 pairs: give one second text for each text"):
        pairs.predict(["w1", "w2"], ["w3"])
    with pytest.raises(WhichlayersError, match="pairs = 'w3': give a list of texts"):
        pairs.predict(["w1", "w2"], "w3")


def test_no_texts_give_no_predictions(folder):
    model = whichlayers.load_model(folder)
    assert model.predict([]) == []
    assert model.predict_proba([]).shape == model.logits([]).shape == (0, 2)
    numbers = dataclasses.replace(model.metadata, labels=(), kind="regression")
    assert TextModel(model.module, model.tokenizer, numbers).predict([]) == []


def test_a_column_that_would_be_overwritten_is_an_error(folder, tmp_path):
    file = tmp_path / "in.csv"
    file.write_text("text,prediction\nw1,x\n")
    with pytest.raises(WhichlayersError, match="'prediction'"):
        whichlayers.predict(folder, file, "text", keep=["prediction"])


def test_tsv_cannot_hold_line_breaks(folder, tmp_path):
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps({"text": "w1\nw2"}) + "\n")
    with pytest.raises(WhichlayersError, match="TSV cannot hold"):
        whichlayers.predict(folder, file, "text", out=tmp_path / "out.tsv")
    assert whichlayers.predict(folder, file, "text")["text"].tolist() == ["w1\nw2"]


def test_parquet_columns_have_the_type_of_all_of_their_values(folder, tmp_path, monkeypatch):
    """Types that show in a later chunk count, too."""
    monkeypatch.setattr(predict_module, "CHUNK", 2)
    columns = {
        "missing": [None, None, 7, 8],
        "number": [1, 2, 2.5, None],
        "mixed": [1, 2, "three", None],
        "none": [None] * 4,
        "list": [[1], [2], None, [3, 4]],
    }
    file, out = tmp_path / "in.jsonl", tmp_path / "out.parquet"
    rows = [{"text": "w1"} | {name: values[i] for name, values in columns.items()} for i in range(4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    whichlayers.predict(folder, file, "text", keep=list(columns), out=out)
    table = pyarrow.parquet.read_table(out).to_pydict()
    assert {name: table[name] for name in columns} == columns | {
        "number": [1.0, 2.0, 2.5, None],
        "mixed": ["1", "2", "three", None],
    }
    file.write_text("".join(json.dumps({"text": "w1", "n": n}) + "\n" for n in (1, 2**70)))
    with pytest.raises(WhichlayersError, match="column 'n' cannot be written as Parquet"):
        whichlayers.predict(folder, file, "text", keep=["n"], out=out)
