from pathlib import Path

import pytest
from fake_facts import a_study

from whichlayers.config.errors import StudyError
from whichlayers.config.sections import ModelSpec, TaskSpec
from whichlayers.study.study_file import Study, load_study

GOOD = """name = "x"
train_sizes = [500, 0.1, "all"]
trials = { 500 = 50, default = 3 }
recipe = ["as_described", "as_released"]
[[models]]
name = "package:some-model"
[[tasks]]
name = "own"
train = "data/train.tsv"
dev = "data/dev.tsv"
text = "t"
label = "l"
[[tasks]]
name = "CoLA"
train_sizes = [500]
[[experiments]]
kind = "incremental"
keep = [0, 6]
reinit_lr_factor = 5
[[experiments]]
kind = "prune"
drop = [[2, 4], [1]]
[training]
epochs = { 500 = 5, default = 3 }
lr = 5e-5
dropout = 0.2
"""


def problems_in(text: str) -> list[str]:
    with pytest.raises(StudyError) as caught:
        Study.from_toml(text, Path("/x"), "s.toml")
    return str(caught.value).split("\n")


def changed(old: str, new: str) -> str:
    assert old in GOOD
    return GOOD.replace(old, new, 1)


def test_a_file_is_parsed():
    study = Study.from_toml(GOOD, Path("/base"))
    assert study.train_sizes == (500, 0.1, "all")
    assert study.tasks[0].train == "/base/data/train.tsv"
    assert study.experiments[0].keep == (0, 6)
    assert study.experiments[0].reinit_lr_factor == (5.0,)
    assert study.training.epochs.at(500) == 5
    assert study.training.lr == 5e-5


def test_to_toml_is_complete_and_round_trips():
    study = Study.from_toml(GOOD, Path("/base"))
    record = study.to_toml()
    assert Study.from_toml(record, Path("/elsewhere")) == study
    assert Study.from_toml(record, Path("/elsewhere")).to_toml() == record
    for line in ("vary_apart = false", "seed = 0", "batch_size = 8", "keep_layer_norm = false"):
        assert line in record.split("\n")
    assert a_study() != study


def test_to_toml_of_a_study_created_in_python_has_absolute_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    task = {"name": "own", "train": "a.tsv", "dev": "b.tsv", "text": "t", "label": "l"}
    record = a_study(models=["./m"], tasks=[task], description='say "hi"\n').to_toml()
    study = Study.from_toml(record, Path("/elsewhere"))
    assert study.models[0].name == str(tmp_path / "m")
    assert study.tasks[0].train == str(tmp_path / "a.tsv")
    assert study.description == 'say "hi"\n'


def test_sections_may_be_names_tables_or_specs():
    by_name = a_study()
    by_table = a_study(models=[{"name": "some/model"}], experiments=[{"kind": "incremental", "keep": "all"}])
    by_spec = a_study(models=ModelSpec(name="some/model"), tasks=[TaskSpec(name="builtin:sentiment")])
    assert by_name == by_table == by_spec


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("train_sizes =", "train_size =", 2, "train_size: unknown key; did you mean `train_sizes`?"),
        ("keep = [0, 6]", 'keep = "al"', 18, 'experiments[0].keep = "al": allowed: "all", or a list'),
        ("keep = [0, 6]", "keep = [0, -1]", 18, "experiments[0].keep = [0, -1]"),
        ('kind = "prune"', 'kind = "prun"', 21, 'experiments[1].kind = "prun"'),
        ('kind = "prune"', 'kind = "prun"', 21, 'did you mean `prune`? allowed: "incremental", "localized"'),
        ('kind = "prune"', "", 20, "experiments[1].kind: must be a kind of experiment"),
        ("drop = [[2, 4], [1]]", "drop = [[2, 4], []]", 22, "experiments[1].drop"),
        ("drop = [[2, 4], [1]]", "top = []", 20, "requires at least one of top, bottom and drop"),
        ("drop = [[2, 4], [1]]", 'recipe = "bert_init"', 22, "not a key of this kind of experiment"),
        (
            "drop = [[2, 4], [1]]",
            "permutations = 5",
            22,
            "not a key of this kind of experiment (it belongs to permutation); allowed:",
        ),
        ('"as_released"]', '"as_releasd"]', 4, 'recipe[1] = "as_releasd"'),
        ('"as_released"]', '"as_releasd"]', 4, "did you mean `as_released`?"),
        ("lr = 5e-5", "lr = 0", 25, "training.lr = 0: must be greater than 0"),
        ("lr = 5e-5", "lr = nan", 25, "training.lr = nan"),
        ("lr = 5e-5", "betas = [0.9]", 25, "training.betas"),
        ("lr = 5e-5", "head = 1", 25, "`head` belongs at the top of the file"),
        ('name = "x"', 'name = "x"\nlr = 1', 2, "lr: unknown key; `lr` belongs in [training]"),
        ('name = "x"', "name = 3", 1, "name = 3: must be a string in quotes"),
        ('name = "x"', 'name = "x"\nseed = true', 2, "seed = true: must be an integer"),
        ('name = "own"', 'name = "CoLA"', 14, "tasks[1].name: CoLA is listed twice"),
        ('name = "package:some-model"', "", 5, "models[0].name: this key is required"),
    ],
)  # fmt: skip
def test_problems_are_reported_with_file_line_and_key(old, new, line, message):
    (problem,) = problems_in(changed(old, new))
    assert problem.startswith(f"s.toml:{line}: ")
    assert message in problem


def test_all_problems_are_listed_at_once():
    text = changed("keep = [0, 6]", 'keep = "al"').replace("lr = 5e-5", "lr = -1").replace("[500]", "[0]")
    lines = problems_in(text)
    assert lines[0] == "s.toml has 3 problems:"
    assert [line.split(": ")[0].strip() for line in lines[1:]] == ["s.toml:15", "s.toml:18", "s.toml:25"]


def test_invalid_toml_is_reported_with_its_line():
    assert problems_in('name = "x"\nseed = = 1\n')[0].startswith("s.toml:2:8: invalid TOML: ")
    assert problems_in('name = "x"\na = [1,\n')[0].startswith("s.toml:2: invalid TOML: ")
    assert problems_in("a = 1 " + "x" * 74)[0].endswith(", in: a = 1 " + "x" * 74)
    assert problems_in("a = 1 " + "x" * 75)[0].endswith(", in: a = 1 " + "x" * 71 + "...")


def test_a_study_created_in_python_has_the_same_messages():
    with pytest.raises(StudyError, match=r"^recipe = \"x\": allowed: ") as caught:
        a_study(recipe="x")
    assert caught.value.__cause__ is None
    with pytest.raises(StudyError, match=r"^models = \[\]: at least one is required$"):
        a_study(models=[])
    with pytest.raises(StudyError, match=r"the study has 3 problems"):
        Study()


def test_loading(tmp_path):
    with pytest.raises(StudyError, match="whichlayers new"):
        load_study(tmp_path / "absent.toml")
    with pytest.raises(StudyError, match="folder"):
        load_study(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "x"\n# caf\xe9\n')
    with pytest.raises(StudyError, match=r"latin\.toml:2: the file is not UTF-8"):
        load_study(tmp_path / "latin.toml")
    (tmp_path / "s.toml").write_bytes(b"\xef\xbb\xbf" + GOOD.encode())  # with a byte order mark
    assert load_study(tmp_path / "s.toml").tasks[0].dev == str(tmp_path / "data/dev.tsv")


def test_override():
    study = a_study(
        tasks=["SST-2", {"name": "CoLA", "train_sizes": [100]}],
        experiments=[
            {"kind": "permutation", "trials": 7, "baseline_trials": 9, "train_sizes": [5]},
            {"kind": "localized", "recipe": "bert_init", "block": 2},
        ],
    )
    assert study.override() == study
    other = study.override(models=["a/b"], source="/glue", recipe="as_released", trials=2, sizes=[10, "all"])
    assert [m.name for m in other.models] == ["a/b"]
    assert {t.source for t in other.tasks} == {"/glue"}
    assert other.recipe == ("as_released",)
    assert other.trials.at(10) == 2
    assert other.train_sizes == (10, "all")
    for part in (*other.tasks, *other.experiments):
        assert part.train_sizes is None
    assert other.experiments[0].trials is None
    assert other.experiments[0].baseline_trials is None
    assert other.experiments[1].recipe is None
    assert other.experiments[1].block == 2
    assert study.override(tasks=["CoLA"]).tasks[0].train_sizes == (100,)
    with pytest.raises(StudyError, match="recipe"):
        study.override(recipe="x")


def test_override_takes_paths_from_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert a_study().override(models=["./m"]).models[0].name == str(tmp_path / "m")
    assert a_study(tasks=["CoLA"]).override(source="glue").tasks[0].source == str(tmp_path / "glue")
