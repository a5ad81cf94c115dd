"""What a study asks, in a few sentences."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from whichlayers.config.sections import PerSize, Size
from whichlayers.errors import WhichlayersError
from whichlayers.experiments import AnyExperiment
from whichlayers.experiments.base import listed
from whichlayers.experiments.probing import Probing
from whichlayers.experiments.prune import Prune
from whichlayers.experiments.word_base import WordExperiment
from whichlayers.study.file import Study, load_study
from whichlayers.text import counted


def describe_file(path: Path) -> str:
    """What the study of a file asks; empty where the file is gone, of another version, or edited into no study."""
    try:
        return describe_study(load_study(path))
    except (WhichlayersError, OSError):
        return ""


def describe_study(study: Study) -> str:
    models = listed(_model_names(study))
    sentences = []
    if any(not isinstance(e, WordExperiment) for e in study.experiments):
        sentences.append(
            f"What do the layers of {models} carry over to {listed(t.name for t in study.tasks)}?"
        )
    if any(isinstance(e, WordExperiment) for e in study.experiments):
        does = "does" if len(study.models) == 1 else "do"
        sentences.append(
            f"What {does} {models} know of the words of {listed(c.name for c in study.corpora)}?"
        )
    sentences += _experiments(study)
    epochs, trained = _per_size(study.training.epochs, "epoch"), "finetuned"
    how = f"is finetuned on {_sizes(study.train_sizes)} for {epochs}, at learning rate {study.training.lr:g}"
    if all(isinstance(experiment, Probing) for experiment in study.experiments):
        how, trained = f"is probed with {_sizes(study.train_sizes)}", "probed"
    if not study.tasks:
        return " ".join([*sentences, f"Each question is asked in {_per_size(study.trials, 'trial')}."])
    lines = [f"Each model {how}, in {_per_size(study.trials, 'trial')}, {_differing(study.train_sizes)}."]
    lines += [f"{t.name} is {trained} on {_sizes(t.train_sizes)}." for t in study.tasks if t.train_sizes]
    return " ".join(sentences + lines)


def _experiments(study: Study) -> list[str]:
    """A sentence a question; those that are asked in several ways, of several corpora say, are told once."""
    asked: dict[str, list[list[str]]] = {}
    for experiment in study.experiments:
        name = experiment.kind.replace("_", " ").capitalize()
        asked.setdefault(f"{name}: {experiment.words()}", []).append(_notes(study, experiment))
    sentences = []
    for question, ways in asked.items():
        apart = "; " if len(ways) == 1 else ", "
        told = "; ".join(apart.join(notes) or "as usual" for notes in ways)
        sentences.append(f"{question} ({told})." if any(ways) else f"{question}.")
    return sentences


def _notes(study: Study, experiment: AnyExperiment) -> list[str]:
    notes = []
    if isinstance(experiment, WordExperiment):
        if experiment.corpora != "all":
            notes.append(f"of {listed(experiment.corpora)}")
        if experiment.finetuned_on != "all":
            finetuned = f"finetuned on {listed(experiment.finetuned_on)}" if experiment.finetuned_on else ""
            notes.append(finetuned or "as pretrained alone")
        if experiment.standardize:
            notes.append("neurons standardized")
        if experiment.l2_norm != "squared":
            notes.append(f"{experiment.l2_norm} L2 norm")
    elif experiment.tasks != "all":
        notes.append(f"on {listed(experiment.tasks)}")
    if not isinstance(experiment, Prune | Probing | WordExperiment):
        notes.append(f"recipe {listed(experiment.recipe or study.recipe)}")
        kept = experiment.keep_layer_norm or study.keep_layer_norm
        if True in kept:
            notes.append("layer norms kept" if False not in kept else "layer norms drawn anew and kept")
        if experiment.reinit_lr_factor != (1.0,):
            factors = listed(f"{f:g}" for f in experiment.reinit_lr_factor)
            notes.append(f"re-initialised layers at {factors} times the learning rate")
    if experiment.train_sizes:
        notes.append(f"on {_sizes(experiment.train_sizes)}")
    if experiment.trials:
        notes.append(_per_size(experiment.trials, "trial"))
    if not isinstance(experiment, Probing) and experiment.epochs:
        notes.append(_per_size(experiment.epochs, "epoch"))
    if experiment.lr:
        notes.append(f"learning rate {experiment.lr:g}")
    return notes


def _model_names(study: Study) -> list[str]:
    """A folder by its last part, unless two models are called so."""
    names = [Path(m.name).name if m.name.startswith(("/", "~", ".")) else m.name for m in study.models]
    return [
        short if names.count(short) == 1 else m.name for short, m in zip(names, study.models, strict=True)
    ]


def _differing(sizes: Sequence[Size]) -> str:
    """How trials differ: all examples are no subset."""
    drawn = [size for size in sizes if size != "all"]
    if not drawn:
        return "each with a seed of its own"
    return "each on a random subset" if len(drawn) == len(sizes) else "each on a random subset or on all"


def _sizes(sizes: Iterable[Size]) -> str:
    sizes = list(sizes)
    words = ["all" if s == "all" else f"{100 * s:.3g}%" if isinstance(s, float) else f"{s:,}" for s in sizes]
    share_of = "of the " if any(isinstance(s, float) for s in sizes) else ""
    return f"{listed(words)} {share_of}training {'example' if sizes == [1] else 'examples'}"


def _per_size(number: PerSize, unit: str) -> str:
    parts = [f"{counted(n, unit)} up to {limit:,} examples" for limit, n in number.steps]
    return listed([*parts, counted(number.default, unit) + (" above" if parts else "")])
