"""The recommendation of a study folder: statistics, measured costs, and the study file of what to run next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from whichlayers.analysis.recommend import (
    QUESTIONS,
    TOLERANCE,
    Answer,
    Goal,
    Question,
    Recommendation,
    recommend,
)
from whichlayers.analysis.recommend.costs import cost_text
from whichlayers.analysis.verdicts import NOT_ENOUGH_TRIALS, RECOMMENDED
from whichlayers.deploy.costs import answer_costs
from whichlayers.deploy.probe_settings import setting_options
from whichlayers.errors import WhichlayersError
from whichlayers.results.costs import ModelCost, find_cost
from whichlayers.results.folder import STUDY_FILE, StudyFolder
from whichlayers.results.frames import finished, load_points, load_study_summary
from whichlayers.results.lock import lock_holder
from whichlayers.results.probes import load_probes
from whichlayers.results.shared_seeds import seed_notes, seed_use
from whichlayers.study.follow_up import follow_up_study, write_follow_up
from whichlayers.study.study_file import load_study
from whichlayers.text import counted, join_list, short_names


@dataclass(frozen=True)
class StudyRecommendation:
    """What a study recommends, with the costs of the models concerned."""

    folder: Path
    recommendation: Recommendation
    costs: tuple[ModelCost, ...]
    next_study: Path | None  # study file that asks what the study did not; None if there is nothing to ask
    done: int = 0  # trials of the study that are done
    trials: int = 0  # trials of the study
    running: bool = False  # whether a process is running the study
    notes: tuple[str, ...] = ()  # on trials that are left out, and on what intervals do not cover
    independent: int | None = None  # trials per point that share no seed, if others do (`vary_apart`)
    # options of `build` that choose the setting of a probe, by trial id; "" if the study has one setting
    setting_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def answers(self) -> tuple[Answer, ...]:
        return self.recommendation.answers

    def question(self, answer: Answer) -> Question:
        """The question of an answer."""
        return QUESTIONS[answer.question]

    def heading(self, answer: Answer) -> str:
        """What an answer is about; with the model if the study has several."""
        several = len({a.model_fingerprint for a in self.answers}) > 1
        return f"{self._short_names()[answer.model]}, {answer.title}" if several else answer.title

    def _short_names(self) -> dict[str, str]:
        """The models of the answers as tables and the report show them."""
        return short_names(a.model for a in self.answers)

    def describe_cost(self, answer: Answer) -> str:
        """Parameters, size, latency and training time of a recommended model compared with the baseline."""
        return cost_text(answer, self.costs)

    def paragraphs(self, answer: Answer) -> list[str]:
        """The answer, its costs and its outlook, without empty ones."""
        return [text for text in (answer.text, self.describe_cost(answer), answer.outlook) if text]

    @property
    def complete(self) -> bool:
        """Whether all trials of the study are done."""
        return self.done >= self.trials

    def progress(self) -> str:
        """One sentence on the trials of a study that is not complete, and whether they are enough; "" if it is."""
        if self.complete:
            return ""
        decided = sum(a.verdict != NOT_ENOUGH_TRIALS for a in self.answers)
        enough = f"are enough for {decided} of {counted(len(self.answers), 'answer')} below, which may still change"
        if not decided:
            enough = "are not enough for an answer yet"
        state = (
            "is running"
            if self.running
            else f"is not complete; resume it with: whichlayers run {self.folder}"
        )
        verb = "is" if self.trials == 1 else "are"
        return (
            f"{self.done:,} of {counted(self.trials, 'trial')} {verb} done, and {enough}. The study {state}."
        )

    def next_steps(self) -> list[str]:
        """Commands to run next; a study that is not complete needs none to run more trials."""
        lines = []
        if any(a.verdict == RECOMMENDED for a in self.answers):
            lines.append(f"Build it: {self._build_command()}")
        more = [a.more_trials for a in self.answers if a.verdict == NOT_ENOUGH_TRIALS and a.more_trials]
        if more and self.complete:
            add = f"whichlayers power {self.folder} --add {max(more)} (in every experiment)"
            if self.independent is not None:  # only a fifth of the trials that are added would be independent
                trials = self.independent + max(more)
                add = f"set vary_apart = false and trials = {trials} in {self.folder / STUDY_FILE}"
            plan, run = (
                f"whichlayers plan {self.folder} (how long that takes)",
                f"whichlayers run {self.folder}",
            )
            lines.append(f"Run more trials: {add}, then {plan} and {run}")
        if self.next_study is not None:
            asked = join_list(q.topic for q in self.recommendation.unasked)
            lines.append(
                f"Not asked by this study: {asked}. To ask: whichlayers plan {self.next_study}, then run"
            )
        return lines

    def _build_command(self) -> str:
        """The command that builds what is recommended, with the options of this recommendation."""
        found = [a for a in self.answers if a.verdict == RECOMMENDED]
        first = self.recommendation.best(self.answers) or found[0]  # features are not built unless asked for
        command = [f"whichlayers build {self.folder} --out my-model"]
        if len({a.model_fingerprint for a in self.answers}) > 1:
            command.append(f"--model {self._short_names()[first.model]}")
        if len({a.task for a in self.answers}) > 1:
            command.append(f"--task {first.task}")
        if self.recommendation.tolerance != TOLERANCE:
            command.append(f"--tolerance {self.recommendation.tolerance:g}")
        goal = self.recommendation.goal
        if goal is None and QUESTIONS[first.question].goals == ("features",):
            goal = "features"
        if goal is not None:
            command.append(f"--for {goal}")
        option = self.setting_options.get(first.trial_id or "", "") if goal == "features" else ""
        if option:
            command.append(option)
        same = [a for a in found if (a.model_fingerprint, a.task) == (first.model_fingerprint, first.task)]
        others = dict.fromkeys(a.question for a in same if a.question != first.question)
        if others and self.recommendation.goal is None:
            command.append(f"(or with {join_list((f'--like {question}' for question in others), 'or')})")
        other_settings = dict.fromkeys(self.setting_options.get(a.trial_id or "", "") for a in same)
        if option and (alternatives := [text for text in other_settings if text != option]):
            command.append(f"(or with {join_list(alternatives, 'or')})")
        return " ".join(command)

    def __str__(self) -> str:
        """All answers and the next steps, as lines of text."""
        lines = []
        for answer in self.answers:
            lines.append(f"{self.question(answer).title} ({self.heading(answer)}): {answer.verdict}")
            lines += [f"  {text}" for text in self.paragraphs(answer)]
        return "\n".join([*filter(None, [self.progress()]), *self.notes, *lines, *self.next_steps()])

    def to_dict(self) -> dict[str, Any]:
        """JSON-serializable values: the recommendation, the cost of each recommended model, what to run next."""
        result = self.recommendation.to_dict()
        for answer, values in zip(self.answers, result["answers"], strict=True):
            values["cost"] = self._cost(answer, answer.layers)
            values["baseline_cost"] = self._cost(answer, tuple(range(1, answer.depth + 1)))
        result |= {"trials": self.trials, "trials_done": self.done, "running": self.running}
        result["notes"] = list(self.notes)
        result["next_study"] = None if self.next_study is None else str(self.next_study)
        return result

    def _cost(self, answer: Answer, layers: tuple[int, ...] | None) -> dict[str, Any] | None:
        cost = None if layers is None else find_cost(self.costs, answer.model_fingerprint, layers)
        return None if cost is None or not answer.layers else vars(cost) | {"layers": list(cost.layers)}


def recommend_study(
    folder: StudyFolder, tolerance: float = TOLERANCE, goal: Goal | None = None, measure: bool = True
) -> StudyRecommendation:
    """The recommendation of a study folder.

    Measured costs are stored in costs.json and questions that the study did not ask in next-study.toml, both in the
    folder.

    Args:
        folder: The study folder.
        tolerance, goal: As for `analysis.recommend.recommend`.
        measure: Measure parameters and latency of the models concerned, unless that was done before.
    """
    from whichlayers.results.costs import read_costs

    points, running = load_points(folder.path), lock_holder(folder.path) is not None
    status = points.drop_duplicates("trial_id")["status"]
    done = int((status == "done").sum())
    if running and not done:
        raise WhichlayersError(
            f"the study in {folder.path} is running, and none of its {counted(len(status), 'trial')} is done: wait for"
            f" the first results; whichlayers status {folder.path} shows the progress"
        )
    unfinished = set(points.loc[points["status"] != "done", "experiment"])
    recommendation = recommend(finished(points), tolerance, goal, unfinished)
    costs = answer_costs(folder, recommendation.answers) if measure else read_costs(folder.path)
    next_study = _write_next(folder, recommendation.unasked)
    notes = _failure_notes(int((status == "failed").sum())) + seed_notes(points)
    use = seed_use(points[points["status"] == "done"])
    return StudyRecommendation(
        folder.path,
        recommendation,
        tuple(costs),
        next_study,
        done,
        len(status),
        running,
        notes=tuple(notes),
        independent=len(use.independent) if use.shared else None,
        setting_options=setting_options(load_probes(folder.path)),
    )


def _failure_notes(failed: int) -> list[str]:
    """A sentence on failed trials, such as trainings that diverged: nothing says how they would have scored."""
    if not failed:
        return []
    left_out = f"{counted(failed, 'trial')} failed and {'is' if failed == 1 else 'are'} left out"
    return [f"{left_out}: scores, intervals and verdicts are those of the trainings that did not fail."]


def _write_next(folder: StudyFolder, unasked: tuple[Question, ...]) -> Path | None:
    """Write the study file of the questions that were not asked; None if it cannot be written."""
    try:
        study = load_study(folder.study_file)
    except WhichlayersError:  # results without a study file
        return None
    models = load_study_summary(folder.path).models
    depth, families = min(model.depth for model in models), {model.family for model in models}
    follow_up = follow_up_study(
        study, [question.ask(depth, study.training.lr) for question in unasked], families
    )
    return None if follow_up is None else write_follow_up(folder.path, follow_up)
