"""GLUE from real files (official row counts), from small files with known flaws, and from a fake hub."""

import csv
import gzip

import datasets
import numpy as np
import pytest

from whichlayers.catalog import GLUE
from whichlayers.data.glue import load_glue
from whichlayers.data.tasks import BadData
from whichlayers.errors import WhichlayersError


@pytest.fixture
def glue(shared):
    return shared / "data" / "glue"


@pytest.fixture
def subsets(glue):
    """A folder whose QNLI and MNLI files are not those of GLUE."""
    if not (glue / "QNLI" / "train_subset.tsv").is_file():
        pytest.skip("no subsets of QNLI and MNLI in the GLUE data")
    return glue


@pytest.mark.parametrize("name", ["SST-2", "CoLA", "RTE", "MRPC", "STS-B"])
def test_real_files_have_the_official_rows(glue, name):
    task = load_glue(name, glue)
    assert (len(task.train), len(task.evals[""])) == GLUE[name].official_rows
    assert task.notes == ()
    assert all(text.strip() for text in task.train.texts)


def test_official_label_counts(glue):
    cola, mrpc = load_glue("CoLA", glue), load_glue("MRPC", glue)
    assert np.bincount(cola.train.labels).tolist() == [2_528, 6_023]
    assert np.bincount(cola.evals[""].labels).tolist() == [322, 721]
    assert np.bincount(mrpc.train.labels).tolist() == [1_194, 2_474]
    assert np.bincount(mrpc.evals[""].labels).tolist() == [129, 279]
    stsb = load_glue("STS-B", glue)
    assert stsb.kind == "regression"
    assert stsb.train.labels.dtype == np.float32
    assert (stsb.train.labels.min(), stsb.train.labels.max()) == (0.0, 5.0)
    assert stsb.train.labels[:3] == pytest.approx([5.0, 3.8, 3.8])


def test_real_rows_against_a_csv_reader_with_quoting_off(glue):
    with open(glue / "MRPC" / "dev.tsv", encoding="utf-8-sig", newline="") as handle:
        rows = list(csv.DictReader(handle, delimiter="\t", quoting=csv.QUOTE_NONE))
    dev = load_glue("MRPC", glue).evals[""]
    assert dev.texts == [row["#1 String"] for row in rows]
    assert dev.pairs == [row["#2 String"] for row in rows]
    assert dev.labels.tolist() == [int(row["Quality"]) for row in rows]


def test_other_files_of_a_task_folder(subsets):
    task = load_glue("QNLI", subsets, train="train_subset.tsv")
    assert (len(task.train), len(task.evals[""])) == (12_096, 5_463)
    assert task.notes == ("train has 12,096 rows, the official split has 104,743",)
    zipped = load_glue("QNLI", subsets, train="train_rebuilt_from_squad.tsv.gz")
    assert len(zipped.train) == 104_532
    assert zipped.fingerprint != task.fingerprint
    mnli = load_glue("MNLI", subsets, train="train_subset.tsv", dev="dev_subset.tsv")
    assert (len(mnli.train), len(mnli.evals[""]), list(mnli.evals)) == (12_925, 7_469, [""])
    assert mnli.train.labels[:3].tolist() == [0, 0, 1]


def test_the_error_for_a_missing_file_lists_existing_files(subsets):
    with pytest.raises(WhichlayersError) as error:
        load_glue("QNLI", subsets)
    message = str(error.value)
    assert "has no train.tsv; it has dev.tsv, train_rebuilt_from_squad.tsv.gz, train_subset.tsv" in message
    assert "`whichlayers presets NAME > my-study.toml`" in message  # a preset has no file to edit
    assert 'train = "train_' in message
    with pytest.raises(WhichlayersError, match=r"has no other\.tsv"):
        load_glue("RTE", subsets, dev="other.tsv")


# Small files in the classic layout.


def put(folder, name, lines):
    folder.mkdir(parents=True, exist_ok=True)
    content = "".join(line + "\n" for line in lines).encode()
    (folder / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)


MNLI_TRAIN = "index\tpromptID\tpairID\tgenre\tb1\tb2\tp1\tp2\tsentence1\tsentence2\tlabel1\tgold_label"
MNLI_DEV = MNLI_TRAIN.replace("label1", "label1\tlabel2\tlabel3\tlabel4\tlabel5")


def mnli_row(first, second, votes, gold):
    return "\t".join(["0", "1", "2", "fiction", "(", "(", "(ROOT", "(ROOT", first, second, *votes, gold])


def test_mnli_in_its_classic_form(tmp_path):
    folder = tmp_path / "mnli"  # spelled differently from GLUE
    votes = ["neutral"] * 5
    put(
        folder,
        "train.tsv",
        [MNLI_TRAIN, mnli_row("a", "b", ["x"], "neutral"), mnli_row("c", "", ["x"], "entailment")],
    )
    matched = [mnli_row("d", "e", votes, "contradiction"), mnli_row("f", "g", votes, "-")]
    put(folder, "dev_matched.tsv", [MNLI_DEV, *matched])
    put(folder, "dev_mismatched.tsv.gz", [MNLI_DEV, mnli_row("h", "i", votes, "neutral"), *matched, *matched])
    task = load_glue("MNLI", tmp_path)
    assert task.label_names == ("entailment", "neutral", "contradiction")
    assert (task.train.texts, task.train.pairs) == (["a", "c"], ["b", ""])
    assert task.train.labels.tolist() == [1, 0]
    assert list(task.evals) == ["", "mismatched"]
    assert task.evals[""].texts == ["d"]
    assert task.evals["mismatched"].labels.tolist() == [1, 2, 2]
    skipped = [note for note in task.notes if "without a gold label" in note]
    assert [note.split(": ")[1][:14] for note in skipped] == ["skipped 1 row ", "skipped 2 rows"]
    (folder / "dev_mismatched.tsv.gz").unlink()
    with pytest.raises(
        WhichlayersError, match=r"no dev_mismatched\.tsv; it has dev_matched\.tsv, train\.tsv"
    ):
        load_glue("MNLI", tmp_path)


def test_qqp_malformed_lines_are_skipped_and_counted(tmp_path):
    header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate"
    broken = ["1\t2\t3\tis this", '"\tcut in two?\t0']
    put(tmp_path / "QQP", "train.tsv", [header, "0\t1\t2\ta?\tb?\t1", *broken, "4\t5\t6\tc?\t\t0"])
    put(tmp_path / "QQP", "dev.tsv", [header, "0\t1\t2\ta?\tb?\t0"])
    task = load_glue("QQP", tmp_path)
    assert (task.train.texts, task.train.pairs) == (["a?", "c?"], ["b?", ""])
    assert any("skipped 2 malformed lines" in note and "3, 4" in note for note in task.notes)
    assert (task.metric, task.metrics) == ("accuracy", ("accuracy", "f1"))


def test_wnli_and_the_folder_of_the_task_itself(tmp_path):
    lines = ["index\tsentence1\tsentence2\tlabel", "0\ta\tb\t1", "1\tc\td\t0"]
    for name in ("train.tsv", "dev.tsv"):
        put(tmp_path / "WNLI", name, lines)
        put(tmp_path / "elsewhere", name, lines)
    tasks = [load_glue("WNLI", tmp_path / folder) for folder in ("", "WNLI", "elsewhere")]
    assert len({task.fingerprint for task in tasks}) == 1
    assert tasks[0].train.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("only text", "1 column, expected 2"),
        ("a\t2", "unknown label '2'"),
        ("\t1", "column 'sentence' is empty"),
    ],
)
def test_bad_rows_of_other_tasks_are_errors(tmp_path, row, message):
    put(tmp_path / "SST-2", "train.tsv", ["sentence\tlabel", "a\t1", row])
    put(tmp_path / "SST-2", "dev.tsv", ["sentence\tlabel", "a\t1"])
    with pytest.raises(BadData, match=rf"train\.tsv:3: {message}"):
        load_glue("SST-2", tmp_path)


def test_missing_folders(tmp_path):
    put(tmp_path / "RTE", "train.tsv", [])
    with pytest.raises(WhichlayersError, match="has no folder QNLI; it has RTE"):
        load_glue("QNLI", tmp_path)
    with pytest.raises(WhichlayersError, match="is not a folder; set it to a glue_data folder, or to 'hub'"):
        load_glue("QNLI", tmp_path / "gone")


# A fake hub with the columns and splits of the real dataset.


def fake_hub(spec, rows=4):
    features = {column: datasets.Value("string") for column in spec.hub_columns if column}
    classes = (
        datasets.ClassLabel(names=list(spec.label_names)) if spec.label_names else datasets.Value("float32")
    )
    features |= {"label": classes, "idx": datasets.Value("int32")}

    def split(name, unlabeled=False):
        values = {column: [f"{name} {column} {i}" for i in range(rows)] for column in features}
        labels = (
            [i % len(spec.label_names) for i in range(rows)]
            if spec.label_names
            else [i / 2 for i in range(rows)]
        )
        values["label"] = [-1] * rows if unlabeled else labels
        values["idx"] = list(range(rows))
        return datasets.Dataset.from_dict(values, features=datasets.Features(features))

    names = ["train", *(hub_split for _, _, hub_split in spec.evals)]
    return {name: split(name) for name in names} | {"test": split("test", unlabeled=bool(spec.label_names))}


@pytest.mark.parametrize("name", list(GLUE))
def test_from_the_hub(monkeypatch, name):
    spec = GLUE[name]
    hub, requests = fake_hub(spec), []

    def load_dataset(path, config, split):
        requests.append((path, config))
        return [hub[one] for one in split]

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    task = load_glue(name)
    assert requests == [("nyu-mll/glue", spec.config)]
    assert task.train.texts == [f"train {spec.hub_columns[0]} {i}" for i in range(4)]
    if spec.hub_columns[1]:
        assert task.train.pairs == [f"train {spec.hub_columns[1]} {i}" for i in range(4)]
    else:
        assert task.train.pairs is None
    assert list(task.evals) == (["", "mismatched"] if name == "MNLI" else [""])
    assert task.train.labels.tolist() == pytest.approx([hub["train"][i]["label"] for i in range(4)])
    assert isinstance(task.train.texts, list)
    assert len(task.fingerprint) == 16


def test_hub_labels_out_of_range_are_rejected(monkeypatch):
    hub = fake_hub(GLUE["RTE"])
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, split: [hub["train"], hub["test"]])
    with pytest.raises(BadData, match="labels on the hub range from -1"):
        load_glue("RTE")


def test_offline_and_not_cached(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(WhichlayersError) as error:
        load_glue("SST-2")
    assert "SST-2 could not be loaded from the hub (nyu-mll/glue, sst2)" in str(error.value)
    assert "set source to a glue_data folder that contains SST-2/train.tsv and SST-2/dev.tsv" in str(
        error.value
    )


def test_official_rows_of_all_tasks():
    """The sizes of the splits at gluebenchmark.com."""
    assert {name: spec.official_rows for name, spec in GLUE.items()} == {
        "CoLA": (8551, 1043),
        "SST-2": (67349, 872),
        "MRPC": (3668, 408),
        "STS-B": (5749, 1500),
        "QQP": (363846, 40430),
        "MNLI": (392702, 9815, 9832),
        "QNLI": (104743, 5463),
        "RTE": (2490, 277),
        "WNLI": (635, 71),
    }
