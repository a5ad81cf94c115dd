"""The work of stacks of every kind, in one unit: the time left of a run adds them up."""

import dataclasses
from types import SimpleNamespace

import pytest
from tiny import tiny_encoder, tiny_task

from whichlayers.data.corpora import load_corpus
from whichlayers.probes.progress import ENCODER_STEPS
from whichlayers.runs.handlers import HANDLERS
from whichlayers.runs.plan import Stack
from whichlayers.runs.time_left import TimeLeft
from whichlayers.trial import Probe, Trial, WordProbe

DATA = tiny_task()
ENCODER = tiny_encoder("bert")
DEPTH, HIDDEN = ENCODER.config.num_hidden_layers, ENCODER.config.hidden_size
CORPUS = load_corpus("builtin:pos")
ASSETS = SimpleNamespace(
    model_of=lambda trial: SimpleNamespace(depth=DEPTH, hidden_size=HIDDEN),
    data=lambda trial: DATA,
    corpus=lambda word_probe: CORPUS,
)
FINETUNED = Trial("tiny", "model", "tiny", "tiny", 40, 0)
PROBES = tuple(
    dataclasses.replace(FINETUNED, seed=seed, probe=Probe(layer, max_epochs=3))
    for layer in range(DEPTH + 1)
    for seed in range(2)
)
WORDS = tuple(
    dataclasses.replace(
        FINETUNED,
        task="",
        task_fingerprint="",
        train_size=0,
        word_probe=WordProbe("builtin:pos", CORPUS.fingerprint, neurons="layer", layer=layer),
    )
    for layer in range(DEPTH + 1)
)
WEIGHTS = 12 * DEPTH * HIDDEN**2
FORWARD_OF_TOKEN = float(WEIGHTS)


def work_of(stack: Stack):
    return HANDLERS[stack.trials[0].kind].work(stack.trials, ASSETS)


def total(trials) -> float:
    stack = Stack(0, tuple(trials))
    return len(trials) * work_of(stack).total(stack.steps / len(trials))


def test_probes_share_one_forward_pass():
    """Two subsets of 40 of the training examples and the dev set; the probes themselves cost little."""
    lengths = DATA.train.offsets[1:] - DATA.train.offsets[:-1]
    dev_tokens = sum(int(split.offsets[-1]) for split in DATA.evals.values())
    tokens = min(80, len(DATA.train)) * lengths.mean() + dev_tokens
    epochs = 3 * len(PROBES) * 3 * 40 * HIDDEN * DATA.n_outputs
    assert total(PROBES) == pytest.approx(tokens * FORWARD_OF_TOKEN + epochs)
    twice = [*PROBES, *(dataclasses.replace(t, probe=Probe(1, max_epochs=3, lr=0.1)) for t in PROBES)]
    assert total(twice) == pytest.approx(tokens * FORWARD_OF_TOKEN + 2 * epochs)
    assert work_of(Stack(0, PROBES)).first_steps == ENCODER_STEPS


def test_word_probes_of_the_pretrained_model():
    n_tags = len({tag for sentence in CORPUS.train.sentences for tag in sentence.tags})
    forward = 1.3 * CORPUS.n_words * FORWARD_OF_TOKEN
    probes = (DEPTH + 1) * 10 * 3 * CORPUS.train.n_words * HIDDEN * n_tags
    assert total(WORDS) == pytest.approx(forward + probes)


def test_word_probes_of_finetuned_models_include_the_finetuning():
    finetuned = [
        dataclasses.replace(t, task="tiny", task_fingerprint="tiny", train_size=40, seed=seed)
        for t in WORDS
        for seed in range(3)
    ]
    assert total(finetuned) == pytest.approx(3 * total(WORDS) + total([finetuned[0].finetuning] * 3))


@pytest.mark.parametrize("first", [PROBES, WORDS])
def test_finetuning_that_has_not_begun_is_estimated_from_the_probes_before_it(first):
    """All kinds at a billion operations a second: within 1% of the truth, before any step of finetuning."""
    speed = 1e9
    stacks = [Stack(0, first), Stack(1, (FINETUNED, dataclasses.replace(FINETUNED, seed=1)))]
    time_left, now = TimeLeft(1, work_of), 0.0
    time_left.start(stacks[0], now)
    work, trials = work_of(stacks[0]), len(first)
    for step in (1, 2, 20):
        now = trials * work.done(step) / speed
        time_left.update(0, step * trials, 0, now)
    left = time_left.estimate([stacks[1]], now)
    setup = trials * work.done(1) / speed  # until the first step is reported
    expected = total(first) / speed - now + setup + total(stacks[1].trials) / speed
    assert left == pytest.approx(expected, rel=0.01)
