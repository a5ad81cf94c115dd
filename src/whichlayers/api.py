"""The Python side of a study: run it, or open one that was run, and take its results as frames."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichlayers.results.export import epochs_frame, points_frame
from whichlayers.results.folder import StudyFolder, find_folder
from whichlayers.runs import run_study
from whichlayers.runs.events import OnEvent, RunEvent, RunSummary

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from whichlayers.analysis.incremental_curves import Curve
    from whichlayers.study.file import Study


@dataclass(frozen=True)
class Results:
    """A study that was run, in part or whole. Everything is read anew at each call."""

    folder: Path
    last_run: RunSummary | None = None  # the run that made this object, if one did

    def frame(self) -> pd.DataFrame:
        """One row per point and trial that is done, with the metrics of the last epoch in columns."""
        return points_frame(StudyFolder(self.folder))

    def epochs(self) -> pd.DataFrame:
        """One row per point, trial, epoch and metric."""
        return epochs_frame(StudyFolder(self.folder))

    def summary(self) -> pd.DataFrame:
        """One row per point: mean, low and high of its 95% t interval, sd and n. What summary.csv holds."""
        from whichlayers.report.tables import summary

        return summary(self._finished())

    def curves(self) -> list[Curve]:
        """Each incremental curve in numbers: its means, the gain of pretraining, the k that reaches 90%."""
        from whichlayers.analysis.incremental_curves import curves

        return curves(self._finished())

    def contrasts(self, baseline: str = "all pretrained") -> pd.DataFrame:
        """One row per point of the experiments that have this baseline: the difference from it, paired by seed,
        with its 95% interval and a p value that is adjusted within the curve."""
        from whichlayers.analysis.baseline_differences import against

        points = self._finished()
        having = points.loc[points["condition"] == baseline, "experiment"].unique()
        return against(points[points["experiment"].isin(having)], baseline)

    def claims(self, margin: float = 0.01) -> pd.DataFrame:
        """The papers' claims held against these results: one row per test, with the verdict of its claim.
        `margin`: what hardly matters, in units of the metric."""
        from whichlayers.analysis.claims import Limits, as_table, study_claims

        return as_table(study_claims(self.folder, Limits(margin=margin)))

    def layers(self) -> pd.DataFrame:
        """What each layer's pretrained weights were worth, by each experiment that tells: one row per layer, with
        its 95% interval, the paired trials behind it and a p value that is adjusted within the curve."""
        from whichlayers.analysis.layer_effects import layer_values

        return layer_values(self._finished())

    def figure(self, name: str, overlay: bool = False) -> Figure:
        """A figure of the report by its name, for a notebook: "incremental", "layers", "weight_change" ..."""
        from whichlayers.plots.registry import draw_named

        return draw_named(self.folder, name, overlay)

    def figures(self) -> list[str]:
        """The names that `figure` takes for this study."""
        from whichlayers.plots.registry import figure_names

        return figure_names(self.folder)

    def question(self) -> str:
        """What the study asks, in a few sentences; empty where its study file is gone."""
        from whichlayers.study.describe import describe_file

        return describe_file(StudyFolder(self.folder).study_file)

    def report(self, overlay: bool = False) -> Path:
        """Writes report.html, figures/ and its tables into the folder; gives the path of the page.
        `overlay` draws the papers' curves beside these, where task and size are the same."""
        from whichlayers.report.build import write_report

        return write_report(self.folder, overlay=overlay, words=self.question())

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
    """Run a study, or what an earlier run in `folder` left of it. `study` may be the path of a study file, or of the
    folder of a study that was run.

    `progress` is shown on stderr: a bar on a terminal, elsewhere a line every few seconds.
    """
    from whichlayers.study.file import load_study

    if isinstance(study, str | Path):
        study = load_study(study)
    with contextlib.ExitStack() as open_until_done:
        shown = [on_event] if on_event else []
        if progress:
            from whichlayers.cli.format import messages
            from whichlayers.cli.progress import Onlooker

            shown.append(open_until_done.enter_context(Onlooker(messages())))

        def tell(event: RunEvent) -> None:
            for show in shown:
                show(event)

        summary = run_study.run(
            study,
            folder,
            device=device,
            workers=workers,
            max_stack=max_stack,
            retry_failed=retry_failed,
            on_event=tell,
            **options,
        )
    return Results(summary.folder, summary)


def load(folder: str | Path) -> Results:
    """The results in a study folder; its study.toml or results.db will do as well."""
    return Results(find_folder(Path(folder)).path)
