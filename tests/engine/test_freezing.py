"""Frozen parameters: shared by the trials of a stack, without optimizer state, exact against the plain loop."""

import dataclasses

import pytest
import torch
from plain_loop import plain_finetune
from stack_loop import assert_equals_plain_loop, run_steps, trial, without_dropout
from tiny import ENCODERS, tiny_encoder, tiny_task
from torch import nn

from whichlayers.engine.finetune import finetune, stack_key
from whichlayers.engine.optimizer import FlatAdamW
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.trial import Surgery, Training, Trial


def frozen(*layers: int) -> tuple[tuple[int, float], ...]:
    return tuple((layer, 0.0) for layer in layers)


HEAD_ONLY = frozen(0, 1, 2, 3)
SETTINGS = {
    "top layer": {"lr_factors": frozen(0, 1, 2)},
    "bottom layer": {"lr_factors": frozen(2, 3)},
    "head": {"lr_factors": HEAD_ONLY},
    "biases": {"parameters": "biases"},
    "norms": {"parameters": "norms"},
    "biases of the top layers": {"parameters": "biases", "lr_factors": frozen(0, 1)},
}


def trials_of(setting: str, **training) -> list[Trial]:
    settings = SETTINGS[setting] | training
    return [trial(seed, weight_decay=0.1 * seed, lr=1e-3 * (seed + 1), **settings) for seed in range(3)]


@pytest.mark.parametrize(
    ("family", "setting"),
    [(f, "top layer") for f in (*ENCODERS, "llama", "gemma3_text", "gpt2", "opt")]
    + [("bert", s) for s in SETTINGS if s != "top layer"]
    + [
        ("xlnet", "biases"),
        ("xlnet", "bottom layer"),
        ("modernbert", "norms"),
        ("mpnet", "biases"),
        ("gpt2", "biases"),
    ],
)
def test_a_stack_with_frozen_parameters_equals_the_plain_loop(family, setting):
    encoder, data, trials = tiny_encoder(family), tiny_task(), trials_of(setting)
    assert assert_equals_plain_loop(trials, encoder, data).shared_names


def test_frozen_parameters_have_no_trial_axis_no_gradient_and_no_moments():
    trainer, _ = run_steps(trials_of("top layer"), tiny_encoder("bert"), tiny_task(), 2)
    model = trainer.model.module
    plain = dict(tiny_encoder("bert").named_parameters())
    by_name = dict(model.named_parameters())
    for name in plain:
        if name.startswith("pooler"):
            continue
        param, trained = by_name[f"encoder.{name}"], name.startswith("encoder.layer.2.")
        assert param.requires_grad == trained
        assert param.shape == ((3, *plain[name].shape) if trained else plain[name].shape)
    assert isinstance(model.encoder.encoder.layer[0].output.dense, nn.Linear)
    trained = [n for n, p in by_name.items() if p.requires_grad]
    with_moments = {n.removeprefix("exp_avg/").partition("#")[0] for n in trainer.state() if "exp_avg/" in n}
    assert with_moments == set(trained)


def test_no_backward_pass_runs_below_the_lowest_trained_layer():
    """The output of the layer below has no graph, so that autograd stores nothing for it."""
    trials = trials_of("top layer", dropout=0.1)
    trainer = StackTrainer(trials, tiny_encoder("bert"), tiny_task(), torch.device("cpu"), EngineSettings())
    needs_graph = []
    for layer in trainer.model.module.encoder.encoder.layer:
        layer.register_forward_hook(lambda _, __, out: needs_graph.append(_first(out).requires_grad))
    trainer.step_runner(0)
    assert needs_graph == [False, False, True]


def _first(output):
    return output[0] if isinstance(output, tuple) else output


@pytest.mark.parametrize("family", ["bert", "mpnet", "deberta-v2", "modernbert"])
@pytest.mark.parametrize("packed", [True, False])
def test_a_cached_prefix_gives_the_same_losses_as_computing_it(family, packed):
    encoder, data = tiny_encoder(family), tiny_task()
    trials = trials_of("top layer", dropout=0.2, frozen_dropout=False)
    results = []
    for cache_prefix in (True, False):
        settings = EngineSettings(cache_prefix=cache_prefix, packed=packed)
        trainer, losses = run_steps(trials, encoder, data, 20, settings)
        assert (trainer.prefix_cache is not None) == cache_prefix
        results.append((losses, trainer.evaluate()[0]))
    torch.testing.assert_close(results[0][0], results[1][0], rtol=0, atol=1e-4)
    assert results[0][1] == pytest.approx(results[1][1], abs=1e-4)


def test_cached_layers_are_not_computed_in_training_steps():
    trials = trials_of("top layer", dropout=0.2, frozen_dropout=False)
    trainer = StackTrainer(trials, tiny_encoder("bert"), tiny_task(), torch.device("cpu"), EngineSettings())
    calls = []
    layers = trainer.model.module.encoder.encoder.layer
    for number, layer in enumerate(layers, 1):
        layer.attention.register_forward_hook(lambda *_, n=number: calls.append(n))
    trainer.step_runner(0)
    assert calls == [3]
    trainer.evaluate()
    assert set(calls) == {1, 2, 3}


@pytest.mark.parametrize(
    ("training", "surgery", "cached"),
    [
        ({"lr_factors": frozen(0, 1), "frozen_dropout": False}, None, True),
        ({"lr_factors": frozen(0, 1)}, None, False),  # dropout is on
        ({"lr_factors": frozen(0, 1), "dropout": 0.0}, None, True),
        ({"lr_factors": frozen(1, 2), "frozen_dropout": False}, None, False),  # the embeddings are trained
        ({"lr_factors": frozen(0), "frozen_dropout": False}, None, False),  # no layer to skip
        ({"lr_factors": frozen(0, 1), "frozen_dropout": False}, Surgery(reinit=(1,)), False),  # by seed
        ({"parameters": "biases", "frozen_dropout": False}, None, False),
    ],
)
def test_only_a_constant_prefix_is_cached(training, surgery, cached):
    training = {"dropout": 0.1} | training
    trials = [trial(seed, surgery=surgery, **training) for seed in range(2)]
    trainer = StackTrainer(trials, tiny_encoder("bert"), tiny_task(), torch.device("cpu"), EngineSettings())
    assert (trainer.prefix_cache is not None) == cached


def test_dropout_of_frozen_layers_can_be_turned_off():
    def rates(**training):
        one = trial(0, lr_factors=frozen(0, 1), dropout=0.2, **training)
        trainer = StackTrainer(
            [one], tiny_encoder("bert"), tiny_task(), torch.device("cpu"), EngineSettings()
        )
        model = trainer.model.module
        layers = [model.encoder.embeddings, *model.encoder.encoder.layer, model.dropout]
        return [{m.p for m in layer.modules() if hasattr(m, "p")} for layer in layers]

    assert rates() == [{0.2}] * 5
    assert rates(frozen_dropout=False) == [{0.0}, {0.0}, {0.2}, {0.2}, {0.2}]


def test_frozen_layers_that_differ_between_trials_are_not_shared():
    """Re-initialized layers that are frozen, and permuted ones, keep their trial axis."""
    surgeries = [Surgery(reinit=(1,)), Surgery(reinit=(1,)), Surgery(order=(2, 1, 3))]
    trials = [trial(s, surgery=surgery, lr_factors=frozen(0, 1, 2)) for s, surgery in enumerate(surgeries)]
    encoder, data = tiny_encoder("bert"), tiny_task()
    trainer, losses = run_steps(trials, encoder, data, 10)
    shared_layers = {trainer.initial_weights.layer_of(name) for name in trainer.shared_names}
    assert shared_layers == {0}
    for t, one in enumerate(trials):
        _, expected = plain_finetune(one, without_dropout(encoder), data, max_steps=10)
        torch.testing.assert_close(losses[:, t], torch.tensor(expected), rtol=0, atol=1e-4)


def test_a_permuted_model_that_all_trials_share():
    trials = [trial(seed, surgery=Surgery(order=(2, 1, 3)), lr_factors=frozen(0, 1, 2)) for seed in range(2)]
    encoder, data = tiny_encoder("bert"), tiny_task()
    trainer, losses = run_steps(trials, encoder, data, 10)
    assert {trainer.initial_weights.layer_of(name) for name in trainer.shared_names} == {0, 1, 2}
    _, expected = plain_finetune(trials[1], without_dropout(encoder), data, max_steps=10)
    torch.testing.assert_close(losses[:, 1], torch.tensor(expected), rtol=0, atol=1e-4)


def test_bfloat16_optimizer_has_no_moments_for_frozen_parameters(monkeypatch):
    """FlatAdamW, the optimizer of the GPU, with layers that are frozen but differ between trials."""
    trials = [trial(s, surgery=Surgery(reinit=(1,)), lr_factors=frozen(0, 1)) for s in range(2)]
    encoder = tiny_encoder("bert")
    monkeypatch.setattr(FlatAdamW, "BUCKET_NUMEL", 512)
    trainer, _ = run_steps(
        trials, encoder, tiny_task(), 3, EngineSettings(precision="bfloat16", bfloat16_weights=True)
    )
    large = {i: trainer.parameters[i].param.requires_grad for i in trainer.optimizer.large}
    assert set(large.values()) == {True, False}
    for i, trained in large.items():
        assert bool(trainer.optimizer.m[i].numel()) == trained
    before = trainer.initial_weights.values(
        "encoder.encoder.layer.0.output.dense.weight", (32, 64), trainer.device
    )
    index = next(
        i for i, p in enumerate(trainer.parameters) if p.name.endswith("layer.0.output.dense.weight")
    )
    torch.testing.assert_close(trainer.optimizer.values(index), before, rtol=0, atol=0)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_adam_without_bias_correction(precision):
    """Both optimizers against an AdamW written out; without the correction the first steps are larger."""
    encoder, data = tiny_encoder("bert"), tiny_task()
    one = trial(1, lr=3e-4, bias_correction=False, weight_decay=0.1)
    settings = EngineSettings(precision=precision, bfloat16_weights=True)
    _, losses = run_steps([one], encoder, data, 20, settings)
    _, expected = plain_finetune(one, without_dropout(encoder), data, max_steps=20)
    tolerance = 1e-4 if precision == "float32" else 5e-2
    torch.testing.assert_close(losses[:, 0], torch.tensor(expected), rtol=0, atol=tolerance)
    corrected = dataclasses.replace(one, training=dataclasses.replace(one.training, bias_correction=True))
    _, other = plain_finetune(corrected, without_dropout(encoder), data, max_steps=20)
    assert max(abs(a - b) for a, b in zip(expected, other, strict=True)) > 1e-2
    assert stack_key(one) != stack_key(corrected)


def test_the_pooler_is_reinitialized_as_by_surgery():
    encoder, data = tiny_encoder("bert"), tiny_task()
    trials = [
        trial(seed, head="pooler", surgery=Surgery(reinit=(3,), recipe="bert_init", reinit_pooler=True))
        for seed in range(2)
    ]
    trials.append(trial(1, head="pooler", surgery=Surgery(reinit=(3,), recipe="bert_init")))
    _, losses = run_steps(trials, encoder, data, 10)
    for t, one in enumerate(trials):
        _, expected = plain_finetune(one, without_dropout(encoder), data, max_steps=10)
        torch.testing.assert_close(losses[:, t], torch.tensor(expected), rtol=0, atol=1e-4)
    assert (losses[:, 1] - losses[:, 2]).abs().max() > 1e-3


def test_trials_that_train_different_parts_do_not_share_a_stack():
    keys = {stack_key(trials_of(s)[0]) for s in SETTINGS} | {stack_key(trial(0))}
    assert len(keys) == len(SETTINGS) + 1
    assert len({stack_key(t) for t in trials_of("top layer")}) == 1


def test_time_and_memory_of_each_setting_are_results():
    encoder, data = tiny_encoder("bert"), tiny_task()
    settings = {"all": {}, "top": {"lr_factors": frozen(0, 1, 2)}, "head": {"lr_factors": HEAD_ONLY}}
    costs = {
        name: finetune([trial(seed, **training) for seed in range(2)], encoder, data)[1]
        for name, training in settings.items()
    }
    sizes = {name: sum(p.numel() for p in part.parameters()) for name, part in encoder.named_children()}
    head = 32 * 3 + 3
    assert costs["head"].trained_parameters == head
    assert costs["top"].trained_parameters == head + sizes["encoder"] // 3
    assert costs["all"].trained_parameters == head + sizes["encoder"] + sizes["embeddings"]
    assert costs["head"].memory < costs["top"].memory < costs["all"].memory
    weights = 4 * 2 * costs["all"].trained_parameters  # of both trials, in float32
    assert costs["all"].memory > 2 * weights  # at least weights, gradients and moments of the layers
    assert all(result.seconds > 0 for result in costs.values())


def test_finetune_reports_no_change_of_frozen_matrices():
    results = finetune(trials_of("top layer"), tiny_encoder("bert"), tiny_task())
    for result in results:
        changed = {change.layer: change.frobenius > 0 for change in result.weight_changes}
        assert changed == {1: False, 2: False, 3: True}
        assert all(change.start_frobenius > 0 for change in result.weight_changes)


def test_new_settings_are_in_the_id_only_if_they_differ_from_their_default():
    old = trial(0)
    changed = [
        trial(0, parameters="biases"),
        trial(0, bias_correction=False),
        trial(0, surgery=Surgery(reinit_pooler=True), head="pooler"),
        trial(0, lr_factors=frozen(1), dropout=0.1, frozen_dropout=False),
    ]
    assert len({t.id for t in [old, *changed]}) == 5
    assert trial(0, frozen_dropout=False).id == old.id  # nothing is frozen
    for one in [old, *changed]:
        assert Trial.from_json(one.to_json()) == one
    assert "frozen_dropout" not in old.to_json()
    assert Training().frozen_layers == ()
