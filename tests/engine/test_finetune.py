"""Stacked trials give the same results as the same trials alone, and as a plain Hugging Face training loop."""

import dataclasses

import pytest
import torch
from plain_loop import plain_finetune
from stack_loop import assert_equals_plain_loop, run_steps, trial, without_dropout
from tiny import ENCODERS, tiny_encoder, tiny_task

from whichlayers.engine.finetune import finetune, stack_key
from whichlayers.engine.settings import EngineSettings
from whichlayers.errors import WhichlayersError
from whichlayers.trial import COMPONENTS, Surgery, Trial

# seeds of other trials in the stack, each for another component
OWN_SEEDS = (("subset", 4), ("order", 3), ("init", 1), ("head", 2), ("dropout", 0))


def mixed_trials(family: str) -> list[Trial]:
    """Trials that differ in everything a stack allows."""
    moved = (
        Surgery(order=(1, 3, 2)) if family != "modernbert" else Surgery(reinit=(1,), recipe="as_described_v1")
    )
    return [
        trial(0),
        trial(1, surgery=Surgery(reinit=(2, 3))),
        trial(2, surgery=moved, lr=1e-3),
        trial(3, surgery=Surgery(reinit=(3,), recipe="as_released", keep_layer_norm=True), weight_decay=0.1),
        trial(4, surgery=Surgery(reinit=(1,), recipe="bert_init"), lr_factors=((1, 5.0), (2, 0.0), (0, 0.5))),
        trial(4, surgery=dataclasses.replace(moved, reinit=(2,), recipe="shuffled")),
        trial(4, surgery=Surgery(reinit=(2, 3), recipe="shuffled")),
        trial(4, surgery=Surgery(reinit=(2,), recipe="mean_var")),
        dataclasses.replace(trial(4, surgery=Surgery(reinit=(2, 3))), seeds=OWN_SEEDS),
    ]


@pytest.mark.parametrize("family", ENCODERS)
def test_a_stack_equals_the_plain_loop_over_20_steps(family):
    encoder, data, trials = tiny_encoder(family), tiny_task(), mixed_trials(family)
    assert_equals_plain_loop(trials, encoder, data)


@pytest.mark.parametrize("epochs", [3, 12])  # fewer and more than LOSS_VALUES
def test_losses_by_step_average_to_those_of_the_epochs(epochs, monkeypatch):
    monkeypatch.setattr("whichlayers.engine.finetune.LOSS_VALUES", 9)
    values: list[tuple[int, list[float]]] = []
    trials = [trial(0, epochs=epochs), trial(1, epochs=epochs)]
    settings = EngineSettings(slots=3)  # the padding has no losses
    results = finetune(
        trials, tiny_encoder("bert"), tiny_task(), settings=settings, on_loss=lambda *v: values.append(v)
    )
    per_epoch = trials[0].steps_per_epoch
    steps = [0, *(step for step, _ in values)]
    assert steps[-1] == per_epoch * epochs
    assert len(values) == (9 if epochs == 3 else epochs)
    for t, result in enumerate(results):
        for record in result.epochs:
            inside = range((record.epoch - 1) * per_epoch + 1, record.epoch * per_epoch + 1)
            total = sum(
                losses[t] * (step - before)
                for before, (step, losses) in zip(steps, values, strict=False)
                if step in inside
            )
            assert total / per_epoch == pytest.approx(record.train_loss, rel=1e-5)
        assert all(len(losses) == 2 for _, losses in values)


@pytest.mark.parametrize("family", ENCODERS)
def test_a_trial_is_the_same_alone_and_in_any_slot_with_dropout(family):
    encoder, data = tiny_encoder(family), tiny_task()
    trials = [
        dataclasses.replace(t, training=dataclasses.replace(t.training, dropout=0.2))
        for t in mixed_trials(family)
    ]
    _, together = run_steps(trials, encoder, data, 20)
    _, turned = run_steps(trials[::-1], encoder, data, 20)
    torch.testing.assert_close(turned.flip(1), together, rtol=0, atol=1e-4)
    for t in (1, 4):
        _, alone = run_steps([trials[t]], encoder, data, 20)
        torch.testing.assert_close(alone[:, 0], together[:, t], rtol=0, atol=1e-4)
    # and dropout has an effect
    _, without = run_steps(mixed_trials(family), encoder, data, 3)
    assert (without - together[:3]).abs().max() > 1e-3


@pytest.mark.parametrize("component", COMPONENTS)
def test_each_component_has_its_own_seed(component):
    """A trial with the seed of another for one component has that component of the other, and only that."""
    encoder, data = tiny_encoder("bert"), tiny_task()
    surgery = Surgery(reinit=(2,))
    first, second = (trial(seed, surgery=surgery, dropout=0.2) for seed in (0, 1))
    mixed = dataclasses.replace(first, seeds=((component, 1),))
    same = dataclasses.replace(first, seed=7, seeds=tuple((c, 0) for c in COMPONENTS))
    swapped = dataclasses.replace(second, seeds=tuple((c, 0) for c in COMPONENTS if c != component))
    trainer, losses = run_steps([first, mixed, same, swapped, second], encoder, data, 10)
    torch.testing.assert_close(losses[:, 2], losses[:, 0], rtol=0, atol=1e-5)
    torch.testing.assert_close(losses[:, 3], losses[:, 1], rtol=0, atol=1e-5)
    assert (losses[:, 1] - losses[:, 0]).abs().max() > 1e-4
    assert (losses[:, 1] - losses[:, 4]).abs().max() > 1e-4

    rows = [trainer.train_loader.batch_rows[t].flatten() for t in (0, 1, 4)]  # of seed 0, mixed, seed 1
    assert rows[1].equal(rows[0]) == (component not in ("subset", "order"))
    examples = [set(r.tolist()) for r in rows]
    assert (examples[1] == examples[0], examples[1] == examples[2]) == (
        component != "subset",
        component == "subset",
    )
    device = torch.device("cpu")
    for name, of in (("classifier.weight", "head"), ("encoder.encoder.layer.1.output.dense.weight", "init")):
        shape = trainer.model.trial_parameter(name, 0).shape
        values = trainer.initial_weights.values(name, shape, device)
        assert values[1].equal(values[0]) == (component != of)
        assert values[1].equal(values[4]) == (component == of)
    keys = trainer.trial_keys.tolist()
    assert (keys[1] == keys[0], keys[1] == keys[4]) == (component != "dropout", component == "dropout")


def test_permuted_and_original_layer_order_share_a_stack():
    encoder, data = tiny_encoder("bert"), tiny_task()
    pair = [trial(0), trial(0, surgery=Surgery(order=(3, 1, 2)))]
    for result, one in zip(finetune(pair, encoder, data), pair, strict=True):
        [alone] = finetune([one], encoder, data)
        assert result.epochs[-1].dev_loss == pytest.approx(alone.epochs[-1].dev_loss, abs=1e-4)


def test_mean_and_pooler_heads_share_a_stack():
    encoder, data = tiny_encoder("bert"), tiny_task()
    trials = [trial(0, "mean"), trial(1, "pooler"), trial(2, "mean", lr=1e-3)]
    _, losses = run_steps(trials, encoder, data, 20)
    for t, one in enumerate(trials):
        _, expected = plain_finetune(one, without_dropout(encoder), data, max_steps=20)
        torch.testing.assert_close(losses[:, t], torch.tensor(expected), rtol=0, atol=1e-4)


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_metrics_and_losses_after_every_epoch(kind):
    encoder, data = tiny_encoder("bert"), tiny_task(kind=kind)
    seen = []
    steps = []
    trials = [trial(0), trial(1, warmup=0.0)]
    results = finetune(
        trials, encoder, data, on_epoch=lambda i, r: seen.append((i, r.epoch)), on_step=steps.append
    )
    assert [(i, e) for e in (1, 2, 3) for i in (trials[0].id, trials[1].id)] == seen
    assert sum(steps) == 2 * 3 * 7
    for one, result in zip(trials, results, strict=True):
        assert result.error is None
        model, losses = plain_finetune(one, without_dropout(encoder), data)
        assert result.epochs[-1].train_loss == pytest.approx(sum(losses[-7:]) / 7, abs=1e-4)
        expected = plain_evaluation(model, data)
        assert result.epochs[-1].dev_loss == pytest.approx(expected.pop("loss"), abs=1e-3)
        assert result.epochs[-1].metrics == pytest.approx(expected, abs=1e-3)


def test_evaluating_only_at_the_end_gives_the_same_final_metrics():
    encoder, data = tiny_encoder("bert"), tiny_task()
    [each] = finetune([trial(0)], encoder, data)
    [once] = finetune([trial(0, evaluate="end")], encoder, data)
    assert [record.epoch for record in once.epochs] == [3]
    assert once.epochs[0].metrics == each.epochs[-1].metrics
    assert once.epochs[0].dev_loss == each.epochs[-1].dev_loss
    assert trial(0, evaluate="end").id != trial(0).id


def plain_evaluation(model, data):
    import numpy as np
    import torch.nn.functional as F
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import accuracy_score, matthews_corrcoef

    from whichlayers.data.batches import pad

    model.eval()
    dev = data.evals[""]
    logits = []
    with torch.no_grad():
        for i in range(len(dev)):  # one row at a time: nothing is padded
            b = pad(dev, np.array([i]), data.pad_id)
            logits.append(
                model(*(torch.from_numpy(x) for x in (b.input_ids, b.attention_mask, b.token_type_ids)))
            )
    out, labels = torch.cat(logits), torch.from_numpy(dev.labels)
    if data.kind == "regression":
        return {
            "loss": F.mse_loss(out[:, 0], labels).item(),
            "pearson": pearsonr(out[:, 0], labels).statistic,
            "spearman": spearmanr(out[:, 0], labels).statistic,
        }
    return {
        "loss": F.cross_entropy(out, labels).item(),
        "accuracy": accuracy_score(labels, out.argmax(1)),
        "mcc": matthews_corrcoef(labels, out.argmax(1)),
    }


def test_one_study_at_three_stack_sizes_gives_the_same_metrics():
    encoder, data = tiny_encoder("bert"), tiny_task()
    trials = [
        trial(s, surgery=Surgery(reinit=r), dropout=0.1)
        for s in range(3)
        for r in ((), (3,), (2, 3), (1, 2, 3))
    ][:8]
    results = {}
    for size in (1, 3, 8):
        found = {}
        for start in range(0, len(trials), size):
            for result in finetune(trials[start : start + size], encoder, data):
                found[result.trial_id] = result.epochs[-1]
        results[size] = found
    for trial_id, record in results[8].items():
        for size in (1, 3):
            assert results[size][trial_id].metrics == pytest.approx(record.metrics, abs=1e-6)
            assert results[size][trial_id].dev_loss == pytest.approx(record.dev_loss, abs=1e-4)


def test_the_same_trial_twice_gives_the_same_bits():
    encoder, data = tiny_encoder("bert"), tiny_task()
    a, b = (finetune([trial(3, dropout=0.1)], encoder, data)[0].epochs for _ in range(2))
    assert [(r.train_loss, r.dev_loss, r.metrics) for r in a] == [
        (r.train_loss, r.dev_loss, r.metrics) for r in b
    ]


def test_a_trial_that_diverges_fails_alone():
    encoder, data = tiny_encoder("bert"), tiny_task()
    good, bad = trial(0), trial(1, lr=1e30)
    results = finetune([bad, good], encoder, data)
    assert "not a finite number" in results[0].error
    assert results[1].error is None
    assert results[1].epochs[-1].dev_loss == pytest.approx(
        finetune([good], encoder, data)[0].epochs[-1].dev_loss, abs=1e-4
    )


def test_weight_decay_applies_to_rows_that_are_not_in_the_training_set():
    encoder, data = tiny_encoder("bert"), tiny_task(n_train=12)
    one = dataclasses.replace(trial(0, weight_decay=0.5, lr=1e-2), train_size=12)
    trainer, _ = run_steps([one], encoder, data, 6)
    model, _ = plain_finetune(one, without_dropout(encoder), data)
    name = "encoder.embeddings.word_embeddings.weight"
    assert trainer.word_embeddings.weight.shape[1] < 120
    torch.testing.assert_close(
        trainer.model.trial_parameter(name, 0), model.get_parameter(name).detach(), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("family", ["bert", "xlnet"])
def test_a_batch_of_one_row(family):
    encoder, data = tiny_encoder(family), tiny_task(n_train=9, n_dev=1)
    one = dataclasses.replace(trial(0, batch_size=1, epochs=1), train_size=9)
    result = finetune([one], encoder, data)[0]
    model, losses = plain_finetune(one, without_dropout(encoder), data)
    assert result.epochs[-1].train_loss == pytest.approx(sum(losses) / 9, abs=1e-4)
    assert result.epochs[-1].dev_loss == pytest.approx(plain_evaluation(model, data)["loss"], abs=1e-3)


def test_padded_slots_change_nothing():
    encoder, data = tiny_encoder("bert"), tiny_task()
    plain = finetune([trial(0), trial(1)], encoder, data)
    padded = finetune([trial(0), trial(1)], encoder, data, settings=EngineSettings(slots=4))
    assert len(padded) == 2
    for a, b in zip(plain, padded, strict=True):
        assert a.epochs[-1].dev_loss == pytest.approx(b.epochs[-1].dev_loss, abs=1e-5)


def test_the_precision_of_a_trial_has_precedence_over_that_of_the_engine():
    encoder, data = tiny_encoder("bert"), tiny_task()
    half = EngineSettings(precision="bfloat16", compiled=False)
    settings = EngineSettings(compiled=False)

    def losses(trial, settings):
        return [epoch.train_loss for epoch in finetune([trial], encoder, data, settings=settings)[0].epochs]

    rounded, exact = losses(trial(0), half), losses(trial(0), settings)
    assert losses(trial(0, precision="bfloat16"), settings) == rounded != exact
    assert losses(trial(0, precision="float32"), half) == exact
    assert stack_key(trial(0)) != stack_key(trial(0, precision="float32"))


@pytest.mark.parametrize("bfloat16_weights", [True, False])
def test_bfloat16_with_float32_master_weights_learns_similarly(bfloat16_weights):
    encoder, data = tiny_encoder("bert"), tiny_task(n_train=60)
    precise = finetune([trial(0, lr=1e-3)], encoder, data)[0]
    settings = EngineSettings(precision="bfloat16", bfloat16_weights=bfloat16_weights, compiled=False)
    rough = finetune([trial(0, lr=1e-3)], encoder, data, settings=settings)[0]
    assert rough.epochs[-1].train_loss == pytest.approx(precise.epochs[-1].train_loss, abs=0.05)


def test_invalid_input_is_rejected_before_any_work():
    encoder, data = tiny_encoder("bert"), tiny_task()
    with pytest.raises(WhichlayersError, match="at least one trial"):
        finetune([], encoder, data)
    with pytest.raises(WhichlayersError, match="cannot share a stack"):
        finetune([trial(0), trial(1, epochs=2)], encoder, data)
    with pytest.raises(WhichlayersError, match="there is no layer 4"):
        finetune([trial(0, surgery=Surgery(reinit=(4,)))], encoder, data)
    with pytest.raises(WhichlayersError, match="no such device; use cpu, cuda or cuda:N"):
        finetune([trial(0)], encoder, data, device="gpu")
    with pytest.raises(WhichlayersError, match="mps: not supported; use cpu, cuda or cuda:N"):
        finetune([trial(0)], encoder, data, device="mps")
    if not torch.cuda.is_available():
        with pytest.raises(WhichlayersError, match="0 CUDA devices"):
            finetune([trial(0)], encoder, data, device="cuda")
    assert stack_key(trial(0)) == stack_key(trial(1, lr=1.0, surgery=Surgery(reinit=(1,))))
    assert stack_key(trial(0)) != stack_key(trial(0, surgery=Surgery(order=(1, 2))))
    permuted, shorter = (trial(0, surgery=Surgery(order=order)) for order in ((3, 1, 2), (1, 2)))
    assert stack_key(trial(0), "bert", depth=3) == stack_key(permuted, "bert", depth=3)
    assert stack_key(trial(0), "bert", depth=3) != stack_key(shorter, "bert", depth=3)
    assert stack_key(trial(0), "modernbert", depth=3) != stack_key(permuted, "modernbert", depth=3)
