"""The recommendation on the report page."""

from pathlib import Path

import numpy as np
import pytest
from synthetic_results import incremental, lifelike, prune, write_results

from whichlayers.report.build import page
from whichlayers.report.recommendation import recommendation_section
from whichlayers.results.frames import finished, load_points


def test_an_answer_has_one_sentence_for_the_main_findings(tmp_path: Path) -> None:
    points = incremental(trials=8)
    noise = np.random.default_rng(0).normal(0, 1e-3, 8)
    folder = write_results(tmp_path, points, lambda p: 0.8 + noise[p.trial.seed] * p.x + 0.05 * (p.x == 4))
    section = recommendation_section(folder, finished(load_points(folder)))
    assert section is not None
    (item,) = section.questions[0].answers
    assert (item.heading, item.verdict) == ("SST-2, 500 examples", "recommended")
    assert item.summary.startswith("Finetune with the top 2 layers re-initialized: +")
    assert item.summary.endswith(" trials).")
    assert item.text.startswith(item.summary)
    assert "Compared: the top 1 to 6 layers re-initialized" in item.text


def test_only_questions_that_choose_the_best_have_its_note(tmp_path: Path) -> None:
    for name, points, expected in (("prune", prune(), False), ("incremental", incremental(), True)):
        folder = write_results(tmp_path / name, points, lifelike(6))
        section = recommendation_section(folder, finished(load_points(folder)))
        assert section is not None
        assert section.chooses_best is expected
        assert ("Where the best of several is chosen" in page(folder)) is expected


def test_a_single_trial_has_no_interval_that_is_adjusted(tmp_path: Path) -> None:
    assert "Where the best of several is chosen" not in page(
        write_results(tmp_path, incremental(trials=1), lifelike(6))
    )


@pytest.mark.parametrize(("trials", "answered"), [(3, False), (10, True)])
def test_findings_precede_questions_without_an_answer(tmp_path: Path, trials: int, answered: bool) -> None:
    folder = write_results(tmp_path, incremental(trials=trials), lifelike(6))
    section = recommendation_section(folder, finished(load_points(folder)))
    assert section is not None
    assert [question.answered for question in section.questions] == [answered]
    found = page(folder).partition('id="main-findings"')[2].partition("</section>")[0]
    question, finding = found.index(section.questions[0].title), found.index("from one k to the next")
    assert (question < finding) is answered
