# ruff: noqa: E501
"""Hostile study files: each gives its own line and exit code, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from hostile_study import STUDY

PLAN = ("plan", "mine.toml", "--no-measure", "--folder", "new")
# a line of the study file, what it is replaced by, the expected text, the exit code
# fmt: off
KEYS = [
    ('trials = 2', 'trials = 0', 'mine.toml:3: trials = 0: must be an integer from 1 to 10,000, or a table of limits on', 2),
    ('trials = 2', 'trials = -1', 'mine.toml:3: trials = -1: must be an integer from 1 to 10,000, or a table of limits o', 2),
    ('trials = 2', 'trials = 1.5', 'mine.toml:3: trials = 1.5: must be an integer from 1 to 10,000, or a table of limits', 2),
    ('trials = 2', 'trials = true', 'mine.toml:3: trials = true: must be an integer from 1 to 10,000, or a table of limits', 2),
    ('trials = 2', 'trials = "two"', 'mine.toml:3: trials = "two": must be an integer from 1 to 10,000, or a table of limit', 2),
    ('trials = 2', 'trials = 1000000', 'mine.toml:3: trials = 1000000: must be an integer from 1 to 10,000, or a table of lim', 2),
    ('trials = 2', 'trials = 10000000000000000000000', 'mine.toml:3: trials = 10000000000000000000000: must be an integer from 1 to 10,000, o', 2),
    ('trials = 2', 'trials = { 500 = 50 }', 'mine.toml:3: trials = { 500 = 50 }: must be an integer from 1 to 10,000, or a table o', 2),
    ('trials = 2', 'trials = { 500 = 50, default = 99999 }', 'mine.toml:3: trials = { 500 = 50, default = 99999 }: must be an integer from 1 to 10,', 2),
    ('trials = 2', 'trials = { a = 1, default = 2 }', 'mine.toml:3: trials = { a = 1, default = 2 }: must be an integer from 1 to 10,000, or', 2),
    ('trials = 2', "trials = { '²' = 1, default = 2 }", 'mine.toml:3: trials = { "²" = 1, default = 2 }: must be an integer from 1 to 10,000,', 2),
    ('trials = 2', 'trials = []', 'mine.toml:3: trials = []: must be an integer from 1 to 10,000, or a table of limits o', 2),
    ('trials = 2', 'trials = 10000\nvary_apart = 3', 'mine.toml:4: vary_apart = 3: must be true or false', 2),
    ('seed = 0', 'seed = -1', 'mine.toml:2: seed = -1: must be at least 0', 2),
    ('seed = 0', 'seed = 9223372036854775807', 'mine.toml:2: seed = 9223372036854775807: must be at most 4,611,686,018,427,387,904', 2),
    ('seed = 0', 'seed = nan', 'mine.toml:2: seed = nan: must be an integer', 2),
    ('seed = 0', 'seed = "0"', 'mine.toml:2: seed = "0": must be an integer', 2),
    ('seed = 0', 'vary = ["subset", "subset"]', 'mine.toml:2: vary = ["subset", "subset"]: subset is listed twice', 2),
    ('seed = 0', 'vary = []', 'mine.toml:2: vary = []: at least one is required', 2),
    ('seed = 0', 'vary = ["weather"]', 'mine.toml:2: vary[0] = "weather": allowed: "subset", "order", "init", "head", "dropou', 2),
    ('seed = 0', 'vary = ["head"]\nvary_apart = true', 'mine.toml:3: vary_apart = true: needs at least two components in vary', 2),
    ('train_sizes = [8]', 'train_sizes = [0]', 'mine.toml:4: train_sizes[0] = 0: allowed: a number of examples (500), a fraction betw', 2),
    ('train_sizes = [8]', 'train_sizes = []', 'mine.toml:4: train_sizes = []: at least one is required', 2),
    ('train_sizes = [8]', 'train_sizes = [1000000000000]', 'mine.toml:4: train_sizes[0] = 1000000000000: reviews has 24 training examples; allowe', 2),
    ('train_sizes = [8]', 'train_sizes = [1.5]', 'mine.toml:4: train_sizes[0] = 1.5: allowed: a number of examples (500), a fraction be', 2),
    ('train_sizes = [8]', 'train_sizes = [inf]', 'mine.toml:4: train_sizes[0] = inf: allowed: a number of examples (500), a fraction be', 2),
    ('train_sizes = [8]', 'train_sizes = ["most"]', 'mine.toml:4: train_sizes[0] = "most": allowed: a number of examples (500), a fraction', 2),
    ('train_sizes = [8]', 'train_sizes = [[8]]', 'mine.toml:4: train_sizes[0] = [8]: allowed: a number of examples (500), a fraction be', 2),
    ('train_sizes = [8]', 'train_sizes = [false]', 'mine.toml:4: train_sizes[0] = false: allowed: a number of examples (500), a fraction', 2),
    ('models = ["./model"]', 'models = []', 'mine.toml:5: models = []: at least one is required', 2),
    ('models = ["./model"]', 'models = [""]', 'mine.toml:5: models[0] = "": must not be an empty string', 2),
    ('models = ["./model"]', 'models = [7]', 'mine.toml:5: models[0] = 7: must be a table', 2),
    ('models = ["./model"]', 'models = ["./nowhere"]', "nowhere': the path does not exist. Give a hub id (org/name), a folder (./my-model) or", 2),
    ('models = ["./model"]', 'models = ["./train.tsv"]', "train.tsv': the path is a file, not a folder. Give a hub id (org/name), a folder (./m", 2),
    ('models = ["./model"]', 'models = ["no such model!"]', "model 'no such model!' is neither an existing folder nor a valid hub id. Give a hub i", 2),
    ('models = ["./model"]', 'models = ["nobody/nothing"]', "model 'nobody/nothing' is not (completely) in the local cache, and HF_HUB_OFFLINE is", 2),
    ('models = ["./model"]', 'models = ["package:nothing-at-all"]', "package 'nothing-at-all' is not installed: run `pip install nothing-at-all`.", 2),
    ('models = ["./model"]', 'models = ["package:../../etc"]', "package '../../etc' is not installed: run `pip install ../../etc`.", 2),
    ('models = ["./model"]', 'models = ["./model", "./model"]', 'mine.toml:5: models[1].name: ./model is listed twice', 2),
    ('models = ["./model"]', 'models = [{ name = "./model", revision = "main" }]', "model': revision 'main' cannot be used with a folder or a package; only models on the", 2),
    ('models = ["./model"]', 'models = [{ name = "./model", allow_pickle = "yes" }]', 'mine.toml:5: models[0].allow_pickle = "yes": must be true or false', 2),
    ('models = ["./model"]', 'models = [{ name = "./model", trust_remote_code = true }]', 'mine.toml:5: models[0].trust_remote_code: unknown key; allowed: name, revision, allow', 2),
    ('models = ["./model"]', 'models = ["/proc/self/mem"]', 'the path is a file, not a folder. Give a hub id', 2),
    ('models = ["./model"]', 'models = ["."]', ' has no config.json, so it is not a model folder. Give a hub id (org/name), a folder', 2),
    ('experiments = ["incremental"]', 'experiments = []', 'mine.toml:6: experiments = []: at least one is required', 2),
    ('experiments = ["incremental"]', 'experiments = ["decremental"]', 'mine.toml:6: experiments[0] = "decremental": must be a kind of experiment; did you me', 2),
    ('experiments = ["incremental"]', 'experiments = [{ kind = "incremental", keep = [3] }]', 'model has 2 layers: 0 to 2 layers can be kept', 2),
    ('experiments = ["incremental"]', 'experiments = [{ kind = "incremental", keep = [-1] }]', 'mine.toml:6: experiments[0].keep = [-1]: allowed: "all", or a list of integers of at', 2),
    ('experiments = ["incremental"]', 'experiments = [{ kind = "localized", block = 99 }]', 'model has 2 layers: a block can have 1 to 2 layers', 2),
    ('experiments = ["incremental"]', 'experiments = [{ kind = "permutation", permutations = 1000000 }]', 'mine.toml:6: experiments[0].permutations = 1000000: must be at most 10,000', 2),
    ('experiments = ["incremental"]', 'experiments = [{ kind = "incremental", tasks = ["reviewz"] }]', 'mine.toml:6: experiments[0].tasks: the study has no reviewz; did you mean `reviews`?', 2),
    ('experiments = ["incremental"]', 'experiments = [{}]', 'mine.toml:6: experiments[0].kind: must be a kind of experiment; allowed: "incremental', 2),
    ('experiments = ["incremental"]', 'experiments = [3]', 'mine.toml:6: experiments[0] = 3: must be a table', 2),
    ('experiments = ["incremental"]', 'experiments = ["word_probing"]', 'mine.toml:6: experiments[0].kind: word_probing requires a [[corpora]] table, such as', 2),
    ('experiments = ["incremental"]', 'experiments = [{ kind = ["incremental"] }]', 'mine.toml:6: experiments[0].kind = ["incremental"]: must be a kind of experiment; all', 2),
    ('train = "train.tsv"', 'train = "dev.tsv"', 'mine.toml:10: tasks[0].dev = "dev.tsv": the same file as `train`; dev examples must n', 2),
    ('train = "train.tsv"', 'train = "nowhere.tsv"', 'nowhere.tsv: no such file; check the path', 2),
    ('train = "train.tsv"', 'train = "."', 'is a folder; give a file', 2),
    ('train = "train.tsv"', 'train = "/dev/zero"', '/dev/zero: unknown file format; the extension must be one of .tsv, .csv, .jsonl, .par', 2),
    ('train = "train.tsv"', 'train = "mine.toml"', 'mine.toml: unknown file format; the extension must be one of .tsv, .csv, .jsonl, .par', 2),
    ('train = "train.tsv"', 'train = 5', 'mine.toml:9: tasks[0].train = 5: must be a string in quotes', 2),
    ('train = "train.tsv"', '', 'mine.toml:7: tasks[0].train: `train` is required for your own files', 2),
    ('train = "train.tsv"', 'train = "a\\u0000b.tsv"', 'must not contain a NUL character', 2),
    ('text = "text"', 'text = "body"', "train.tsv:1: no column 'body'; the columns are 'text', 'label'", 2),
    ('text = "text"', 'text = "label"', 'mine.toml:12: tasks[0].label = "label": the same column as `text`; give different col', 2),
    ('text = "text"', 'text = ""', 'mine.toml:11: tasks[0].text = "": must not be an empty string', 2),
    ('label = "label"', 'label = "labels"', "train.tsv:1: no column 'labels' (did you mean 'label'?); the columns are 'text', 'lab", 2),
    ('label = "label"', 'label = "label"\nkind = "ranking"', 'mine.toml:13: tasks[0].kind = "ranking": allowed: "classification", "regression"', 2),
    ('label = "label"', 'label = "label"\nkind = "regression"', "train.tsv:2: label 'good' is not a number", 2),
    ('label = "label"', 'label = "label"\nmetric = "bleu"', 'mine.toml:13: tasks[0].metric = "bleu": allowed: "accuracy", "f1", "macro_f1", "mcc",', 2),
    ('label = "label"', 'label = "label"\nsource = "hub"', 'mine.toml:13: tasks[0].source = "hub": only for GLUE tasks; remove it and give paths', 2),
    ('label = "label"', 'label = "label"\npair = "text"', 'mine.toml:13: tasks[0].pair = "text": the same column as `text`; give different colum', 2),
    ('epochs = 1', 'epochs = 0', 'mine.toml:14: training.epochs = 0: must be an integer from 1 to 10,000, or a table of', 2),
    ('epochs = 1', 'epochs = 100000000', 'mine.toml:14: training.epochs = 100000000: must be an integer from 1 to 10,000, or a', 2),
    ('epochs = 1', 'batch_size = 0', 'mine.toml:14: training.batch_size = 0: must be at least 1', 2),
    ('epochs = 1', 'batch_size = 10000000000000', 'mine.toml:14: training.batch_size = 10000000000000: must be at most 1,000,000,000', 2),
    ('epochs = 1', 'lr = 0', 'mine.toml:14: training.lr = 0: must be greater than 0', 2),
    ('epochs = 1', 'lr = nan', 'mine.toml:14: training.lr = nan: must be a finite number', 2),
    ('epochs = 1', 'lr = inf', 'mine.toml:14: training.lr = inf: must be a finite number', 2),
    ('epochs = 1', 'dropout = 1.0', 'mine.toml:14: training.dropout = 1.0: must be less than 1', 2),
    ('epochs = 1', 'betas = [0.9]', 'mine.toml:14: training.betas = [0.9]: must be two numbers, such as [0.9, 0.999]', 2),
    ('epochs = 1', 'betas = [0.9, 1.0]', 'mine.toml:14: training.betas[1] = 1.0: must be less than 1', 2),
    ('epochs = 1', 'warmup = 2', 'mine.toml:14: training.warmup = 2: must be at most 1', 2),
    ('epochs = 1', 'schedule = "cosine"', 'mine.toml:14: training.schedule = "cosine": allowed: "linear", "constant"', 2),
    ('max_length = 16', 'max_length = 1', 'mine.toml:15: training.max_length = 1: must be at least 2', 2),
    ('max_length = 16', 'max_length = 33', 'model supports at most 32 tokens: set it to 32 or less', 2),
    ('max_length = 16', 'max_length = 999999999999', 'mine.toml:15: training.max_length = 999999999999: must be at most 1,000,000,000', 2),
    ('name = "mine"', 'name = ""', 'mine.toml:1: name = "": must not be an empty string', 2),
    ('name = "mine"', '', 'mine.toml: name: this key is required', 2),
    ('name = "mine"', 'name = "mine"\nname = "mine"', 'mine.toml:2:14: invalid TOML: Cannot overwrite a value, in: name = "mine"', 2),
    ('name = "mine"', 'name = ["mine"]', 'mine.toml:1: name = ["mine"]: must be a string in quotes', 2),
    ('name = "mine"', 'nmae = "mine"', 'mine.toml: name: this key is required', 2),
    ('name = "mine"', 'name = "mine"\nepochs = 3', 'mine.toml:2: epochs: unknown key; `epochs` belongs in [training]', 2),
]
# the whole file, the expected text, the exit code
FILES = [
    ('', 'mine.toml: name: this key is required', 2),
    ('name', "mine.toml:1: invalid TOML: Expected '=' after a key in a key/value pair (at end of do", 2),
    ('name = ', 'mine.toml:1: invalid TOML: Invalid value (at end of document)', 2),
    ('= 1', 'mine.toml:1:1: invalid TOML: Invalid statement, in: = 1', 2),
    ('[', 'mine.toml:1: invalid TOML: Invalid initial character for a key part (at end of docume', 2),
    ('[[', 'mine.toml:1: invalid TOML: Invalid initial character for a key part (at end of docume', 2),
    (']', 'mine.toml:1:1: invalid TOML: Invalid statement, in: ]', 2),
    ('a = [', 'mine.toml:1: invalid TOML: Invalid value (at end of document)', 2),
    ('a = {', 'mine.toml:1: invalid TOML: Invalid initial character for a key part (at end of docume', 2),
    ("a = 'x", 'mine.toml:1: invalid TOML: Expected "\'" (at end of document)', 2),
    ('a = "\\q"', 'mine.toml:1:8: invalid TOML: Unescaped \'\\\' in a string, in: a = "\\q"', 2),
    ('a = 1 2', 'mine.toml:1:7: invalid TOML: Expected newline or end of document after a statement, i', 2),
    ('a = 99999-01-01', 'mine.toml:1:10: invalid TOML: Expected newline or end of document after a statement,', 2),
    ('a = 0x', 'mine.toml:1:6: invalid TOML: Expected newline or end of document after a statement, i', 2),
    ("a = " + "9" * 5000, 'mine.toml:1: invalid TOML: Exceeds the limit (4300 digits) for integer string convers', 2),
    ("a = " + "[" * 5000, 'mine.toml:1: invalid TOML: brackets or keys are nested more than 64 deep', 2),
    ("a = " + "{b=" * 5000, 'mine.toml:1: invalid TOML: brackets or keys are nested more than 64 deep', 2),
    ("a" + ".b" * 20_000 + " = 1", 'mine.toml:1: invalid TOML: brackets or keys are nested more than 64 deep', 2),
    ("[a" + ".b" * 20_000 + "]", 'mine.toml:1: invalid TOML: brackets or keys are nested more than 64 deep', 2),
    ('\x00', 'mine.toml:1:1: invalid TOML: Invalid statement, in: \x00', 2),
    ('a = "\x00"', 'mine.toml:1:6: invalid TOML: Illegal character \'\\x00\', in: a = "\x00"', 2),
    ('a = 1\r b = 2', 'mine.toml: name: this key is required', 2),
    ('\ufeff\ufeff a = 1', 'mine.toml:1:1: invalid TOML: Invalid statement, in: \ufeff a = 1', 2),
    ("#" * 2_000_000, 'mine.toml: invalid TOML: 2,000,000 characters; a study file has at most 1,000,000', 2),
    ("a = '''xxxxxxxxxx", 'mine.toml:1: invalid TOML: Expected "\'\'\'" (at end of document)', 2),
    ("name = 'x'\n[name]", 'mine.toml:2:6: invalid TOML: Cannot overwrite a value, in: [name]', 2),
    ("[[models]]\nname='a'\n[models]", "mine.toml:3:8: invalid TOML: Cannot declare ('models',) twice, in: [models]", 2),
    ("models = [{}]\nname = 'x'", 'mine.toml: experiments: this key is required', 2),
    ('tasks = 1', 'mine.toml: name: this key is required', 2),
]
# fmt: on


@pytest.mark.parametrize(("line", "replaced_by", "expected", "code"), KEYS)
def test_a_hostile_key(check, line, replaced_by, expected, code):
    assert line in STUDY
    Path("mine.toml").write_text(STUDY.replace(line, replaced_by, 1))
    check(*PLAN, expected=expected, code=code)


@pytest.mark.parametrize(("content", "expected", "code"), FILES)
def test_a_hostile_file(check, content, expected, code):
    Path("mine.toml").write_text(content)
    check(*PLAN, expected=expected, code=code)


def test_a_study_with_more_trials_than_can_be_created_says_how_many(check):
    Path("mine.toml").write_text(
        STUDY.replace("trials = 2", "trials = 10000").replace("[8]", "[1, 2, 3, 4, 5, 6, 7, 8]")
    )
    check(
        *PLAN,
        expected="the study has 240,000 trials (before duplicates are removed), more than 100,000",
        code=2,
    )


def test_a_file_that_is_not_text(check):
    Path("mine.toml").write_bytes(b'name = "\xff"')
    check(*PLAN, expected="mine.toml:1: the file is not UTF-8; save it as UTF-8", code=2)


def test_links_that_lead_nowhere(check, project):
    for name in ("loop.toml", "train.tsv"):
        Path(name).unlink(missing_ok=True)
        Path(name).symlink_to(name)
    check("plan", "loop.toml", expected="loop.toml: Too many levels of symbolic links", code=2)
    check(*PLAN, expected="train.tsv is a symbolic link that does not lead to a file; check the link", code=2)
