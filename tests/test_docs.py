"""The pages in docs/ match the code. `python tests/test_docs.py` regenerates the tables of keys."""

from __future__ import annotations

import re
import sqlite3
import sys
import types
import typing
from pathlib import Path
from typing import Any, get_args, get_origin

import pytest
from pydantic import BeforeValidator, PlainValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from whichlayers.analysis.claims import (
    as_table,
    durrani2021,
    finetuning,
    singh2020,
    tamkin2020_layers,
    tamkin2020_sizes,
    tamkin2020_training,
)
from whichlayers.config.corpus import CorpusSpec
from whichlayers.config.sections import ModelSpec, PerSize, Section, TaskSpec, TrainingSpec
from whichlayers.experiments import KINDS
from whichlayers.experiments.base import SHARED_KEYS as SHARED
from whichlayers.experiments.word_base import WORD_KEYS
from whichlayers.models.families import FAMILIES, UNSUPPORTED_FAMILIES
from whichlayers.report.tables import CELL, FURTHER, STATISTICS
from whichlayers.results.schema import SCHEMA
from whichlayers.study.study_file import Study, format_setting
from whichlayers.study.template import redefines
from whichlayers.trial import Recipe

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGE = DOCS / "study-file.md"
SECTIONS: dict[str, type[Section]] = {
    "study": Study,
    "models": ModelSpec,
    "tasks": TaskSpec,
    "corpora": CorpusSpec,
    **KINDS,
    "training": TrainingSpec,
}
TABLE = re.compile(r"<!-- keys: (\w+) -->\n(.*?)<!-- end -->", re.DOTALL)
BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


# --- the key tables ---


def key_table(name: str) -> str:
    if name == "shared":
        section, keys = SECTIONS["incremental"], list(SHARED)
    elif name == "words":
        section, keys = SECTIONS["word_probing"], list(WORD_KEYS)
    else:
        section = SECTIONS[name]
        keys = [key for key in section.key_order() if name not in KINDS or _own(section, key)]
    rows = ["| key | meaning | allowed | default |", "|---|---|---|---|"]
    for key in keys:
        field = section.model_fields[key]
        meaning = field.description or f"Which experiment this is: {name}."
        rows.append(f"| `{key}` | {meaning} | {allowed(field)} | {default_of(key, field)} |")
    return "\n".join(rows) + "\n"


def _own(section: type[Section], key: str) -> bool:
    return key not in (*SHARED, *WORD_KEYS) or redefines(section, key)


def allowed(field: FieldInfo) -> str:
    return _allowed(field.annotation, field.metadata)


def _allowed(annotation: Any, metadata: list[Any]) -> str:
    if get_origin(annotation) is typing.Annotated:
        inner, *more = get_args(annotation)
        return _allowed(inner, [*metadata, *more])
    if get_origin(annotation) in (typing.Union, types.UnionType):
        parts = [part for part in get_args(annotation) if part is not type(None)]
        if set(parts) >= {int, float}:
            return 'a count, a fraction, or `"all"`'
        if all(isinstance(part, type) and issubclass(part, Section) for part in _bare(parts)):
            return "tables"
        return ", or ".join(_allowed(part, metadata) for part in parts)
    if get_origin(annotation) is typing.Literal:
        return ", ".join(f'`"{value}"`' for value in get_args(annotation))
    if get_origin(annotation) is tuple:
        first, *rest = get_args(annotation)
        inside = _allowed(first, [])
        if rest == [Ellipsis]:
            takes_one = any(isinstance(item, BeforeValidator | PlainValidator) for item in metadata)
            if inside == "tables":
                return inside
            return f"{inside}; or a list" if takes_one else f"list of {inside}"
        return f"{len(rest) + 1} values: {inside}"
    if annotation is PerSize:
        return "int ≥ 1, or one per size"
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return "tables"
    name = {str: "str", bool: "`true`, `false`", int: "int", float: "float"}[annotation]
    return f"{name} {' and '.join(_bounds(metadata))}".rstrip()


def _bare(annotations: list[Any]) -> list[Any]:
    return [get_args(a)[0] if get_origin(a) is typing.Annotated else a for a in annotations]


def _bounds(metadata: list[Any]) -> list[str]:
    bounds: list[str] = []
    for item in metadata:
        bounds += _bounds(item.metadata) if isinstance(item, FieldInfo) else []
        bounds += [f"{sign} {getattr(item, name)}" for name, sign in BOUNDS.items() if hasattr(item, name)]
    return bounds


def default_of(key: str, field: FieldInfo) -> str:
    value = field.default
    if value is PydanticUndefined or (key == "kind" and value is not None):
        return "required"  # the kind of an experiment has a default in the code, but not in a file
    if value is None or value in ((), ""):
        return "none"
    if isinstance(value, Section):
        return "see below"
    return f"`{format_setting(key, value)}`"


def regenerate(page: str) -> str:
    return TABLE.sub(lambda match: f"<!-- keys: {match[1]} -->\n{key_table(match[1])}<!-- end -->", page)


def test_study_file_page_has_every_key_with_its_meaning_and_default():
    page = PAGE.read_text(encoding="utf-8")
    assert {name for name, _ in TABLE.findall(page)} == {*SECTIONS, "shared", "words"}
    assert page == regenerate(page), "run: python tests/test_docs.py"
    for section in SECTIONS.values():
        for key in section.key_order():
            assert f"| `{key}` |" in page


def test_the_shared_keys_are_those_that_experiments_share():
    for name, section in KINDS.items():
        own = [key for key in section.key_order() if key not in (*SHARED, *WORD_KEYS)]
        assert own[0] == "kind"
        others = [set(other.key_order()) for kind, other in KINDS.items() if kind != name]
        # layers, block and peft_lr have several meanings, the others several defaults
        assert set(own) - {"kind"} & set.union(*others) <= {
            *("layers", "keep", "block", "peft_lr", "l1", "l2", "shares", "description_length"),
        }
    assert set(SHARED) & set(KINDS["probing"].key_order()) == {"tasks", "train_sizes", "trials", "lr"}
    assert set(SHARED) - set(KINDS["prune"].key_order()) == {
        "recipe",
        "keep_layer_norm",
        "reinit_pooler",
        "reinit_lr_factor",
    }


def test_key_tables_have_allowed_values_and_defaults():
    assert "| `batch_size` | Examples per step. | int ≥ 1 | `8` |" in key_table("training")
    assert "| `schedule` |" in key_table("training")
    assert '`"linear"`, `"constant"`' in key_table("training")


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda path: path.name)
def test_toml_in_the_docs_is_a_study_that_loads(page, tmp_path):
    for block in re.findall(r"```toml\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        text = block if "name =" in block.partition("[")[0] else f'name = "x"\n{block}'
        for table, least in (
            ("corpora", 'name = "builtin:pos"'),
            ("models", 'name = "./m"'),
            ("tasks", 'name = "SST-2"'),
            ("experiments", 'kind = "incremental"'),
        ):
            if f"[[{table}]]" not in text:
                text += f"\n[[{table}]]\n{least}\n"
        assert Study.from_toml(text, tmp_path).experiments


# --- results.md ---


def tables_of_the_schema() -> dict[str, list[str]]:
    db = sqlite3.connect(":memory:")
    db.executescript(SCHEMA)
    names = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {name: [row[1] for row in db.execute(f"PRAGMA table_info({name})")] for name in names}


def described_columns(page: str, heading: str) -> list[str]:
    part = page.partition(f"### {heading}\n")[2]
    part = re.split(r"^##", part, maxsplit=1, flags=re.MULTILINE)[0]
    columns = []
    for row in re.findall(r"^\| (`.*?) \|", part, re.MULTILINE):
        columns += re.findall(r"`([^`]+)`", row)
    return columns


def test_results_page_describes_every_table_and_column():
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    for table, columns in tables_of_the_schema().items():
        assert described_columns(page, f"`{table}`") == columns, table


def test_results_page_describes_the_columns_of_the_tables():
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    for name, columns in {
        "summary.csv": [*CELL, *STATISTICS, *FURTHER],
        "claims.csv": list(as_table([]).columns),
    }.items():
        assert described_columns(page, f"The columns of {name}") == columns, name


def test_results_page_names_every_experiment():
    page = (DOCS / "results.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `experiment` \| (incremental.*) \|", page, re.MULTILINE)
    assert len(rows) == 2
    for row in rows:
        assert set(KINDS) <= set(re.findall(r"\w+", row))


# --- CONTRIBUTING.md ---


def packages_of_contributing() -> dict[str, set[str]]:
    """For each package, the packages it may import, from the table in CONTRIBUTING.md."""
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \| [^|]* \| ([^|]*)\|", page, re.MULTILINE)
    return {name: {other.strip() for other in uses.split(",") if other.strip()} for name, uses in rows}


def test_packages_import_only_what_contributing_allows():
    packages = packages_of_contributing()
    source = ROOT / "src" / "whichlayers"
    shared = {path.stem for path in source.glob("*.py")} - {"api"}
    assert set(packages) == {path.parent.name for path in source.glob("*/__init__.py")}
    for name, uses in packages.items():
        allowed = {name, *shared, *(packages if uses == {"all"} else uses)}
        for file in (source / name).rglob("*.py"):
            text = file.read_text(encoding="utf-8")
            used = set(re.findall(r"^ *from whichlayers\.(\w+)", text, re.MULTILINE))
            used |= set(re.findall(r"^ *from whichlayers import (\w+)", text, re.MULTILINE))
            assert used <= allowed, f"{file} imports {used - allowed}"


def test_paths_named_in_contributing_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:src|tests|docs)/[\w./-]+)`", page)
    assert len(paths) > 15
    for path in paths:
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize(
    ("file", "names"),
    {
        "src/whichlayers/models/families.py": ["FAMILIES"],
        "tests/helpers/small_models.py": ["FAMILY_NAMES"],
        "tests/helpers/tiny.py": ["CONFIGS"],
        "src/whichlayers/catalog.py": ["BUILTIN_TASKS", "CAUSAL_FAMILIES", "GLUE", "GlueSpec", "METRICS"],
        "src/whichlayers/trial_json.py": ["LATER_FIELDS", "STORED_NAMES"],
        "src/whichlayers/trial_settings.py": ["AdapterMethod", "Training"],
        "src/whichlayers/config/sections.py": ["TrainingSpec"],
        "src/whichlayers/engine/finetune.py": ["stack_key"],
        "src/whichlayers/engine/settings.py": ["EngineSettings"],
        "src/whichlayers/engine/stack_trainer.py": ["example_losses", "train_step"],
        "src/whichlayers/engine/packing.py": ["PACKABLE_FAMILIES"],
        "src/whichlayers/probes/probe_trainer.py": ["_losses"],
        "src/whichlayers/probes/probing_dataset.py": ["probe_training"],
        "src/whichlayers/probes/run_sentence_probes.py": ["fit_sentence_probes"],
        "src/whichlayers/results/frames.py": ["setting_label"],
        "src/whichlayers/results/schema.py": ["adapter_json"],
        "src/whichlayers/runs/handlers/base.py": ["memory_key"],
        "src/whichlayers/runs/scheduler.py": ["_handle_out_of_memory"],
        "src/whichlayers/study/describe.py": ["_setting"],
        "src/whichlayers/plots/artists.py": ["category_style"],
        "src/whichlayers/data/readers.py": ["FORMATS"],
        "src/whichlayers/data/metrics.py": ["SCORERS"],
        "src/whichlayers/experiments/__init__.py": ["KINDS"],
        "src/whichlayers/experiments/display.py": ["Display"],
        "src/whichlayers/plots/figures.py": ["PLOTS"],
    }.items(),
)
def test_names_mentioned_in_contributing_exist(file, names):
    text = (ROOT / file).read_text(encoding="utf-8")
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    for name in names:
        assert re.search(rf"^(class |    def |def )?{name}\b", text, re.MULTILINE), name
        assert f"`{name}`" in page, name


# --- claims.md ---


def test_claims_page_states_every_claim():
    page = (DOCS / "claims.md").read_text(encoding="utf-8").partition("## ")[0]
    stated = dict(re.findall(r"^\| ([TSDZLP]\d+) \| (.*?) \|", page, re.MULTILINE))
    modules = (tamkin2020_sizes, tamkin2020_layers, tamkin2020_training, singh2020, durrani2021, finetuning)
    claims = {
        name: text for m in modules for name, text in vars(m).items() if re.fullmatch(r"[TSDZLP]\d+", name)
    }
    assert len(claims) == 23
    assert stated == claims


# --- recipes.md, links, the citation ---


def test_recipes_page_names_every_recipe():
    page = (DOCS / "recipes.md").read_text(encoding="utf-8")
    for recipe in get_args(Recipe):
        assert f"| `{recipe}` |" in page


def test_families_named_in_the_docs_are_those_of_the_code():
    page = (DOCS / "index.md").read_text(encoding="utf-8")
    row = re.search(r"^\| families \| (.*) \|", page, re.MULTILINE)
    assert row is not None
    assert set(re.findall(r"`([^`]+)`", row[1])) == {*FAMILIES, *UNSUPPORTED_FAMILIES}


@pytest.mark.parametrize(
    "page",
    sorted([*ROOT.glob("*.md"), *DOCS.glob("*.md")]),
    ids=lambda path: path.name,
)
def test_links_have_targets(page):
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), target


def test_the_citation_file_is_valid():
    yaml = pytest.importorskip("yaml")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["cff-version"] == "1.2.0"
    assert {"title", "authors", "message", "version", "license"} <= set(cited)
    assert (cited["title"], cited["license"]) == ("whichlayers", "MIT")
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{cited["version"]}"' in project
    assert len(cited["references"]) == 3
    for reference in cited["references"]:
        assert {"type", "title", "authors", "year"} <= set(reference)
        assert all({"family-names", "given-names"} <= set(author) for author in reference["authors"])


def test_no_install_command_needs_a_release_on_pypi():
    """Extras are installed from a clone: pip install -e '.[ray]'; single packages by their own names."""
    for path in [*DOCS.rglob("*.md"), ROOT / "README.md", *(ROOT / "src").rglob("*.py")]:
        assert not re.search(r"pip install [\"']?whichlayers", path.read_text(encoding="utf-8")), path


def test_assignments_with_brackets_are_quoted():
    """zsh expands [0] in `--set experiments[0].lr=1`, and stops if no file matches."""
    files = [*DOCS.rglob("*.md"), *ROOT.glob("*.md"), *(ROOT / "src" / "whichlayers" / "cli").rglob("*.py")]
    for path in files:
        text = path.read_text(encoding="utf-8")
        unquoted = re.findall(r"--set [^'\"\s`{]*\[.*", text)
        assert not unquoted, (path, unquoted)


if __name__ == "__main__":
    PAGE.write_text(regenerate(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"wrote {PAGE.relative_to(ROOT)}", file=sys.stderr)
