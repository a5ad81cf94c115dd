"""`whichlayers build`: finetune and save the model that a study recommends, or a variant of it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from whichlayers.cli.format import print_line, progress_bar, stderr_console
from whichlayers.cli.options import StudyFolderPath, parse_size
from whichlayers.cli.recommend import For, Tolerance
from whichlayers.errors import WhichlayersError
from whichlayers.text import format_bytes, format_range, format_score


class Like(StrEnum):
    """Values of --like: besides these two, the questions that a recommendation answers."""

    recommended = "recommended"
    full = "full"
    smallest = "smallest"
    reinit = "reinit"
    lr_decay = "lr_decay"
    freeze = "freeze"
    few_parameters = "few_parameters"
    adapters = "adapters"
    adapter_place = "adapter_place"
    features = "features"


class KeepOption(StrEnum):
    """Values of --keep."""

    best = "best"
    all = "all"


def build(
    folder: StudyFolderPath,
    out: Annotated[Path, typer.Option("--out", help="Folder to write; it must not exist or be empty.")],
    like: Annotated[
        Like | None,
        typer.Option(
            "--like",
            help="recommended (the default): the first recommendation of the study, or that for one question, such as "
            "freeze; full: all layers, finetuned as usual.",
        ),
    ] = None,
    layers: Annotated[
        str | None, typer.Option("--layers", help="Pretrained layers to keep, such as 1-8 or 1,3,5-8.")
    ] = None,
    reinit: Annotated[
        str | None,
        typer.Option(
            "--reinit", help="Layers to re-initialize, such as 9-12, as numbered in the resulting model."
        ),
    ] = None,
    freeze: Annotated[
        str | None,
        typer.Option(
            "--freeze",
            help="Layers to freeze, such as 1-6, as numbered in the resulting model; with 1, also the embeddings.",
        ),
    ] = None,
    adapters: Annotated[
        str | None,
        typer.Option(
            "--adapters",
            help="Layers with LoRA or IA3 as the study trained it: everywhere, first:K, last:K or layers such as 5-6.",
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--setting",
            help="With --adapters or --for features, if the study has several settings of adapters or probes: that "
            "with this KEY=VALUE, such as rank=8, lr=0.001, method=ia3, targets=query,value or pooling=mean. May be "
            "repeated.",
        ),
    ] = None,
    train: Annotated[
        str | None,
        typer.Option(
            "--train", help="Training examples: a number, a fraction or all. Default: as in the study."
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", help="Number of seeds to train; all: as many as the study has trials.")
    ] = "1",
    keep: Annotated[
        KeepOption,
        typer.Option(
            "--keep",
            help="Of several seeds, save the best on held-out training examples (never on the dev set), or all.",
        ),
    ] = KeepOption.best,
    model: Annotated[str | None, typer.Option("--model", help="Model, if the study has several.")] = None,
    task: Annotated[str | None, typer.Option("--task", help="Task, if the study has several.")] = None,
    tolerance: Tolerance = 0.01,
    goal: For = None,
    device: Annotated[
        str | None, typer.Option("--device", help="cpu, cuda or cuda:N. Default: a GPU if there is one.")
    ] = None,
) -> None:
    """Finetune the recommended variant, or the one described by options, and save it as a folder with a model card."""
    from whichlayers.deploy.build import BuildOptions
    from whichlayers.deploy.build import build as build_model
    from whichlayers.deploy.card import NOT_A_CLASSIFIER
    from whichlayers.deploy.choose import RequestedVariant, parse_layers

    variant = RequestedVariant(
        parse_layers("--layers", layers),
        parse_layers("--reinit", reinit),
        parse_layers("--freeze", freeze),
        full=like == Like.full,
        question=None if like in (None, Like.recommended, Like.full) else like.value,
        adapters=adapters or "",
        settings=tuple(_parse_setting(text) for text in setting or ()),
    )
    if variant.described and like is not None:
        given = {"--layers": layers, "--reinit": reinit, "--freeze": freeze, "--adapters": adapters}
        option = next(name for name, value in given.items() if value)
        raise WhichlayersError(f"--like {like.value} and {option} exclude each other: give one of them")
    if variant.question is not None and goal is not None:
        raise WhichlayersError(
            f"--like {variant.question} and --for {goal.value} exclude each other: give one of them"
        )
    options = BuildOptions(
        variant=variant,
        train=None if train is None else parse_size("--train", train),
        seeds=_parse_seeds(seeds),
        keep="all" if keep == KeepOption.all else "best",
        model=model,
        task=task,
        tolerance=tolerance,
        goal=None if goal is None else goal.value,
        device=device,
    )
    try:
        with progress_bar("finetuning", "steps") as on_progress:
            built = build_model(folder, out, options, on_progress)
    except KeyboardInterrupt:
        print_line(f"interrupted; {out} was not written", "yellow", stderr_console())
        raise typer.Exit(130) from None
    answer = built[0].answer
    print_line(
        f"variant: {built[0].reason if answer is None else f'{answer.choice}, recommended by the study'}"
    )
    for one in built:
        score = ""
        if one.score is not None:
            s = one.score
            interval = f"95% interval over {s.rows:,} dev examples {format_range(s.low, s.high, s.metric)}"
            score = f"; {s.metric} {format_score(s.value, s.metric)} ({interval})"
        print_line(f"wrote {one.folder} ({format_bytes(one.bytes)}){score}")
    if built[0].score is not None:
        print_line(f"predict with: whichlayers predict {built[0].folder} FILE --text COLUMN")
        if built[0].layout != "sequence_classification":
            print_line(NOT_A_CLASSIFIER)


def _parse_setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not (key.strip() and equals and value.strip()):
        raise WhichlayersError(f"--setting {text}: give KEY=VALUE, such as rank=8")
    return key.strip(), value.strip()


def _parse_seeds(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise WhichlayersError(f"--seeds {text}: give a number of at least 1, or all")
    return int(text)
