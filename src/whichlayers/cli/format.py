"""How things look in the terminal: messages, durations, sizes, a trial in words."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from whichlayers.trial import Trial


def console() -> Console:
    return Console()


def messages() -> Console:
    """For progress and complaints, so that a command's output can be piped."""
    return Console(stderr=True)


def complain(text: str) -> None:
    messages().print(Text(f"error: {text}", style="red"), soft_wrap=True)


def table(*heads: str, right: tuple[str, ...] = ()) -> Table:
    made = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for head in heads:  # where it is narrow, words fold; heads and numbers stay whole
        numbers = head in right
        made.add_column(
            head,
            justify="right" if numbers else "left",
            no_wrap=numbers,
            overflow="fold",
            min_width=len(head),
        )
    return made


def duration(seconds: float) -> str:
    """1 h 05 min, 3 min 20 s, 12 s"""
    whole = round(seconds)
    if whole >= 3600:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    if whole >= 60:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole} s"


def bytes_text(number: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if number < 1000:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:.1f} TB"


def trial_text(trial: Trial) -> str:
    what = []
    if trial.surgery.order is not None:
        what.append(f"layers {_listed(trial.surgery.order)}")
    if trial.surgery.reinit:
        what.append(f"re-initialised {_listed(trial.surgery.reinit)}")
    if (words := trial.word_probe) is not None:
        which = f"layer {words.layer}" if words.layer is not None else f"{words.neurons} neurons"
        after = f"after {trial.task}, {trial.train_size} examples" if trial.train_size else "as pretrained"
        return (
            f"{trial.model} {after}, asked about {words.corpus}, seed {trial.seed} ({words.measure}, {which})"
        )
    return (
        f"{trial.model} on {trial.task}, {trial.train_size} examples, seed {trial.seed}"
        f" ({', '.join(what) or 'as pretrained'})"
    )


def _listed(layers: tuple[int, ...]) -> str:
    """1-4 for neighbours in order, else 3 1 2"""
    if len(layers) > 1 and layers == tuple(range(layers[0], layers[-1] + 1)):
        return f"{layers[0]}-{layers[-1]}"
    return " ".join(map(str, layers))
