"""Python API: run a study or load its results as data frames, figures and a report."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from whichlayers.results.export import epochs_frame, neurons_frame, points_frame
from whichlayers.results.folder import StudyFolder, find_folder
from whichlayers.runs import run_study
from whichlayers.runs.events import OnEvent, RunEvent, RunSummary

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from whichlayers.analysis.incremental_curves import Curve
    from whichlayers.analysis.recommend import Goal
    from whichlayers.deploy.build import BuiltModel
    from whichlayers.deploy.recommend import StudyRecommendation
    from whichlayers.study.study_file import Study


@dataclass(frozen=True)
class Results:
    """Results of a study that was run, completely or in part. Every call reads the current results."""

    folder: Path
    last_run: RunSummary | None = None  # summary of the run that returned this object, if any

    def frame(self) -> pd.DataFrame:
        """One row per point and finished trial, with the metrics of the last epoch as columns."""
        return points_frame(StudyFolder(self.folder))

    def epochs(self) -> pd.DataFrame:
        """One row per point, trial, epoch and metric."""
        return epochs_frame(StudyFolder(self.folder))

    def summary(self) -> pd.DataFrame:
        """One row per point: mean, 95% confidence interval (low, high), sd and n, as in summary.csv."""
        from whichlayers.report.tables import summary

        return summary(self._finished())

    def top_neurons(self) -> pd.DataFrame:
        """The neurons that the experiment `neurons` selected, one row per neuron of each trial's set.

        Returns:
            trial_id, model, task (the corpus), finetuned_on, train_size, seed, ranking, set ("top" or "smallest"),
            share, rank (from 1), layer (0: the embeddings) and neuron (its index within the layer).
        """
        return neurons_frame(StudyFolder(self.folder))

    def neuron_overlap(self) -> pd.DataFrame:
        """Overlap of the top neurons between seeds, with the pretrained model, and between rankings.

        Returns:
            One row per model, corpus, ranking, size of the sets and comparison; see
            `whichlayers.analysis.neuron_overlap.neuron_overlap`.
        """
        from whichlayers.analysis.neuron_overlap import neuron_overlap
        from whichlayers.results.frames import load_top_neurons

        return neuron_overlap(load_top_neurons(self.folder, shared_seeds=False))

    def variance_components(self) -> pd.DataFrame:
        """What each random component contributes to the variance between trials, with 95% intervals.

        Returns:
            One row per point and component; empty unless the study has `vary_apart`.
        """
        from whichlayers.analysis.variance_components import variance_table
        from whichlayers.results.frames import finished, load_points

        return variance_table(finished(load_points(self.folder), shared_seeds=True))

    def curves(self) -> list[Curve]:
        """The incremental curves: means by k, gain from pretraining, and the k that reaches 90% of the gain."""
        from whichlayers.analysis.incremental_curves import curves

        return curves(self._finished())

    def contrasts(self, baseline: str = "all pretrained") -> pd.DataFrame:
        """Differences from a baseline, paired by seed.

        Args:
            baseline: Condition of the baseline; experiments without it are left out.

        Returns:
            One row per point: mean difference, 95% confidence interval and p value adjusted within the curve.
        """
        from whichlayers.analysis.baseline_differences import differences_from_baseline

        points = self._finished()
        experiments = points.loc[points["condition"] == baseline, "experiment"].unique()
        return differences_from_baseline(points[points["experiment"].isin(experiments)], baseline)

    def claims(self, margin: float | None = None) -> pd.DataFrame:
        """Tests of the claims of the papers on these results.

        Args:
            margin: Largest difference that counts as negligible, in units of the metric. Default: 0.01, or half of
                the standard deviation between seeds if that is more.

        Returns:
            One row per test, with the verdict of its claim.
        """
        from whichlayers.analysis.claims import ClaimThresholds, as_table, study_claims

        return as_table(study_claims(self.folder, ClaimThresholds(margin=margin)))

    def layers(self) -> pd.DataFrame:
        """Effect of the pretrained weights of each layer, by experiment.

        Returns:
            One row per layer or block: mean effect, 95% confidence interval, number of paired trials and p value
            adjusted within the curve.
        """
        from whichlayers.analysis.layer_effects import layer_effects

        return layer_effects(self._finished())

    def figure(self, name: str, overlay: bool = False) -> Figure:
        """A figure of the report by name, such as "incremental", "layers" or "weight_change".

        `overlay` also draws the curves of the papers, where task and training size match.
        """
        from whichlayers.plots.figures import draw_named

        return draw_named(self.folder, name, overlay)

    def figures(self) -> list[str]:
        """Names of the figures of this study."""
        from whichlayers.plots.figures import figure_names

        return figure_names(self.folder)

    def question(self) -> str:
        """Description of the study in a few sentences; empty if its study file does not exist."""
        from whichlayers.study.describe import describe_file

        return describe_file(StudyFolder(self.folder).study_file)

    def report(self, overlay: bool = False) -> Path:
        """Write report.html, its figures and tables to the folder.

        Args:
            overlay: Also draw the curves of the papers, where task and training size match.

        Returns:
            The path of the HTML page.
        """
        from whichlayers.report.build import write_report

        return write_report(self.folder, overlay=overlay, description=self.question())

    def _repr_html_(self) -> str:
        """What a notebook shows: progress, main findings and the table of means."""
        from whichlayers.report.notebook import results_html

        return results_html(self.folder)

    def recommend(self, tolerance: float = 0.01, goal: Goal | None = None) -> StudyRecommendation:
        """What to do, from these results; `print` shows it, `to_dict` gives JSON-serializable values.

        Writes next-study.toml, which asks what the study did not, and costs.json to the folder.

        Args:
            tolerance: Largest accepted drop of the score, and smallest gain that matters, in units of the metric.
            goal: "size", "speed", "accuracy" or "features": only answer what serves this goal.
        """
        from whichlayers.deploy.recommend import recommend_study

        return recommend_study(StudyFolder(self.folder), tolerance, goal)

    def build(
        self,
        out: str | Path,
        *,
        layers: Sequence[int] = (),
        reinit: Sequence[int] = (),
        freeze: Sequence[int] = (),
        full: bool = False,
        question: str | None = None,
        adapters: str = "",
        settings: Mapping[str, object] | None = None,
        train: int | float | Literal["all"] | None = None,
        seeds: int | None = 1,
        keep: Literal["best", "all"] = "best",
        **options: Any,
    ) -> list[BuiltModel]:
        """Finetune a variant and save it as a folder with a model card.

        Args:
            out: Folder to write, which must not exist or be empty.
            layers: Pretrained layers to keep, in order.
            reinit: Layers to re-initialize, as numbered in the resulting model.
            freeze: Layers to freeze; with layer 1, also the embeddings.
            full: All layers, finetuned as usual. Without `full` and any layers, what the study recommends.
            question: Build what is recommended as the answer to this question, such as "freeze"; default: the first.
            adapters: Layers with adapters as the study trained them: "everywhere", "first:2", "last:2", "5-6".
            settings: Of several settings of adapters in the study, that with these values, such as {"rank": 8}; with
                goal = "features", of several settings of probes, such as {"pooling": "mean"}.
            train: Training examples: a number, a fraction or "all". Default: as in the study.
            seeds: Number of seeds to train; None: as many as the study has trials.
            keep: "best" saves the seed with the highest score on held-out training examples, "all" saves each.
            options: Further options of `whichlayers.deploy.build.BuildOptions`: model, task, tolerance, goal, device.

        Returns:
            The saved models: one, or one per seed with keep = "all".
        """
        from whichlayers.deploy.build import BuildOptions, build
        from whichlayers.deploy.choose import RequestedVariant

        wanted = tuple(
            (key, ",".join(value) if isinstance(value, list | tuple) else str(value))
            for key, value in (settings or {}).items()
        )
        variant = RequestedVariant(
            tuple(layers), tuple(reinit), tuple(freeze), full, question, adapters, wanted
        )
        chosen = BuildOptions(variant=variant, train=train, seeds=seeds, keep=keep, **options)
        return build(self.folder, out, chosen)

    def _finished(self) -> pd.DataFrame:
        from whichlayers.results.frames import finished, load_points

        return finished(load_points(self.folder))


def run(
    study: Study | str | Path,
    folder: str | Path,
    *,
    device: str | None = None,
    workers: int | None = None,
    max_stack: int | None = None,
    retry_failed: bool = False,
    progress: bool = True,
    on_event: OnEvent | None = None,
    **options: Any,
) -> Results:
    """Run a study, or resume it. Finished trials in `folder` are kept and not run again.

    Args:
        study: A study, a study file, or the folder of a study that was run.
        folder: Folder for the results.
        device: "cpu", "cuda", "cuda:1" or "cuda:0,cuda:1". Default: all GPUs, else the CPU.
        workers: Number of worker processes; 0 trains in this process. Default: one per core or GPU.
        max_stack: Maximum number of trials trained as one stack. Default: as many as fit in memory, up to
            64 on a GPU and 4 on a CPU.
        retry_failed: Whether to retry trials that failed in an earlier run.
        progress: Whether to show progress: a widget in a notebook with ipywidgets, else on stderr, as a bar in a
            terminal and otherwise as a line every few seconds.
        on_event: Called with every event of the run.
        options: Further options of `whichlayers.runs.run_study.run`.
    """
    from whichlayers.runs.moved import load_moved_study

    if isinstance(study, str | Path):
        study = load_moved_study(study)
    with contextlib.ExitStack() as stack:
        listeners = [on_event] if on_event else []
        if progress:
            listeners.append(stack.enter_context(_progress_display()))

        def notify(event: RunEvent) -> None:
            for listener in listeners:
                listener(event)

        summary = run_study.run(
            study,
            folder,
            device=device,
            workers=workers,
            max_stack=max_stack,
            retry_failed=retry_failed,
            on_event=notify,
            **options,
        )
    return Results(summary.folder, summary)


def _progress_display() -> Any:
    """A widget in a notebook, else a display on stderr."""
    from whichlayers.cli.notebook import NotebookProgress, in_notebook

    if in_notebook():
        return NotebookProgress()
    from whichlayers.cli.format import stderr_console
    from whichlayers.cli.progress import ProgressDisplay

    return ProgressDisplay(stderr_console())


def load(folder: str | Path) -> Results:
    """Load the results of a study from its folder, or from study.toml or results.db in it."""
    return Results(find_folder(Path(folder)).path)


def predict(
    model: str | Path,
    file: str | Path,
    text: str,
    pair: str | None = None,
    *,
    keep: Sequence[str] = (),
    out: str | Path | None = None,
    batch_size: int = 32,
    device: str | None = None,
) -> pd.DataFrame | Path:
    """Predict labels and probabilities of the texts in a file.

    Args:
        model: Folder that `whichlayers build` or `Results.build` wrote.
        file: A TSV, CSV, JSONL or Parquet file.
        text, pair: Names of the text columns.
        keep: Further columns to copy.
        out: File to write, in chunks, so that `file` may be large.
        batch_size: Texts in a batch.
        device: "cpu", "cuda" or "cuda:N". Default: a GPU if there is one.

    Returns:
        `out`, or without it the predictions as a data frame.
    """
    import io

    import pandas as pd

    from whichlayers.deploy.predict import TextColumns, predict_file
    from whichlayers.deploy.text_model import default_device, load_model

    loaded = load_model(model, device or default_device())
    columns = TextColumns(text, pair, tuple(keep))
    if out is not None:
        predict_file(loaded, Path(file), columns, Path(out), batch_size=batch_size)
        return Path(out)
    buffer = io.StringIO()
    predict_file(loaded, Path(file), columns, buffer, batch_size=batch_size)
    buffer.seek(0)
    return pd.read_csv(buffer, keep_default_na=False)  # a label may be "NA"
