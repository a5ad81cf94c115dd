"""Custom tasks: every format gives the same task; every kind of bad row is reported with its line."""

import csv
import gzip
import json

import numpy as np
import pytest

from whichlayers.data.file_task import load_file_task
from whichlayers.data.tasks import BadData
from whichlayers.errors import WhichlayersError

ROWS = [
    ("A fine day.", "why?", "yes"),
    ('He said "no".', "a, b", "no"),
    ("東京 é", "c", "maybe"),
    ("d", "e", "no"),
]


def put(path, content):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def copied(path):
    """Another file with the same rows, since train and dev must be different files."""
    return put(path.with_name(f"copy-{path.name}"), path.read_bytes())


def write(path, rows, names=("text", "pair", "label")):
    ending = path.name.removesuffix(".gz").rsplit(".", 1)[1]
    if ending == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.table(dict(zip(names, map(list, zip(*rows, strict=True)), strict=True))), path)
        return path
    opener = gzip.open if path.name.endswith(".gz") else open
    with opener(path, "wt", encoding="utf-8", newline="") as handle:
        if ending == "csv":
            csv.writer(handle).writerows([names, *rows])
        elif ending == "tsv":
            handle.writelines("\t".join(map(str, row)) + "\n" for row in [names, *rows])
        else:
            handle.writelines(json.dumps(dict(zip(names, row, strict=True))) + "\n" for row in rows)
    return path


@pytest.mark.parametrize("ending", ["tsv", "csv", "jsonl", "parquet", "tsv.gz", "csv.gz", "jsonl.gz"])
def test_every_format_gives_the_same_task(tmp_path, ending):
    train, dev = write(tmp_path / f"train.{ending}", ROWS), write(tmp_path / f"dev.{ending}", ROWS[1:])
    task = load_file_task("own", train, dev, text="text", label="label", pair="pair")
    assert task.train.texts == [row[0] for row in ROWS]
    assert task.train.pairs == [row[1] for row in ROWS]
    assert task.label_names == ("maybe", "no", "yes")
    assert task.train.labels.tolist() == [2, 1, 0, 1]
    assert task.evals[""].labels.tolist() == [1, 0, 1]
    assert (task.kind, task.metric, task.n_outputs) == ("classification", "accuracy", 3)
    assert task.train.labels.dtype == np.int64
    single = load_file_task("own", train, dev, "text", "label", metric="mcc")
    assert single.train.pairs is None
    assert single.metric == "mcc"
    assert single.fingerprint != task.fingerprint


def test_integers_are_classes_in_numeric_order_regardless_of_their_type(tmp_path):
    train = write(tmp_path / "t.jsonl", [("a", "", 10), ("b", "", 9.0), ("c", "", "-1"), ("d", "", 9)])
    dev = write(tmp_path / "d.tsv", [("x", "", "9"), ("y", "", " 10 ")])
    task = load_file_task("own", train, dev, "text", "label")
    assert task.label_names == ("-1", "9", "10")
    assert task.train.labels.tolist() == [2, 1, 0, 1]
    assert task.evals[""].labels.tolist() == [1, 2]


def test_true_and_false_are_classes(tmp_path):
    train = write(tmp_path / "t.jsonl", [("a", "", True), ("b", "", False)])
    dev = write(tmp_path / "d.csv", [("x", "", "true")])
    assert load_file_task("own", train, dev, "text", "label").evals[""].labels.tolist() == [1]


def test_fractional_labels_make_a_regression_task(tmp_path):
    train = write(tmp_path / "t.csv", [("a", "", "0.5"), ("b", "", "3"), ("c", "", "-2e1")])
    task = load_file_task("own", train, copied(train), "text", "label")
    assert (task.kind, task.n_outputs, task.metric, task.label_names) == ("regression", 1, "pearson", ())
    assert task.train.labels.tolist() == [0.5, 3.0, -20.0]
    assert task.train.labels.dtype == np.float32
    whole = write(tmp_path / "w.csv", [("a", "", "1"), ("b", "", "3")])
    assert load_file_task("own", whole, copied(whole), "text", "label").kind == "classification"
    forced = load_file_task(
        "own", whole, copied(whole), "text", "label", kind="regression", metric="spearman"
    )
    assert (forced.kind, forced.metric) == ("regression", "spearman")


GOOD = "text\tpair\tlabel\n" + "".join(f"good {i}\tp\t{i % 2}\n" for i in range(4))


@pytest.mark.parametrize(
    ("bad_line", "message"),
    [
        ("too\tfew", "2 columns, expected 3"),
        ("too\tmany\t1\t1", "4 columns, expected 3"),
        ("ok\tp\t7", "unknown label '7'; known labels: '0', '1'"),
        ("ok\tp\t ", "no label"),
        (" \tp\t1", "column 'text' is empty"),
        ("ok\t\t1", "column 'pair' is empty"),
        (b"caf\xe9\tp\t1", "not UTF-8: byte 0xe9"),
    ],
)
def test_every_kind_of_bad_row_in_dev(tmp_path, bad_line, message):
    line = bad_line if isinstance(bad_line, bytes) else bad_line.encode()
    train = put(tmp_path / "train.tsv", GOOD)
    dev = put(tmp_path / "dev.tsv", GOOD.encode() + line + b"\ngood\tp\t1\n" + line + b"\n")
    with pytest.raises(BadData) as error:
        load_file_task("own", train, dev, "text", "label", "pair")
    text = str(error.value)
    assert text.startswith(f"2 bad rows in {dev}:\n  {dev}:6: {message}")
    assert f"\n  {dev}:8: {message}" in text


def test_bad_rows_of_all_kinds_are_counted_together(tmp_path):
    content = GOOD + "x\n" + "ok\tp\t7\n" * 10 + "\tp\t1\n"
    with pytest.raises(BadData) as error:
        load_file_task(
            "own", put(tmp_path / "t.tsv", GOOD), put(tmp_path / "d.tsv", content), "text", "label", "pair"
        )
    message = str(error.value)
    assert "12 bad rows" in message
    assert "and 7 more" in message
    assert [f"d.tsv:{n}:" in message for n in (6, 7, 8, 9, 10, 11)] == [True] * 5 + [False]


def test_bad_rows_in_train(tmp_path):
    train = put(tmp_path / "t.csv", 'text,label\n"over\ntwo lines",a\n,b\nx,a\ny,\n')
    with pytest.raises(BadData) as error:
        load_file_task("own", train, copied(train), "text", "label")
    assert "t.csv:4: column 'text' is empty" in str(error.value)
    assert "t.csv:6: no label" in str(error.value)


@pytest.mark.parametrize("label", ["five", "nan", "inf", "1e99", "", "1_0"])
def test_regression_labels_that_are_not_numbers(tmp_path, label):
    train = put(tmp_path / "t.tsv", "text\tlabel\na\t0.5\nb\t1.5\n")
    dev = put(tmp_path / "d.tsv", f"text\tlabel\na\t0.5\nb\t{label}\n")
    with pytest.raises(BadData, match=r"d\.tsv:3: label .* is not a number"):
        load_file_task("own", train, dev, "text", "label")
    with pytest.raises(BadData, match=r"d\.tsv:3"):
        load_file_task("own", dev, train, "text", "label", kind="regression")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"text": 5, "label": 1}', "column 'text' has type int; expected text"),
        ('{"text": null, "label": 1}', "column 'text' has no value; expected text"),
        ('{"text": "a", "label": null}', "no label"),
        ('{"text": "a", "label": [1]}', "the label has type list; expected text, a number or true/false"),
        ('{"text": "a", "label": NaN}', "the label is nan, which is no class"),
        ('{"text": "a", "label": "p", "label": "n"}', "the key 'label' is given twice; remove one of them"),
        ('{"text": "half \\ud83d", "label": 1}', "not valid Unicode"),
        ('{"label": 1}', "no key 'text'"),
    ],
)
def test_bad_values_in_jsonl(tmp_path, row, message):
    train = put(tmp_path / "t.jsonl", '{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n')
    dev = put(tmp_path / "d.jsonl", f'{{"text": "a", "label": 0}}\n{row}\n')
    with pytest.raises(BadData, match=r"d\.jsonl:2: ") as error:
        load_file_task("own", train, dev, "text", "label")
    assert message in str(error.value)


def test_missing_and_invalid_settings(tmp_path):
    good = put(tmp_path / "g.tsv", GOOD)
    with pytest.raises(BadData, match="no column 'body'; the columns are 'text', 'pair', 'label'"):
        load_file_task("own", good, copied(good), "body", "label")
    with pytest.raises(WhichlayersError, match="task 'own': metric = 'bleu'"):
        load_file_task("own", good, copied(good), "text", "label", metric="bleu")
    with pytest.raises(BadData, match="has no examples"):
        load_file_task("own", good, put(tmp_path / "e.tsv", "text\tpair\tlabel\n"), "text", "label")
    one = put(tmp_path / "o.tsv", "text\tlabel\na\tx\nb\tx\n")
    with pytest.raises(BadData, match="every row has the label 'x'"):
        load_file_task("own", one, copied(one), "text", "label")


def test_a_text_column_used_as_label(tmp_path):
    rows = put(tmp_path / "t.tsv", "text\tlabel\n" + "".join(f"text {i}\t{i % 2}\n" for i in range(30)))
    with pytest.raises(BadData, match="column 'text' has 30 different values in 30 rows"):
        load_file_task("own", rows, copied(rows), text="label", label="text")


@pytest.mark.parametrize(("train", "dev"), [("22", "12"), ("12", "22")])
def test_constant_targets(tmp_path, train, dev):
    """A correlation with a constant is undefined."""
    files = [
        put(tmp_path / f"{name}.tsv", "text\tlabel\n" + "".join(f"{name} {d}\t{d}.5\n" for d in digits))
        for name, digits in (("train", train), ("dev", dev))
    ]
    constant = "train" if train == "22" else "dev"
    with pytest.raises(BadData, match=rf"{constant}\.tsv: every row has the label 2\.5; a regression"):
        load_file_task("own", *files, "text", "label")


def test_a_dev_set_with_one_class_gives_a_note(tmp_path):
    train = put(tmp_path / "t.tsv", "text\tlabel\na\tx\nb\ty\n")
    dev = put(tmp_path / "d.tsv", "text\tlabel\nc\ty\nd\ty\n")
    (note,) = load_file_task("own", train, dev, "text", "label").notes
    assert note.startswith("every dev example has the label 'y'")


def test_train_and_dev_must_be_different_files(tmp_path):
    train = put(tmp_path / "t.tsv", GOOD)
    (tmp_path / "link.tsv").symlink_to(train)
    for dev in (train, tmp_path / "link.tsv", tmp_path / "gone" / ".." / "t.tsv"):
        with pytest.raises(WhichlayersError, match="train and dev are the same file"):
            load_file_task("own", train, dev, "text", "label")


@pytest.mark.parametrize(
    ("pair", "count"), [(None, "3 of 4 dev examples are"), ("pair", "1 of 4 dev examples is")]
)
def test_dev_examples_that_are_in_train_are_counted(tmp_path, pair, count):
    train = write(tmp_path / "t.csv", [("a", "1", "x"), ("b", "2", "y"), ("b", "2", "y"), ("c", "3", "x")])
    dev = write(tmp_path / "d.csv", [("a", "1", "y"), ("b", "9", "x"), ("b", "8", "y"), ("d", "3", "x")])
    task = load_file_task("own", train, dev, "text", "label", pair)
    assert task.notes == (f"{count} also in the training file",)
    other = write(tmp_path / "o.csv", [("A", "1", "y"), ("e", "9", "x")])
    assert load_file_task("own", train, other, "text", "label", pair).notes == ()


@pytest.mark.parametrize(("train", "dev"), [("0 1", "0.0 1.0"), ("0.0 1.00", "1 0"), ("1.0 -2", "-2.0 1")])
def test_integers_written_by_pandas_as_decimals(tmp_path, train, dev):
    def labeled(name, labels):
        return put(tmp_path / name, "text,label\n" + "".join(f"{name},{la}\n" for la in labels.split()))

    task = load_file_task("own", labeled("t.csv", train), labeled("d.csv", dev), "text", "label")
    for split, labels in ((task.train, train), (task.evals[""], dev)):
        assert [float(task.label_names[i]) for i in split.labels] == [float(la) for la in labels.split()]
    assert "." not in "".join(task.label_names)


def test_decimals_among_other_labels_are_not_changed(tmp_path):
    train = put(tmp_path / "t.csv", "text,label\na,v1.0\nb,1.0\nc,1\n")
    dev = put(tmp_path / "d.csv", "text,label\nx,1.0\ny,1\n")
    assert load_file_task("own", train, dev, "text", "label").label_names == ("1", "1.0", "v1.0")


@pytest.mark.parametrize(
    ("rows", "note"),
    [
        (["a\0b\tp", "c\tn"], "t.tsv:2: a text contains a NUL character"),
        (["a\0b\tp", "c\0\tn"], "check its encoding, as in 1 other row"),
        (["x" * 1_000_001 + "\tp", "c\tn"], "t.tsv:2: a text has more than 1,000,000 characters"),
        (["a\tp", "c\tP", "d\tn"], "the classes 'P' (1 row) and 'p' (1 row) have similar names"),
        (["a\tgood one", "b\tgood_one"], "the classes 'good_one' (1 row) and 'good one' (1 row)"),
        (
            ["a\tpositive", "b\tpositive", "c\tpositve", "d\tn"],
            "the classes 'positive' (2 rows) and 'positve' (1 row)",
        ),
        (["a\tclass 10", "b\tclass 11", "c\tclass 12"], None),  # names that differ in digits only
        (["x" * 1_000_000 + "\tp", "c\tn"], None),
        (["a\tpositive", "b\tpositive", "c\tpositve", "d\tpositve"], None),  # not rare
    ],
)
def test_unusual_texts_and_classes_are_told_of(tmp_path, rows, note):
    train, dev = tmp_path / "t.tsv", tmp_path / "d.tsv"
    train.write_text("\n".join(["s\tl", *rows]))
    dev.write_text("s\tl\nq1\t" + rows[0].split("\t")[1] + "\nq2\t" + rows[1].split("\t")[1])
    notes = load_file_task("mine", train, dev, text="s", label="l").notes
    assert [n for n in notes if "every dev" not in n] == [n for n in notes if note and note in n]
    assert bool(note) == any("every dev" not in n for n in notes)
    assert not any("0 other" in n for n in notes)


@pytest.mark.parametrize(
    ("labels", "order"),
    [
        (["9", "10"], ("9", "10")),
        (["9", "1" * 18], ("9", "1" * 18)),
        (["9", "1" * 19], ("1" * 19, "9")),  # identifiers rather than numbers
    ],
)
def test_integers_are_sorted_as_numbers_unless_they_are_very_long(tmp_path, labels, order):
    for name in ("t.tsv", "d.tsv"):
        rows = [f"{name} {label}\t{label}" for label in labels]
        (tmp_path / name).write_text("\n".join(["s\tl", *rows]))
    assert (
        load_file_task("m", tmp_path / "t.tsv", tmp_path / "d.tsv", text="s", label="l").label_names == order
    )
