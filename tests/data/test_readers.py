"""Rows and line numbers in every format, checked against the csv and json modules on the complete text."""

import csv
import gzip
import io
import json

import numpy as np
import pytest

from whichlayers.data import readers
from whichlayers.data.readers import check_columns, column_names, count_rows, read_records
from whichlayers.data.tasks import BadData, BadRows
from whichlayers.errors import WhichlayersError


def read(path, columns=("text", "label"), header=None):
    bad = BadRows(str(path))
    return list(read_records(path, list(columns), bad, header, bad)), bad


def put(path, content):
    data = content if isinstance(content, bytes) else content.encode()
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wb") as handle:
        handle.write(data)
    return path


@pytest.mark.parametrize("ending", [".tsv", ".tsv.gz"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
@pytest.mark.parametrize("last", ["", "newline", "blank lines"])
def test_tsv(tmp_path, ending, newline, mark, last):
    lines = ["id\ttext\tlabel", '1\tsay "no\t0', '2\t"\t1', "", "3\tone\u2028two\x85three\t1"]
    content = mark + newline.join(lines) + {"": "", "newline": newline, "blank lines": newline * 3}[last]
    rows, bad = read(put(tmp_path / f"x{ending}", content))
    assert rows == [(2, ['say "no', "0"]), (3, ['"', "1"]), (5, ["one\u2028two\x85three", "1"])]
    assert not bad.count


def test_tsv_without_a_header(tmp_path):
    path = put(tmp_path / "x.tsv", "gj\t1\t\tA.\ngj\t0\t*\tB.\n")
    assert read(path, ("d", "b"), header=("a", "b", "c", "d"))[0] == [(1, ["A.", "1"]), (2, ["B.", "0"])]


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_csv_counts_lines_inside_quotes(tmp_path, newline):
    lines = ["text,label", '"one', 'two, ""three""",0', "", "plain,1", '"a', "b", 'c",1,extra', "last,0"]
    path = put(tmp_path / "x.csv", newline.join(lines))
    rows, bad = read(path)
    assert rows == [(2, [f'one{newline}two, "three"', "0"]), (5, ["plain", "1"]), (9, ["last", "0"])]
    assert bad.first == [(6, "3 columns, expected 2")]


def test_csv_fuzz_against_the_csv_module_on_the_complete_text(tmp_path):
    rng = np.random.default_rng(0)
    pieces = [*'ab,"\n\r \té漢☃;', "\r\n", '""']
    for round_ in range(60):
        table = [
            ["".join(rng.choice(pieces, rng.integers(1, 12))), str(rng.integers(0, 3))] for _ in range(8)
        ]
        out = io.StringIO(newline="")
        csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\r\n" if round_ % 2 else "\n").writerows(
            [["text", "label"], *table]
        )
        path = put(tmp_path / "x.csv", out.getvalue())
        rows, bad = read(path)
        assert [values for _, values in rows] == table
        assert not bad.count
        on_disk = path.read_bytes().split(b"\n")
        for line, (text, _) in rows:
            first = text.split("\n")[0].replace('"', '""').encode()
            assert on_disk[line - 1].startswith(b'"' + first)


def test_csv_accepts_long_fields_and_restores_the_limit_of_the_csv_module(tmp_path):
    limit = csv.field_size_limit()
    long = "x" * 300_000
    assert read(put(tmp_path / "x.csv", f"text,label\n{long},1\n"))[0] == [(2, [long, "1"])]
    assert csv.field_size_limit() == limit


def test_csv_with_an_unclosed_quote(tmp_path):
    rows, bad = read(put(tmp_path / "x.csv", 'text,label\na,1\n"b,0\nc,1\n'))
    assert rows == [(2, ["a", "1"])]
    assert bad.first[0][0] == 3
    assert bad.first[0][1] == "not valid CSV: a quote is opened but never closed"


@pytest.mark.parametrize("read_header", [read, column_names])
def test_a_csv_header_with_an_unclosed_quote_is_not_reported_as_an_empty_file(tmp_path, read_header):
    with pytest.raises(BadData, match=r"x\.csv:1: not valid CSV: a quote is opened but never closed"):
        read_header(put(tmp_path / "x.csv", 'text,"label\na,pos\nb,neg\n'))


def test_a_header_that_is_not_utf8(tmp_path):
    with pytest.raises(BadData, match=r"x\.csv:1: not UTF-8: .* save the file as UTF-8"):
        read(put(tmp_path / "x.csv", "té,label\na,0\n".encode("latin-1")), ("té", "label"))
    rows, bad = read(put(tmp_path / "x.csv", "text,label,é\na,0,1\n".encode("latin-1")))
    assert (rows, bad.count) == ([(2, ["a", "0"])], 1)  # not one of the requested columns


@pytest.mark.parametrize("extension", ["csv", "tsv", "jsonl"])
@pytest.mark.parametrize("last", ["", "\r"])
def test_old_mac_line_endings(tmp_path, extension, last):
    lines = ['{"text": "a", "label": 0}'] * 2 if extension == "jsonl" else ["text,label", "a,0"]
    content = "\r".join(lines).replace(",", "\t" if extension == "tsv" else ",") + last
    with pytest.raises(BadData, match=r"old Mac line endings .* save it with \\n"):
        read(put(tmp_path / f"x.{extension}", content))


def test_an_old_mac_line_ending_among_others(tmp_path):
    _, bad = read(put(tmp_path / "x.csv", "text,label\na,0\rb,1\nc,1\n"))
    assert bad.first[0][0] == 2
    assert "old Mac line ending" in bad.first[0][1]


@pytest.mark.parametrize(
    ("extension", "mark", "hint"),
    [
        ("csv", ";", "seems to be separated by semicolons; save it with commas"),
        ("csv", "\t", "seems to be separated by tabs; save it with commas"),
        ("tsv", ",", "seems to be separated by commas; save it with tabs"),
        ("csv", "-", "'text-label'$"),
    ],
)
def test_another_separator(tmp_path, extension, mark, hint):
    with pytest.raises(BadData, match=rf"no column 'text'; the columns are .*{hint}"):
        read(put(tmp_path / f"x.{extension}", f"text{mark}label\na{mark}0\n"))


def test_checking_columns_reads_only_the_first_rows(tmp_path):
    path = put(tmp_path / "x.csv", 'text,label\na,0\n"b\n')
    check_columns(path, ["text", "label"])
    with pytest.raises(BadData, match="no column 'txt'"):
        check_columns(path, ["txt", "label"])
    with pytest.raises(BadData, match="has no examples"):
        check_columns(put(tmp_path / "y.csv", "text,label\n"), ["text", "label"])
    with pytest.raises(BadData, match="is empty; expected a header line with the column"):
        check_columns(put(tmp_path / "y.csv", ""), ["text", "label"])
    rows = put(tmp_path / "y.jsonl", '{"text": "a"}\n')
    check_columns(rows, ["text"])
    with pytest.raises(BadData, match="no key 'label'; this row has 'text'"):
        check_columns(rows, ["text", "label"])


def test_jsonl(tmp_path):
    objects = [{"text": "a\nb", "label": 1, "more": []}, {"label": "x", "text": "é"}]
    content = "\n\n".join(json.dumps(o) for o in objects)
    rows, bad = read(put(tmp_path / "x.jsonl.gz", content))
    assert rows == [(1, ["a\nb", 1]), (3, ["é", "x"])]
    assert not bad.count


def test_a_key_that_no_row_of_a_jsonl_file_has_is_one_error(tmp_path):
    path = put(tmp_path / "x.jsonl", '\n{"text": "a", "score": 1}\n{"text": "b", "score": 2}\n')
    with pytest.raises(BadData) as raised:
        list(read(path, ["text", "scor"]))
    assert str(raised.value) == (
        f"{path}:2: no key 'scor' (did you mean 'score'?); this row has 'text', 'score'. No row has this key: name one "
        "that the rows have"
    )
    some = put(tmp_path / "y.jsonl", '{"text": "a", "score": 1}\n{"text": "b"}\n')
    rows, bad = read(some, ["text", "score"])
    assert len(rows) == 1
    assert bad.first == [(2, "no key 'score'; this row has 'text'")]


def test_jsonl_bad_lines(tmp_path):
    lines = ['{"text": "a", "label": 1}', "{oops", "[1]", '{"text": "b"}', "[" * 100_000, "{}"]
    rows, bad = read(put(tmp_path / "x.jsonl", "\n".join(lines)))
    assert rows == [(1, ["a", 1])]
    assert bad.count == 5
    assert [line for line, _ in bad.first] == [2, 3, 4, 5, 6]
    messages = dict(bad.first)
    name = "Expecting property name enclosed in double quotes"
    assert messages[2] == f"not valid JSON: {name} at character 2"
    assert "a JSON list" in messages[3]
    assert "no key 'label'; this row has 'text'" in messages[4]
    assert "not valid JSON" in messages[5]


def test_an_incomplete_json_line(tmp_path):
    _, bad = read(put(tmp_path / "x.jsonl", '{"text": "a", "label": 1}\n{"text": "b"\n'))
    assert bad.first == [(2, "not valid JSON: Expecting ',' delimiter at character 13")]


def test_parquet(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"label": [0, None, 2], "other": [1, 2, 3], "text": ["a", "b", None]})
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=2)
    assert read(tmp_path / "x.parquet")[0] == [(1, ["a", 0]), (2, ["b", None]), (3, [None, 2])]
    with pytest.raises(BadData, match=r"no column 'txt' \(did you mean 'text'\?\)"):
        read(tmp_path / "x.parquet", ("txt", "label"))
    with pytest.raises(BadData, match="cannot be read as Parquet"):
        read(put(tmp_path / "y.parquet", "text,label\n"))


def test_bytes_that_are_not_utf8(tmp_path):
    content = b"text\tlabel\nfine\t0\ncaf\xe9\t1\nfine\t1\n\xff\xff\t0\n"
    _, bad = read(put(tmp_path / "x.tsv", content))
    assert bad.count == 2
    assert bad.first == [
        (3, "not UTF-8: byte 0xe9 at position 4; save the file as UTF-8"),
        (5, "not UTF-8: byte 0xff at position 1; save the file as UTF-8"),
    ]


def test_utf16_is_recognized(tmp_path):
    with pytest.raises(BadData, match="UTF-16; save it as UTF-8"):
        read(put(tmp_path / "x.tsv", "text\tlabel\na\t0\n".encode("utf-16")))


def test_a_truncated_gzip_file(tmp_path):
    path = put(tmp_path / "x.tsv.gz", "text\tlabel\n" + "a b c\t0\n" * 1000)
    path.write_bytes(path.read_bytes()[:-12])
    with pytest.raises(BadData, match=r"x\.tsv\.gz cannot be read"):
        read(path)
    path.write_bytes(b"text\tlabel\n")
    with pytest.raises(BadData, match="cannot be read"):
        read(path)


def test_columns(tmp_path):
    path = put(tmp_path / "x.tsv", "\ufeffSentence\tlabel \tlabel2\tlabel2\na\t0\tx\ty\n")
    assert column_names(path) == ["Sentence", "label", "label2", "label2"]
    with pytest.raises(
        BadData, match=r"x\.tsv:1: no column 'sentence' \(did you mean 'Sentence'\?\); the columns are"
    ):
        read(path, ("sentence", "label"))
    with pytest.raises(BadData, match="2 columns are named 'label2'; rename all but one"):
        read(path, ("Sentence", "label2"))
    with pytest.raises(BadData, match="is empty; expected a header line"):
        read(put(tmp_path / "y.tsv", ""))


@pytest.mark.parametrize("name", ["x.txt", "x", "x.json", "x.parquet.gz", "x.gz"])
def test_file_extensions(tmp_path, name):
    with pytest.raises(WhichlayersError, match=r"\.tsv, \.csv, \.jsonl, \.parquet"):
        read(put(tmp_path / name, "text\tlabel\n"))


def test_a_file_that_does_not_exist(tmp_path):
    with pytest.raises(WhichlayersError, match=r"gone\.tsv: no such file"):
        read(tmp_path / "gone.tsv")


@pytest.mark.parametrize("ending", [".tsv", ".csv", ".csv.gz", ".jsonl", ".parquet"])
def test_counting_agrees_with_reading(tmp_path, ending, monkeypatch):
    path = tmp_path / f"x{ending}"
    if ending == ".parquet":
        pytest.importorskip("pyarrow.parquet")
        import pandas as pd

        pd.DataFrame({"text": ["a"] * 7, "label": ["0"] * 7}).to_parquet(path)
    elif ending == ".jsonl":
        put(path, '{"text": "a", "label": "0"}\n\n' * 7)
    else:
        mark = "," if ".csv" in ending else "\t"
        text = '"one\ntwo"' if ".csv" in ending else "one"
        put(path, f"text{mark}label\n" + f"{text}{mark}0\n\n" * 7)
    assert count_rows(path) == len(read(path)[0]) == 7
    monkeypatch.setattr(readers, "MAX_BYTES_TO_COUNT", 1)
    assert count_rows(path) == (7 if ending == ".parquet" else None)


def test_counting_rows_of_missing_unknown_and_empty_files(tmp_path):
    with pytest.raises(WhichlayersError, match="no such file"):
        count_rows(tmp_path / "x.csv")
    with pytest.raises(WhichlayersError, match="extension must be one of"):
        count_rows(put(tmp_path / "x.txt", "a"))
    assert count_rows(put(tmp_path / "x.csv", "")) == 0
