"""Both optimizers against torch.optim.AdamW with torch's own clipping, trial by trial."""

import pytest
import torch
from torch import nn

from whichlayers.engine.optimizer import FlatAdamW, FusedAdamW, Schedule, SplitFloat, StackParameter
from whichlayers.trial import Training

SHAPES = {"a.weight": (40, 500), "a.bias": (40,), "norm": (3,), "b": (2, 3, 5000)}
LR = {
    "a.weight": [1e-2, 1e-3, 5e-2],
    "a.bias": [1e-2, 1e-3, 5e-2],
    "norm": [0.0, 1e-3, 2e-2],
    "b": [1e-2, 0.0, 5e-2],
}


def parameters(decay: float) -> list[StackParameter]:
    g = torch.Generator().manual_seed(0)
    return [
        StackParameter(
            name,
            nn.Parameter(torch.randn(3, *shape, generator=g)),
            torch.tensor(LR[name]),
            torch.full((3,), decay if name.endswith("weight") else 0.0),
        )
        for name, shape in SHAPES.items()
    ]


def gradients(step: int) -> list[torch.Tensor]:
    g = torch.Generator().manual_seed(100 + step)
    scale = torch.tensor([1e-4, 1.0, 10.0])  # one trial is never clipped, one always
    return [
        torch.randn(3, *shape, generator=g) * scale.view(3, *[1] * len(shape)) for shape in SHAPES.values()
    ]


def reference(
    training: Training, steps: int, total: int, decay: float
) -> dict[tuple[str, int], torch.Tensor]:
    result = {}
    for t in range(3):
        ps = {p.name: nn.Parameter(p.param.detach()[t].clone()) for p in parameters(decay) if p.lr[t] > 0}
        groups = [
            {"params": [p], "lr": LR[n][t], "weight_decay": decay if n.endswith("weight") else 0.0}
            for n, p in ps.items()
        ]
        optimizer = torch.optim.AdamW(groups, betas=training.betas, eps=training.eps)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda s: (total - s) / total)
        for step in range(steps):
            for (name, _), grad in zip(SHAPES.items(), gradients(step), strict=True):
                if name in ps:
                    ps[name].grad = grad[t].clone()
            if training.clip_norm:
                nn.utils.clip_grad_norm_(list(ps.values()), training.clip_norm)
            optimizer.step()
            schedule.step()
        result |= {(n, t): p.detach() for n, p in ps.items()}
    return result


@pytest.mark.parametrize("kind", ["flat", "fused"])
@pytest.mark.parametrize("decay", [0.0, 0.3])
@pytest.mark.parametrize("clip", [1.0, 0.0])
def test_equals_torch_adamw_with_clipping_and_schedule(kind, decay, clip):
    training = Training(clip_norm=clip, betas=(0.8, 0.99))
    start, ps = parameters(decay), parameters(decay)
    schedule = Schedule(training, 10)
    optimizer = (
        FlatAdamW(ps, training, schedule, compiled=False)
        if kind == "flat"
        else FusedAdamW(ps, training, schedule)
    )
    for i, p in enumerate(start):
        optimizer.set_values(i, p.param.detach())
    for step in range(7):
        optimizer.step(gradients(step), torch.tensor(step, dtype=torch.int32))
    expected = reference(training, 7, 10, decay)
    for i, p in enumerate(start):
        for t in range(3):
            found = optimizer.values(i)[t]
            torch.testing.assert_close(
                found, expected.get((p.name, t), p.param.detach()[t]), rtol=1e-5, atol=1e-6
            )


def test_a_restored_state_continues_identically():
    training = Training()
    for kind in (lambda p, t, s: FlatAdamW(p, t, s, compiled=False), FusedAdamW):
        whole, first, second = (kind(parameters(0.1), training, Schedule(training, 10)) for _ in range(3))
        for step in range(6):
            whole.step(gradients(step), torch.tensor(step))
        for step in range(3):
            first.step(gradients(step), torch.tensor(step))
        second.load_state({k: v.clone() for k, v in first.state().items()}, steps_done=3)
        for step in range(3, 6):
            second.step(gradients(step), torch.tensor(step))
        for i in range(len(SHAPES)):
            assert torch.equal(whole.values(i), second.values(i))


def test_bfloat16_weights_keep_a_float32_master():
    training = Training(lr=1e-3, clip_norm=1.0)
    exact, split = parameters(0.0), parameters(0.0)
    for p in split:
        p.param = nn.Parameter(p.param.detach().bfloat16())
    a = FlatAdamW(exact, training, Schedule(training, 10), compiled=False)
    b = FlatAdamW(split, training, Schedule(training, 10), compiled=False)
    for i, p in enumerate(parameters(0.0)):
        a.set_values(i, p.param.detach())
        b.set_values(i, p.param.detach())
        assert torch.equal(b.values(i), p.param.detach()), "the master weight is kept to the last bit"
    for step in range(5):
        a.step(gradients(step), torch.tensor(step))
        b.step(gradients(step), torch.tensor(step))
    for i in range(len(SHAPES)):
        assert torch.equal(a.values(i), b.values(i)), "the same float32 arithmetic"
        torch.testing.assert_close(split[i].param.float(), b.values(i), rtol=2**-8, atol=0)


def test_split_floats_join_exactly_and_round_to_nearest():
    values = torch.cat([torch.randn(10000), torch.tensor([0.0, -0.0, 1.0, -1e-38, 3e38, 1e-45])])
    high, low = SplitFloat.split(values)
    assert torch.equal(SplitFloat.join(high, low), values)
    assert (high.float() - values).abs().max() <= (values.bfloat16().float() - values).abs().max()


@pytest.mark.parametrize("kind", ["linear", "constant"])
def test_schedule_on_the_device_is_the_schedule(kind):
    schedule = Schedule(Training(warmup=0.3, schedule=kind), 20)
    for step in range(21):
        assert float(schedule.on_device(torch.tensor(step))) == pytest.approx(schedule(step), abs=1e-6)
    assert schedule(0) == 0
    assert schedule(6) == 1.0
    assert schedule(20) == (0.0 if kind == "linear" else 1.0)


def test_parameters_that_are_all_large():
    values = torch.randn(2, FlatAdamW.BUCKET_NUMEL + 3)
    lr, decay = torch.tensor([1e-3, 2e-3]), torch.zeros(2)
    training, params = Training(), []
    for _ in range(2):
        params.append([StackParameter("a", torch.nn.Parameter(values.clone()), lr, decay)])
    flat = FlatAdamW(params[0], training, Schedule(training, 4), compiled=False)
    plain = FusedAdamW(params[1], training, Schedule(training, 4))
    flat.set_values(0, values)
    for step in range(3):
        for optimizer in (flat, plain):
            optimizer.step([torch.cos(values * (step + 1))], torch.tensor(step))
    torch.testing.assert_close(params[0][0].param, params[1][0].param)
    assert not torch.equal(params[0][0].param, values)
