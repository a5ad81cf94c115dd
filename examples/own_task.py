"""Which layers does my task need? A study of your own model and labeled files, in Python.

    python examples/own_task.py google-bert/bert-base-uncased train.csv dev.csv --text review --label stars

The model may be a Hugging Face Hub id, a folder or package:NAME. Run the script again to resume an interrupted run.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import whichlayers


def make_study(args: argparse.Namespace) -> whichlayers.Study:
    """A study with two experiments: keep the first k layers, and re-initialize one layer at a time."""
    task = {"name": "my-task", "train": args.train, "dev": args.dev}
    task |= {"text": args.text, "label": args.label}
    return whichlayers.Study(
        name=args.folder.name,
        models=[args.model],
        tasks=[task],
        experiments=["incremental", "single_layer"],
        train_sizes=[args.size],
        trials=args.trials,
        training={"epochs": args.epochs, "lr": args.lr},
    )


def answer(results: whichlayers.Results) -> list[str]:
    """The findings of the study, one per line."""
    (curve,) = results.curves()
    lines = [
        f"{curve.metric}: {curve.means[curve.depth]:.3f} with all {curve.depth} layers pretrained, "
        f"{curve.means[0]:.3f} with none"
    ]
    if curve.gain is None or curve.gain.n < 2:
        return [*lines, "one trial gives no confidence interval: run more with --trials"]
    lines.append(
        f"gain from pretraining: {curve.gain.mean:+.3f} "
        f"(95% confidence interval {curve.gain.low:+.3f} to {curve.gain.high:+.3f})"
    )
    if curve.reaches is None:
        return [*lines, "not significantly different from zero: use more examples, epochs or trials"]
    lines.append(f"the first {curve.reaches} of {curve.depth} layers reach 90% of it")
    for layer in results.contrasts().sort_values("mean").head(3).itertuples():
        significance = "significant" if layer.p_adjusted < 0.05 else "not significant"
        lines.append(f"layer {layer.x:g} re-initialized: {layer.mean:+.3f} ({significance})")
    return [*lines, verdict(results)]


def verdict(results: whichlayers.Results) -> str:
    """The layers with a significant positive effect in the incremental experiment."""
    layers = results.layers().query("source == 'incremental' and p_adjusted < 0.05 and mean > 0")
    names = ", ".join(str(layer) for layer in layers["first"])
    return (
        f"these layers matter for my task: {names}"
        if names
        else "no single layer has a significant effect: run more trials"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model")
    parser.add_argument("train")
    parser.add_argument("dev")
    parser.add_argument("--text", default="text", help="name of the text column")
    parser.add_argument("--label", default="label", help="name of the label column")
    parser.add_argument("--size", type=int, default=500, help="training examples per trial")
    parser.add_argument("--trials", type=int, default=5, help="number of trials, each on a random subset")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=2e-5)
    parser.add_argument("--folder", type=Path, default=Path("own-task"), help="folder for the results")
    args = parser.parse_args(arguments)
    try:
        results = whichlayers.run(make_study(args), args.folder)
        results.figure("layers").savefig(args.folder / "layers.png", dpi=200)
    except whichlayers.WhichlayersError as error:
        raise SystemExit(f"error: {error}") from None
    print(*answer(results), f"figure of the layers: {args.folder / 'layers.png'}", sep="\n")
    print(f"report: {results.report()}")


if __name__ == "__main__":
    main()
