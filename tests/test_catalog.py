"""Every name in the catalog can be loaded or computed, and is known to the study file."""

import pytest

from whichlayers.catalog import BUILTIN_TASKS, CORPORA, GLUE, METRICS, TAG_COLUMNS, glue_name, metrics_of
from whichlayers.config.corpus import CorpusSpec
from whichlayers.config.sections import TaskSpec
from whichlayers.data.metrics import SCORERS
from whichlayers.plots.display_names import metric_name


def test_every_metric_is_computed_and_has_a_display_name():
    assert set(SCORERS) == set(METRICS)
    assert {*metrics_of("classification"), *metrics_of("regression")} == set(METRICS)
    assert metric_name("mcc") == "Matthews correlation"


def test_metrics_of_tasks_are_in_the_catalog():
    for name, task in [*GLUE.items(), *BUILTIN_TASKS.items()]:
        assert set(task.metrics) <= set(METRICS), name
        kinds = {METRICS[metric].kind for metric in task.metrics}
        assert kinds == {GLUE[name].kind if name in GLUE else "classification"}, name


@pytest.mark.parametrize("name", [*GLUE, *BUILTIN_TASKS])
def test_a_study_may_name_every_task_and_its_metrics(name):
    task = TaskSpec(name=name)
    assert (task.name, task.origin) == (name, "glue" if name in GLUE else "builtin")
    for metric in (GLUE | BUILTIN_TASKS)[name].metrics:
        assert TaskSpec(name=name, metric=metric).metric == metric


@pytest.mark.parametrize("name", CORPORA)
def test_a_study_may_name_every_corpus(name):
    assert CorpusSpec(name=name.upper()).name == name
    files = CORPORA[name]
    assert files.format == "conll" or files.column in TAG_COLUMNS[files.format]


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("sst2", "SST-2"),
        ("SST_2", "SST-2"),
        ("sst", "SST-2"),
        ("stsb", "STS-B"),
        ("sts-b", "STS-B"),
        ("cola", "CoLA"),
        ("Mnli", "MNLI"),
        ("quora", "QQP"),
        ("wnli", "WNLI"),
        ("imdb", None),
        ("", None),
    ],
)
def test_spellings_of_glue_names(written, name):
    assert glue_name(written) == name
