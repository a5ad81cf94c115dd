# ruff: noqa: E501
"""Hostile data files and model configs: each gives its own line and exit code, and nothing is written."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from hostile_study import STUDY
from safetensors.torch import load_file, save_file

PLAN = ("plan", "mine.toml", "--no-measure", "--folder", "new")
# fmt: off
# name and content of the training file, the expected text, the exit code
FILES = [
    ('t.tsv', b'', "t.tsv is empty; expected a header line with the columns 'text' and 'label', then one row per example", 2),
    ('t.tsv', b'\n\n\n', "t.tsv is empty; expected a header line with the columns 'text' and 'label', then one row per example", 2),
    ('t.tsv', b'text\tlabel\n', "t.tsv has no examples; expected a header line with the columns 'text' and 'label', then one row per example", 2),
    ('t.tsv', b'text\tlabel\nx\n', 't.tsv:2: 1 column, expected 2', 2),
    ('t.tsv', b'text\tlabel\nx\ty\tz\n', 't.tsv:2: 3 columns, expected 2', 2),
    ('t.tsv', b'a\tb\nx\ty\n', "t.tsv:1: no column 'text'; the columns are 'a', 'b'", 2),
    ('t.tsv', b'text\ttext\nx\ty\n', "t.tsv:1: 2 columns are named 'text'; rename all but one of them", 2),
    ('t.tsv', b'text,label\nx,y\n', "t.tsv:1: no column 'text'; the columns are 'text,label'. The file seems to be separat", 2),
    ('t.tsv', b'\xff\xfet\x00e\x00x\x00t\x00', 't.tsv is UTF-16; save it as UTF-8', 2),
    ('t.tsv', b'text\tlabel\ncaf\xe9\tgood\n', 't.tsv:2: not UTF-8: byte 0xe9 at position 4; save the file as UTF-8', 2),
    ('t.tsv', b'text\tlabel\rx\ty\r', 't.tsv has old Mac line endings (\\r); save it with \\n line endings', 2),
    ('t.tsv', b'text\tlabel\n\tgood\n', "t.tsv:2: column 'text' is empty", 2),
    ('t.tsv', b'text\tlabel\nx\t\nthe film was good\tgood\nthe plot was bad\tbad\n', "t.tsv:2: no label; known labels: 'bad', 'good'", 2),
    ('t.tsv', b'text\tlabel\nx\tgood\ny\tgood\n', "t.tsv: every row has the label 'good'; a classification task needs at least two diffe", 2),
    ('t.tsv', b'text\tlabel\nx\t1\ny\t2\n', "dev.tsv:2: unknown label 'good'; known labels: '1', '2'", 2),
    ('t.tsv', b"text\tlabel\n" + b"".join(b"row %d\tlabel %d\n" % (i, i) for i in range(40)), "t.tsv: column 'label' has 40 different values in 40 rows, too many for class labels;", 2),
    ('t.tsv', b"\x7fELF\x02\x01\x01" + bytes(100), "t.tsv:1: no column 'text'; the columns are '\\x7fELF\\x02\\x01\\x01\\x00\\x00\\x00\\x00\\x00\\x", 2),
    ('t.tsv', b'\x1f\x8b\x08\x00junk', 't.tsv:1: not UTF-8: byte 0x8b at position 2; save the file as UTF-8', 2),
    ('t.tsv.gz', b'not gzip', "t.tsv.gz cannot be read: Not a gzipped file (b'no'); check the file", 2),
    ('t.tsv.gz', b'\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xff\xff', 't.tsv.gz cannot be read: Error -3 while decompressing data: invalid block type; check', 2),
    ('t.csv', b'text,label\n"x,good\n', 't.csv:2: not valid CSV: a quote is opened but never closed', 2),
    ('t.csv', b'text,label\nx\n', 't.csv:2: 1 column, expected 2', 2),
    ('t.csv', b'text;label\nx;y\n', "t.csv:1: no column 'text'; the columns are 'text;label'. The file seems to be separat", 2),
    ('t.csv', b'text,label\nx,good\ry,bad\n', 't.csv:2: not valid CSV: a \\r without \\n (old Mac line ending); save the file with \\n', 2),
    ('t.csv', b'text,label\n"a"b,good\n', 't.csv:2: not valid CSV: \',\' expected after \'"\'', 2),
    ('t.csv', b'', "t.csv is empty; expected a header line with the columns 'text' and 'label', then one row per example", 2),
    ('t.jsonl', b'', "t.jsonl is empty; expected one JSON object per line, each with the keys 'text' and 'label'", 2),
    ('t.jsonl', b'[]\n', 't.jsonl:1: a JSON list, expected an object with keys text, label', 2),
    ('t.jsonl', b'null\n', 't.jsonl:1: a JSON NoneType, expected an object with keys text, label', 2),
    ('t.jsonl', b'{', 't.jsonl:1: not valid JSON: Expecting property name enclosed in double quotes at chara', 2),
    ('t.jsonl', b'{"text": "x"}\n', "t.jsonl:1: no key 'label'; this row has 'text'", 2),
    ('t.jsonl', b'{"text": 5, "label": "good"}\n', "t.jsonl:1: column 'text' has type int; expected text", 2),
    ('t.jsonl', b'{"text": null, "label": "good"}\n', "t.jsonl:1: column 'text' has no value; expected text", 2),
    ('t.jsonl', b'{"text": "x", "label": ["good"]}\n{"text": "y", "label": "bad"}\n', 't.jsonl:1: the label has type list; expected text, a number or true/false; known labe', 2),
    ('t.jsonl', b'{"text": "x", "label": {}}\n', 't.jsonl:1: the label has type dict; expected text, a number or true/false; known labe', 2),
    ('t.jsonl', b'{"text": "x", "label": NaN}\n{"text": "y", "label": "bad"}\n', "t.jsonl:1: the label is nan, which is no class; known labels: 'bad'", 2),
    ('t.jsonl', b'{"text": "x", "label": "good", "label": "bad"}\n', "t.jsonl:1: the key 'label' is given twice; remove one of them", 2),
    ('t.jsonl', b'{"text": "\\ud800", "label": "good"}\n', "t.jsonl:1: column 'text' contains a character that is not valid Unicode", 2),
    ('t.jsonl', b"[" * 100_000, 't.jsonl:1: not valid JSON: maximum recursion depth exceeded while decoding a JSON arr', 2),
    ('t.jsonl', b'{"text": "x", "label": ' + b"9" * 5000 + b"}\n", 't.jsonl:1: not valid JSON: Exceeds the limit (4300 digits) for integer string convers', 2),
    ('t.jsonl', b'{"text": "x", "label": 1e999}\n{"text": "y", "label": 1}\n', "t.jsonl:1: the label is inf, which is no class; known labels: '1'", 2),
    ('t.parquet', b'', "t.parquet is empty; expected a table with the columns 'text' and 'label' and one row per example", 2),
    ('t.parquet', b'PAR1', 't.parquet cannot be read as Parquet: Parquet file size is 4 bytes, smaller than the m', 2),
    ('t.parquet', b"PAR1" + bytes(100) + b"PAR1", "t.parquet cannot be read as Parquet: Couldn't deserialize thrift: No more data to rea", 2),
    ('t.parquet.gz', b'x', 't.parquet.gz: unknown file format; the extension must be one of .tsv, .csv, .jsonl, .', 2),
    ('t.txt', b'x', 't.txt: unknown file format; the extension must be one of .tsv, .csv, .jsonl, .parquet', 2),
    ('t', b'x', 't: unknown file format; the extension must be one of .tsv, .csv, .jsonl, .parquet (te', 2),
    ('t.xlsx', b'PK\x03\x04', 't.xlsx: unknown file format; the extension must be one of .tsv, .csv, .jsonl, .parque', 2),
]
# key and value in config.json, the expected text, the exit code
CONFIGS = [
    ('hidden_size', 'big', "model/config.json cannot be used: Validation error for field 'hidden_size': TypeError", 2),
    ('hidden_act', 'nope', "model/config.json has hidden_act = 'nope'; known to transformers: gelu, gelu_10, gelu", 2),
    ('num_hidden_layers', 1000000, 'model/config.json says that the model has 1,000,000 layers; at most 1,000 are support', 2),
    ('num_hidden_layers', 0, 'model/config.json has num_hidden_layers = 0, which must be an integer of at least 1', 2),
    ('num_hidden_layers', 2.5, "model/config.json cannot be used: Validation error for field 'num_hidden_layers': Typ", 2),
    ('num_hidden_layers', 3, 'model lack 16 parameters of the encoder (encoder.layer.2.attention.output.LayerNorm.b', 2),
    ('num_hidden_layers', 1, 'model have 16 parameters of layers that config.json does not include (encoder.layer.1', 2),
    ('num_attention_heads', 0, 'model/config.json has num_attention_heads = 0, which must be an integer of at least 1', 2),
    ('num_attention_heads', 3, 'could not be loaded: ValueError: The hidden size (16) is not a multiple', 2),
    ('vocab_size', -4, 'model/config.json has vocab_size = -4, which must be an integer of at least 1', 2),
    ('vocab_size', 1000000000000, 'model/config.json has vocab_size = 1,000,000,000,000, more than the weights (25.8 kB)', 2),
    ('max_position_embeddings', 'x', "model/config.json cannot be used: Validation error for field 'max_position_embeddings", 2),
    ('hidden_dropout_prob', 7, 'model/config.json has hidden_dropout_prob = 7, which must be a number from 0 to below', 2),
    ('layer_norm_eps', 'a', "model/config.json cannot be used: Validation error for field 'layer_norm_eps': TypeEr", 2),
    ('model_type', ['bert'], "model': config.json has no model_type, so the model family is unknown; set it to one", 2),
    ('model_type', 'gpt99', "model': model_type 'gpt99' is not supported", 2),
    ('model_type', None, "model': config.json has no model_type, so the model family is unknown; set it to one", 2),
    ('pad_token_id', 1000000000, 'could not be loaded: AssertionError: Padding_idx must be within num_embeddings', 2),
    ('hidden_size', 1000000000, 'model/config.json has hidden_size = 1,000,000,000, more than the weights (25.8 kB) ca', 2),
    ('intermediate_size', 0, 'encoder.layer.0.intermediate.dense.bias is 32 and should be 0', 2),
    ('dtype', 'float99', "model/config.json cannot be used: module 'torch' has no attribute 'float99'", 2),
    ('auto_map', {'AutoModel': 'evil.Model'}, 'disk  results 20.4 kB; temporarily checkpoints up to 785.7 kB', 0),
]
# fmt: on


@pytest.mark.parametrize(("name", "content", "expected", "code"), FILES)
def test_a_hostile_data_file(check, name, content, expected, code):
    Path(name).write_bytes(content)
    Path("mine.toml").write_text(STUDY.replace("train.tsv", name))
    check(*PLAN, expected=expected, code=code)


@pytest.mark.parametrize(("key", "value", "expected", "code"), CONFIGS)
def test_a_hostile_config(check, key, value, expected, code):
    config = Path("model/config.json")
    config.write_text(json.dumps(json.loads(config.read_text()) | {key: value}))
    check(*PLAN, expected=expected, code=code)


class RunsCode:
    def __reduce__(self):
        return os.mkdir, ("executed",)


@pytest.mark.parametrize(
    ("save", "expected", "code"),
    [
        (
            lambda w, f: torch.save(w, f, _use_new_zipfile_serialization=False),
            "incremental",
            0,
        ),  # torch < 1.6
        (lambda w, f: torch.save(w, f), "incremental", 0),
        (
            lambda w, f: torch.save({"a": RunsCode()}, f),
            "objects other than tensors, which are never loaded",
            2,
        ),
        (lambda w, f: torch.save(5, f), "cannot be read as weights saved by torch", 2),
        (lambda w, f: Path(f).write_bytes(b"abc" * 1000), "pytorch_model.bin", 2),
    ],
)
def test_pickle_files(check, save, expected, code):
    weights = load_file("model/model.safetensors")
    Path("model/model.safetensors").unlink()
    save(weights, "model/pytorch_model.bin")
    check(*PLAN, expected="only as a pickle (.bin), and loading a pickle can run arbitrary code", code=2)
    Path("mine.toml").write_text(STUDY.replace('["./model"]', '[{ name = "./model", allow_pickle = true }]'))
    output = check(*PLAN, expected="", code=code)
    assert expected in output.lower()
    assert not Path("executed").exists()


def test_weights_that_are_not_finite_numbers(check):
    weights = load_file("model/model.safetensors")
    weights["encoder.layer.0.output.dense.weight"][0, 0] = float("nan")
    save_file(weights, "model/model.safetensors", metadata={"format": "pt"})
    check(*PLAN, expected="not finite numbers, in 1 parameter (encoder.layer.0.output.dense.weight)", code=2)
