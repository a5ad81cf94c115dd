"""Adapters: T of them on one shared base, exact against peft one at a time."""

import copy
import dataclasses

import pytest
import torch
import torch.nn.functional as F
from stack_loop import run_steps, trial, without_dropout
from tiny import FAMILIES, tiny_encoder, tiny_task

from whichlayers.data.batches import epoch_order, pad, subset
from whichlayers.engine.adapters import adapted_modules
from whichlayers.engine.export_weights import encoder_weights, with_weights
from whichlayers.engine.finetune import finetune, stack_key
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.errors import WhichlayersError
from whichlayers.models.head import build_classifier
from whichlayers.models.structure import ModelStructure
from whichlayers.models.surgery import apply_surgery
from whichlayers.trial import Adapter, Surgery, Trial

TARGETS = {"bert": ("attention.self.query", "attention.self.value")}  # of other families: all linear modules


def targets_of(family: str) -> tuple[str, ...]:
    return TARGETS.get(family) or tuple(ModelStructure(tiny_encoder(family)).linear_modules())


def adapted(seed: int = 0, family: str = "bert", surgery: Surgery | None = None, **adapter) -> Trial:
    settings = {"method": "lora", "layers": (2, 3), "targets": targets_of(family), "rank": 4, "alpha": 6.0}
    one = trial(seed, lr=3e-3, weight_decay=0.1 * seed, surgery=surgery)
    return dataclasses.replace(one, adapter=Adapter(**(settings | adapter)))


def peft_finetune(one: Trial, encoder, data, steps: int):
    """One trial with peft on a plain model, trained by a plain loop; returns the model and the losses."""
    import peft

    adapter, t = one.adapter, one.training
    plain = apply_surgery(encoder, one.surgery, one.seed_of("init"))
    model = build_classifier(plain, one.head, data.n_outputs, one.seed_of("head"))
    names = [f"encoder.{name}" for name in adapted_modules(ModelStructure(model.encoder), adapter)]
    if adapter.method == "lora":
        config = peft.LoraConfig(
            r=adapter.rank, lora_alpha=adapter.alpha, lora_dropout=0.0, target_modules=names,
            modules_to_save=["classifier"],
        )  # fmt: skip
    else:
        config = peft.IA3Config(target_modules=names, feedforward_modules=[], modules_to_save=["classifier"])
    wrapped = peft.get_peft_model(model, config)
    initial = StackTrainer([one], encoder, data, torch.device("cpu"), EngineSettings()).initial_weights
    with torch.no_grad():
        for name, p in wrapped.named_parameters():
            if "lora_A" in name:  # the same A
                own = name.removeprefix("base_model.model.").replace(
                    "lora_A.default.weight", "adapter.lora_a"
                )
                p.copy_(initial.values(own, p.shape, p.device)[0])
    trained = {n: p for n, p in wrapped.named_parameters() if p.requires_grad}
    groups = [
        {"params": [p], "weight_decay": 0.0 if n.endswith("bias") else t.weight_decay}
        for n, p in trained.items()
    ]
    optimizer = torch.optim.AdamW(groups, lr=t.lr, betas=t.betas, eps=t.eps)
    total = one.steps
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: (total - step) / total)
    rows, losses = subset(len(data.train), one.train_size, one.seed_of("subset")), []
    wrapped.train()
    for epoch in range(t.epochs):
        order = rows[epoch_order(len(rows), one.seed_of("order"), epoch)]
        for start in range(0, len(order), t.batch_size):
            if len(losses) == steps:
                return wrapped, losses
            b = pad(data.train, order[start : start + t.batch_size], data.pad_id)
            inputs = {"input_ids": b.input_ids, "attention_mask": b.attention_mask}
            if b.token_type_ids is not None:
                inputs["token_type_ids"] = b.token_type_ids
            logits = wrapped(**{k: torch.from_numpy(v) for k, v in inputs.items()})
            loss = F.cross_entropy(logits, torch.from_numpy(b.labels))
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(trained.values(), t.clip_norm)
            optimizer.step()
            schedule.step()
            losses.append(loss.item())
    return wrapped, losses


@pytest.mark.parametrize(
    ("family", "settings"),
    [(family, {}) for family in FAMILIES]
    + [
        ("bert", {"layers": (1, 2, 3), "rank": 1, "alpha": 30.0, "targets": ("output.dense",)}),
        ("bert", {"method": "ia3"}),
        ("xlnet", {"method": "ia3"}),
    ],
)
def test_a_stack_of_adapters_equals_peft_over_20_steps(family, settings):
    encoder, data = tiny_encoder(family), tiny_task()
    trials = [adapted(seed, family, **settings) for seed in range(3)]
    trainer, losses = run_steps(trials, encoder, data, 20)
    for t, one in enumerate(trials):
        model, expected = peft_finetune(one, without_dropout(encoder), data, 20)
        torch.testing.assert_close(losses[:, t], torch.tensor(expected), rtol=0, atol=1e-4)
        found = dict(trainer.model.module.named_parameters())
        compared = 0
        for name, p in model.named_parameters():
            if not p.requires_grad:
                continue
            own = name.removeprefix("base_model.model.").replace(".modules_to_save.default", "")
            for theirs, ours in (("lora_A.default.weight", "lora_a"), ("lora_B.default.weight", "lora_b")):
                own = own.replace(theirs, f"adapter.{ours}")
            if "ia3_l" in own:
                own, p = own.replace("ia3_l.default", "adapter.ia3"), p[:, 0]
            torch.testing.assert_close(found[own][t], p, rtol=0, atol=1e-4, msg=lambda m, n=own: f"{n}: {m}")
            compared += 1
        assert compared == sum(p.requires_grad for p in found.values())


def test_the_base_is_shared_and_only_adapters_and_head_are_trained():
    trainer, _ = run_steps([adapted(seed) for seed in range(3)], tiny_encoder("bert"), tiny_task(), 2)
    trained = {n for n, p in trainer.model.module.named_parameters() if p.requires_grad}
    assert {n.split(".")[-1] for n in trained} == {"lora_a", "lora_b", "weight", "bias"}
    assert {n for n in trained if "lora" not in n} == {"classifier.weight", "classifier.bias"}
    assert len(trained) == 2 * 2 * 2 + 2
    assert len(trainer.parameters) == len(trained)  # everything else has neither gradient nor moments
    assert trainer.model.module.encoder.encoder.layer[0].output.dense.weight.dim() == 2


@pytest.mark.parametrize(
    ("family", "targets"),
    [
        ("bert", ("intermediate.dense", "output.dense")),
        ("deberta-v2", ("attention.self.key_proj", "output.dense")),  # keys of positions have no row axis
    ],
)
def test_a_trial_with_adapters_is_the_same_alone_with_lora_dropout(family, targets):
    encoder, data = tiny_encoder(family), tiny_task()
    strong = {"targets": targets, "alpha": 60.0}
    trials = [adapted(seed, dropout=0.3, **strong) for seed in range(3)]
    _, together = run_steps(trials, encoder, data, 10)
    _, alone = run_steps(trials[2:], encoder, data, 10)
    torch.testing.assert_close(alone[:, 0], together[:, 2], rtol=0, atol=1e-4)
    _, without = run_steps([adapted(2, **strong)], encoder, data, 10)
    assert (without[:, 0] - alone[:, 0]).abs().max() > 1e-3


def test_packed_and_padded_batches_agree():
    encoder, data = tiny_encoder("bert"), tiny_task()
    trials = [adapted(seed, dropout=0.3, targets=("output.dense",), alpha=60.0) for seed in range(2)]
    _, packed = run_steps(trials, encoder, data, 10)
    _, padded = run_steps(trials, encoder, data, 10, EngineSettings(packed=False))
    torch.testing.assert_close(packed, padded, rtol=0, atol=1e-4)


def test_adapters_on_layers_that_differ_between_trials():
    """With re-initialized layers the base has a trial axis; the adapters are the same modules."""
    encoder, data = tiny_encoder("bert"), tiny_task()
    trials = [adapted(seed, surgery=Surgery(reinit=(3,))) for seed in range(2)]
    trainer, losses = run_steps(trials, encoder, data, 10)
    assert {trainer.initial_weights.layer_of(n) for n in trainer.shared_names} == {0, 1, 2}
    for t, one in enumerate(trials):
        _, expected = peft_finetune(one, without_dropout(encoder), data, 10)
        torch.testing.assert_close(losses[:, t], torch.tensor(expected), rtol=0, atol=1e-4)


@pytest.mark.parametrize("method", ["lora", "ia3"])
def test_exported_weights_contain_the_adapters(method):
    """Merged into the weights, they give the hidden states of the adapted model."""
    encoder, data = tiny_encoder("bert"), tiny_task()
    targets = ("attention.self.query", "output.dense")
    one = adapted(1, method=method, targets=targets)
    trainer, _ = run_steps([adapted(0, method=method, targets=targets), one], encoder, data, 10)
    weights = encoder_weights(trainer, 1)
    merged = with_weights(encoder, weights).eval()
    changed = {
        n for n, p in merged.named_parameters() if not torch.equal(p, dict(encoder.named_parameters())[n])
    }
    assert {n.split(".")[2] for n in changed} == {"1", "2"}
    model, _ = peft_finetune(one, without_dropout(encoder), data, 10)
    batch = {"input_ids": torch.randint(5, 110, (2, 9)), "attention_mask": torch.ones(2, 9, dtype=torch.long)}
    with torch.no_grad():
        expected = model.eval().base_model.model.encoder(**batch).last_hidden_state
        found = merged(**batch).last_hidden_state
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)


def test_changes_of_adapted_weights_are_reported():
    results = finetune([adapted(0), adapted(1)], tiny_encoder("bert"), tiny_task())
    for result in results:
        changed = {c.name for c in result.weight_changes if c.frobenius > 0}
        expected = {f"encoder.layer.{n}.{target}.weight" for n in (1, 2) for target in TARGETS["bert"]}
        assert changed == expected
        assert len(result.weight_changes) == 3 * 6


def test_bfloat16_base_with_float32_adapters():
    """FlatAdamW keeps float32 values of the adapters, whose small steps bfloat16 could not hold."""
    encoder, data = tiny_encoder("bert"), tiny_task()
    one = adapted(0)
    one = dataclasses.replace(one, training=dataclasses.replace(one.training, lr=1e-5))
    settings = EngineSettings(precision="bfloat16", bfloat16_weights=True)  # as on a GPU
    trainer, _ = run_steps([one, adapted(1)], encoder, data, 3, settings)
    index = next(i for i, p in enumerate(trainer.parameters) if p.name.endswith("lora_a"))
    values = trainer.optimizer.values(index)
    start = trainer.initial_weights.values(trainer.parameters[index].name, values.shape[1:], values.device)
    trainer_b, _ = run_steps([one], encoder, data, 3)
    reference = trainer_b.optimizer.values(index)
    assert values.dtype == torch.float32
    assert trainer.optimizer.m[index].dtype == torch.float32
    torch.testing.assert_close(values[0], start[0], rtol=0, atol=1e-4)
    torch.testing.assert_close(values[0], reference[0], rtol=0, atol=5e-5)
    assert not torch.equal(values[0], start[0])
    assert trainer.model.module.encoder.encoder.layer[0].output.dense.weight.dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"targets": ("attention.self.query", "q_proj")}, "no linear module q_proj.*attention.self.query"),
        ({"rank": 33}, "rank 33 exceeds the width of attention.self.query, 32"),
        ({"layers": (4,)}, "there is no layer 4"),
    ],
)
def test_impossible_adapters_are_refused(settings, message):
    with pytest.raises(WhichlayersError, match=message):
        run_steps([adapted(0, **settings)], tiny_encoder("bert"), tiny_task(), 1)


def test_adapters_are_part_of_the_id():
    plain, one = trial(0, lr=3e-3), adapted(0)
    assert "adapter" not in plain.to_json()
    assert Trial.from_json(one.to_json()) == one
    others = [adapted(0, **s) for s in ({"rank": 2}, {"alpha": 1.0}, {"layers": (1,)}, {"dropout": 0.1})]
    assert len({t.id for t in [plain, one, *others]}) == 6
    assert len({stack_key(t) for t in [plain, one, *others]}) == 6
    assert adapted(0, layers=(3, 2)).id == one.id
    ia3 = [adapted(0, method="ia3", rank=rank) for rank in (2, 4)]
    assert ia3[0].id == ia3[1].id
    assert copy.deepcopy(one) == one
