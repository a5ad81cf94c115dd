"""A study file for the questions that a study did not ask."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from whichlayers.config.sections import PerSize
from whichlayers.experiments import KINDS
from whichlayers.files import atomic_write
from whichlayers.study.study_file import Study

FOLLOW_UP_FILE = "next-study.toml"
TRIALS = 6  # at least; fewer rarely show anything
# families whose layers have biases; those of all others have none in their usual models, or were not checked
FAMILIES_WITH_BIASES = frozenset(
    (
        "bert",
        "roberta",
        "electra",
        "distilbert",
        "mpnet",
        "xlnet",
        "deberta-v2",
        "qwen2",
        "gpt2",
        "gpt_neox",
        "opt",
    )
)


def follow_up_study(
    study: Study, experiments: Sequence[Mapping[str, Any]], families: Collection[str] = ()
) -> Study | None:
    """A study with the models, tasks, training sizes and training settings of `study` and other experiments.

    Args:
        study: The study that was run.
        experiments: The experiments, as in a study file; those of a kind that this version does not have are left out.
        families: Families of the models; if the layers of one have no biases, these are not trained alone.

    Returns:
        None if there is no experiment, or if `study` has no task.
    """
    known = [dict(experiment) for experiment in experiments if experiment["kind"] in KINDS]
    if not FAMILIES_WITH_BIASES.issuperset(families):
        for experiment in known:
            if "train" in experiment:
                experiment["train"] = [part for part in experiment["train"] if part != "biases"]
    if not known or not study.tasks:
        return None
    trials = study.trials
    enough = PerSize(max(TRIALS, trials.default), tuple((size, max(TRIALS, n)) for size, n in trials.steps))
    return Study(
        **study.settings()
        | {
            "name": f"{study.name}-next",
            "description": f"Questions that {study.name} did not ask.",
            "trials": enough,
            "vary_apart": False,  # trials would share seeds, and intervals are those of a fifth of them
            "corpora": (),
            "experiments": known,
        }
    )


def write_follow_up(folder: Path, study: Study) -> Path:
    """Write the study file into a study folder, and return its path.

    A file with other contents, which may have been edited, is kept: the new one is then called next-study-2.toml.
    """
    text, path, number = study.to_toml(folder), folder / FOLLOW_UP_FILE, 1
    while path.exists():
        if path.read_bytes() == text.encode():
            return path
        number += 1
        path = folder / f"{Path(FOLLOW_UP_FILE).stem}-{number}.toml"
    with atomic_write(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")
    return path
