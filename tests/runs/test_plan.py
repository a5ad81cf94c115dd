"""Stacks: every trial is in one stack, only trials with equal keys share one, low seeds come first."""

from __future__ import annotations

import random

import pytest
from fakes import make_points, make_trial, stack_key

from whichlayers.runs.plan import make_stacks, make_stacks_to_resume, plan_rows, trial_steps


def trials_of(*sizes: int, seeds=(0, 1, 2)):
    return [point.trial for size in sizes for point in make_points(seeds, size=size)]


@pytest.mark.parametrize(("max_stack", "workers"), [(1, 1), (4, 1), (8, 3), (100, 1), (100, 7)])
def test_every_trial_is_in_one_stack_with_others_of_its_key(max_stack, workers):
    trials = trials_of(16, 50, 8)
    random.Random(0).shuffle(trials)
    stacks = make_stacks(trials, stack_key, max_stack, workers)
    planned = [trial for stack in stacks for trial in stack.trials]
    assert sorted(t.id for t in planned) == sorted(t.id for t in trials)
    assert all(len({stack_key(t) for t in stack.trials}) == 1 for stack in stacks)
    assert all(len(stack.trials) <= max_stack for stack in stacks)
    assert [stack.number for stack in stacks] == list(range(len(stacks)))


def test_every_point_gets_its_first_trial_before_any_gets_its_second():
    stacks = make_stacks(trials_of(16, 64), stack_key, max_stack=5)
    seeds = [trial.seed for stack in stacks for trial in stack.trials]
    assert seeds == sorted(seeds)
    assert [stack.trials[0].train_size for stack in stacks] == [64, 16] * 3  # the longer stack first


def test_stacks_are_of_even_size_and_every_worker_gets_one():
    assert sorted(len(s.trials) for s in make_stacks(trials_of(16), stack_key, 8)) == [7, 8]
    assert sorted(len(s.trials) for s in make_stacks(trials_of(16), stack_key, 100, workers=4)) == [
        3,
        4,
        4,
        4,
    ]
    assert make_stacks([], stack_key, 8) == []


def test_steps_count_the_last_smaller_batch():
    assert trial_steps(make_trial(size=16, epochs=3)) == 6
    assert trial_steps(make_trial(size=17, epochs=3)) == 9
    assert trial_steps(make_trial(size=1, epochs=1)) == 1


def test_the_plan_counts_by_model_task_and_size():
    rows = plan_rows(make_stacks(trials_of(16, 64), stack_key, max_stack=5))
    assert [(r.train_size, r.trials, r.steps, r.stacks) for r in rows] == [
        (64, 15, 15 * 16, 3),
        (16, 15, 15 * 4, 3),
    ]


def test_interrupted_stacks_are_formed_again_with_the_same_trials():
    trials = trials_of(16, 64)
    stacks = make_stacks(trials, stack_key, max_stack=5)
    interrupted = [stacks[4].trial_ids, stacks[3].trial_ids]
    left = [trial for stack in stacks[2:] for trial in stack.trials]
    shuffled = [
        random.Random(1).sample(ids, len(ids)) for ids in interrupted
    ]  # the order of make_stacks counts
    again = make_stacks_to_resume(left, shuffled, stack_key, max_stack=5, workers=100)
    assert [stack.trial_ids for stack in again[:2]] == interrupted
    assert sorted(t for s in again for t in s.trial_ids) == sorted(t.id for t in left)
    assert len({stack.number for stack in again}) == len(again)
    # padded like the others: they then use the same compiled code
    small = [make_trial(seed).id for seed in (0, 1)]
    padded = make_stacks_to_resume([make_trial(seed) for seed in range(8)], [small], stack_key, 3, fill=True)
    assert [(len(s.trials), s.slots, s.similar_stacks) for s in padded] == [(2, 3, 3), (3, 3, 3), (3, 3, 3)]
    # not if they are too large now, or one of their trials is no longer in the study
    smaller = make_stacks_to_resume(left, interrupted, stack_key, max_stack=3)
    assert max(len(stack.trials) for stack in smaller) == 3
    fewer = [trial for trial in left if trial.id != interrupted[0][0]]
    assert make_stacks_to_resume(fewer, interrupted, stack_key, max_stack=5)[0].trial_ids == interrupted[1]
