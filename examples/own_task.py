"""Which layers does my task need? From a model and labelled files of your own to an answer, in Python.

    python examples/own_task.py google-bert/bert-base-uncased train.csv dev.csv --text review --label stars

The model may be a hub id, a folder or package:NAME. Run it again after a stop: what is done is kept.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import whichlayers


def study_of(asked: argparse.Namespace) -> whichlayers.Study:
    """Two questions: how many of the first layers suffice, and which single layer is missed most?"""
    task = {"name": "my-task", "train": asked.train, "dev": asked.dev}
    task |= {"text": asked.text, "label": asked.label}
    return whichlayers.Study(
        name=asked.folder.name,
        models=[asked.model],
        tasks=[task],
        experiments=["incremental", "single_layer"],
        train_sizes=[asked.size],
        trials=asked.trials,
        training={"epochs": asked.epochs, "lr": asked.lr},
    )


def answer(results: whichlayers.Results) -> list[str]:
    (curve,) = results.curves()
    told = [
        f"{curve.metric}: {curve.means[curve.depth]:.3f} with all {curve.depth} layers pretrained, "
        f"{curve.means[0]:.3f} with none"
    ]
    if curve.gain is None or curve.gain.n < 2:
        return [*told, "one trial gives no interval: ask for more with --trials"]
    told.append(
        f"the gain is {curve.gain.mean:+.3f} (95% interval {curve.gain.low:+.3f} to {curve.gain.high:+.3f})"
    )
    if curve.reaches is None:
        return [*told, "that cannot be told from zero: give it more examples, epochs or trials"]
    told.append(f"the first {curve.reaches} of {curve.depth} layers bring 90% of it")
    for layer in results.contrasts().sort_values("mean").head(3).itertuples():
        sure = "clear" if layer.p_adjusted < 0.05 else "may be chance"
        told.append(f"without what layer {layer.x:g} had learnt: {layer.mean:+.3f} ({sure})")
    return [*told, verdict(results)]


def verdict(results: whichlayers.Results) -> str:
    """The layers whose step up the curve can be told from chance."""
    layers = results.layers().query("source == 'incremental' and p_adjusted < 0.05 and mean > 0")
    named = ", ".join(str(layer) for layer in layers["first"])
    return (
        f"these layers matter for my task: {named}"
        if named
        else "no single layer stands out: run more trials"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("train")
    parser.add_argument("dev")
    parser.add_argument("--text", default="text", help="the column of the text")
    parser.add_argument("--label", default="label", help="the column of the label")
    parser.add_argument("--size", type=int, default=500, help="training examples in a trial")
    parser.add_argument("--trials", type=int, default=5, help="repetitions, each on its own random subset")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--folder", type=Path, default=Path("own-task"), help="where results go")
    asked = parser.parse_args(arguments)
    try:
        results = whichlayers.run(study_of(asked), asked.folder)
        results.figure("layers").savefig(asked.folder / "layers.png", dpi=200)
    except whichlayers.WhichlayersError as error:
        raise SystemExit(f"error: {error}") from None
    print(*answer(results), f"a picture of the layers: {asked.folder / 'layers.png'}", sep="\n")
    print(f"more in {results.report()}")


if __name__ == "__main__":
    main()
