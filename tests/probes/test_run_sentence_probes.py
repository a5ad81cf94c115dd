"""A stack of probe trials from encoder and data to results, against scikit-learn on the same hidden states."""

import dataclasses

import numpy as np
import pytest
import torch
from tiny import tiny_encoder, tiny_task

from whichlayers.data.batches import subset
from whichlayers.engine.results import TrialResult
from whichlayers.errors import WhichlayersError
from whichlayers.probes import extract
from whichlayers.probes.extract import extract_sentences
from whichlayers.probes.progress import probe_steps
from whichlayers.probes.run_sentence_probes import run_probes, stack_key
from whichlayers.trial import COMPONENTS, Probe, Surgery, Training, Trial

TRIAL = Trial("tiny", "model", "tiny", "tiny", 50, 0, probe=Probe(1, max_epochs=6, lr=0.05))


def trials_of(layers=(0, 1, 2, 3), seeds=(0, 1), size=50, **settings) -> list[Trial]:
    return [
        dataclasses.replace(
            TRIAL,
            seed=seed,
            train_size=size,
            probe=Probe(layer, **({"max_epochs": 6, "lr": 0.05} | settings)),
        )
        for layer in layers
        for seed in seeds
    ]


@pytest.mark.parametrize("kind", ["classification", "regression"])
def test_results(kind, tmp_path):
    encoder, data = tiny_encoder("bert"), tiny_task(kind=kind)
    data = dataclasses.replace(data, evals={**data.evals, "mismatched": data.train})
    records, steps = [], []
    trials = trials_of()
    results = run_probes(
        trials,
        encoder,
        data,
        cache=tmp_path,
        on_epoch=lambda trial_id, record: records.append((trial_id, record)),
        on_step=steps.append,
    )
    assert [o.trial_id for o in results] == [t.id for t in trials]
    assert records == [(o.trial_id, o.epochs[0]) for o in results]
    assert sum(steps) == sum(probe_steps(t.probe) for t in trials)
    for result in results:
        (record,) = result.epochs
        assert result.error is None
        assert 1 <= record.epoch <= 6
        assert np.isfinite([record.train_loss, record.dev_loss, *record.metrics.values()]).all()
        names = set(data.metrics)
        assert set(record.metrics) == names | {f"{m}_mismatched" for m in names}
    assert len({o.epochs[0].dev_loss for o in results}) == len(results)


def test_each_component_has_its_own_seed():
    """Subset with held-out examples, order and head; a probe has no dropout and no re-initialized layers."""
    encoder, data = tiny_encoder("bert"), tiny_task(n_train=120)
    [first] = trials_of((2,), (0,))
    mixed = [dataclasses.replace(first, seeds=((c, 1),)) for c in ("subset", "order", "head")]
    renamed = dataclasses.replace(first, seed=5, seeds=tuple((c, 0) for c in COMPONENTS))
    together = run_probes([first, *mixed, renamed], encoder, data)
    losses = [result.epochs[0].train_loss for result in together]
    assert losses[-1] == pytest.approx(losses[0], abs=1e-6)
    assert len({round(loss, 5) for loss in losses}) == 4
    for trial, loss in zip(mixed, losses[1:], strict=False):
        [alone] = run_probes([trial], encoder, data)
        assert alone.epochs[0].train_loss == pytest.approx(loss, abs=1e-5)


def test_the_metrics_are_those_of_the_dev_set():
    """At convergence a probe predicts the same as scikit-learn."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import matthews_corrcoef

    encoder, data = tiny_encoder("roberta"), tiny_task(n_train=200, n_dev=80)
    settings = {"held_out": 0.0, "batch_size": 200, "max_epochs": 1500, "lr": 0.05, "standardize": True}
    results = run_probes(trials_of((0, 2), (0,), 200, **settings), encoder, data)
    train = extract_sentences(encoder, data.train, 0)
    dev = extract_sentences(encoder, data.evals[""], 0)
    for layer, result in zip((0, 2), results, strict=True):
        mean, sd = train[:, layer].mean(0), train[:, layer].std(0)
        model = LogisticRegression(C=np.inf, max_iter=5000).fit(
            (train[:, layer] - mean) / sd, data.train.labels
        )
        predictions = model.predict((dev[:, layer] - mean) / sd)
        metrics = result.epochs[0].metrics
        assert metrics["accuracy"] == pytest.approx((predictions == data.evals[""].labels).mean(), abs=0.03)
        expected = matthews_corrcoef(data.evals[""].labels, predictions)
        assert metrics["mcc"] == pytest.approx(expected, abs=0.05)


def same(one: TrialResult, other: TrialResult) -> bool:
    (a,), (b,) = one.epochs, other.epochs
    return (
        (a.epoch, a.metrics) == (b.epoch, b.metrics)
        and a.dev_loss == pytest.approx(b.dev_loss, rel=1e-4)
        and a.train_loss == pytest.approx(b.train_loss, rel=1e-4)
    )


def test_a_result_does_not_depend_on_the_other_trials():
    encoder, data = tiny_encoder("bert"), tiny_task()
    trials = trials_of()
    together = run_probes(trials, encoder, data)
    for trial, result in zip(trials[::3], together[::3], strict=True):
        assert same(run_probes([trial], encoder, data)[0], result)


def test_small_subsets_do_not_encode_all_of_the_data(monkeypatch, passes):
    encoder, data = tiny_encoder("bert"), tiny_task(n_train=100, n_dev=10)
    trials = trials_of((1, 3), (0, 1), size=15)
    few = run_probes(trials, encoder, data)
    union = np.unique(np.concatenate([subset(100, 15, 0), subset(100, 15, 1)]))
    assert sum(passes) == len(union) + 10
    monkeypatch.setattr("whichlayers.probes.run_sentence_probes._used_rows", lambda n, subsets: None)
    passes.clear()
    every = run_probes(trials, encoder, data)
    assert sum(passes) == 110
    assert all(same(one, other) for one, other in zip(few, every, strict=True))


def test_the_second_stack_reads_what_the_first_computed(tmp_path, monkeypatch):
    encoder, data = tiny_encoder("bert"), tiny_task()
    first = run_probes(trials_of((0, 1)), encoder, data, cache=tmp_path)

    def runs_again(*arguments):
        pytest.fail("the encoder ran again")
        yield

    monkeypatch.setattr(extract, "_batches", runs_again)
    again = run_probes(trials_of((0, 1)), encoder, data, cache=tmp_path)
    assert all(same(one, other) for one, other in zip(first, again, strict=True))
    run_probes(trials_of((2, 3)), encoder, data, cache=tmp_path)


def test_a_probe_that_diverges_fails_alone():
    encoder, data = tiny_encoder("bert"), tiny_task(kind="regression")
    trials = [TRIAL, dataclasses.replace(TRIAL, probe=dataclasses.replace(TRIAL.probe, lr=1e30))]
    good, bad = run_probes(trials, encoder, data)
    assert good.error is None
    assert "smaller lr" in bad.error
    assert not bad.epochs


def test_the_encoder_is_left_as_it_was():
    encoder, data = tiny_encoder("xlnet"), tiny_task()
    before = {name: value.clone() for name, value in encoder.state_dict().items()}
    run_probes(trials_of((3,), (0,)), encoder, data)
    assert all(torch.equal(before[name], value) for name, value in encoder.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in encoder.parameters())


def test_stack_key():
    assert len({stack_key(trial) for trial in trials_of()}) == 1
    others = [
        dataclasses.replace(TRIAL, train_size=40),
        dataclasses.replace(TRIAL, training=Training(max_length=64)),
        dataclasses.replace(TRIAL, probe=dataclasses.replace(TRIAL.probe, pooling="summary")),
        dataclasses.replace(TRIAL, probe=dataclasses.replace(TRIAL.probe, batch_size=4)),
    ]
    assert len({stack_key(trial) for trial in [TRIAL, *others]}) == 5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"surgery": Surgery(reinit=(1,))}, "only the pretrained model"),
        ({"surgery": Surgery(order=(2, 1, 3))}, "only the pretrained model"),
        ({"probe": Probe(4)}, "layers are 1 to 3"),
        ({"probe": None}, "not a probe"),
        ({"train_size": 61}, "60 training rows"),
    ],
)
def test_invalid_trials(change, message):
    with pytest.raises(WhichlayersError, match=message):
        run_probes([dataclasses.replace(TRIAL, **change)], tiny_encoder("bert"), tiny_task())
    with pytest.raises(WhichlayersError, match="at least one"):
        run_probes([], tiny_encoder("bert"), tiny_task())
