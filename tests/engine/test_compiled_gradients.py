"""Compiled layers have the gradients of eager ones. Runs on a CPU: the compiler's front end can lose gradients, too.

torch 2.11 lost those of all linear layers without a bias (https://github.com/pytorch/pytorch/issues/180642).
"""

import pytest
import torch
from tiny import FAMILIES, random_batch, tiny_encoder
from torch._dynamo.utils import counters

from whichlayers.engine.adapters import attach_adapters
from whichlayers.engine.packing import pack_layers
from whichlayers.engine.stacked_modules import StackContext, batched_linear
from whichlayers.engine.stacking import StackedModel, stack_models
from whichlayers.models.head import build_classifier
from whichlayers.models.structure import ModelStructure
from whichlayers.trial import Adapter, Trial


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("rounded", [False, True], ids=["same type", "rounded"])
@pytest.mark.parametrize("with_bias", [False, True], ids=["no bias", "bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_compiled_linear_layer_has_the_gradients_of_an_eager_one(dtype, with_bias, rounded):
    generator = torch.Generator().manual_seed(0)
    x, weight, bias = (
        torch.randn(shape, generator=generator).to(dtype).requires_grad_()
        for shape in ((6, 5, 16), (3, 24, 16), (3, 24))
    )
    context = StackContext(3)
    context.linear_dtype = torch.bfloat16 if rounded else None
    inputs = [x, weight, bias][: 2 + with_bias]

    def linear(x, weight, bias=None):
        return batched_linear(x, weight, bias, context)

    compiled = torch.compile(linear, backend="aot_eager")
    expected, found = (
        torch.autograd.grad(run(*inputs).float().square().sum(), inputs) for run in (linear, compiled)
    )
    assert all(bool(grad.any()) for grad in expected)
    torch.testing.assert_close(found, expected)


def compare_compiled_with_eager(stacked, inputs: dict[str, torch.Tensor], tokens: int | None = None) -> None:
    """`tokens`: of a trial in a packed batch, as on a GPU; None: the batch is padded."""
    keys, step = (torch.tensor(x, dtype=torch.int32) for x in ([1, 2], 0))
    stacked.train().set_dropout_keys(keys, step, 4)

    def gradients():
        stacked.context.packed_tokens = tokens
        parameters = {n: p for n, p in stacked.module.named_parameters() if p.requires_grad}
        loss = stacked(**inputs).square().sum()
        return dict(
            zip(parameters, torch.autograd.grad(loss, [*parameters.values()], allow_unused=True), strict=True)
        )

    expected = gradients()
    for layer in ModelStructure(stacked.module.encoder).layers:
        layer.forward = torch.compile(layer.forward, backend="aot_eager", dynamic=False)
    found = gradients()
    for name, grad in found.items():
        torch.testing.assert_close(
            grad, expected[name], rtol=1e-3, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_layers_have_the_gradients_of_eager_ones(family):
    models = [build_classifier(tiny_encoder(family, i, 0.0), "mean", 3, seed=i) for i in range(2)]
    compare_compiled_with_eager(
        stack_models(models), random_batch(2 * 4, 9, types=family in ("bert", "electra"))
    )


@pytest.mark.parametrize("family", ["bert", "mpnet", "deberta-v2", "llama"])
def test_compiled_layers_of_packed_tokens_have_the_gradients_of_eager_ones(family):
    """With dropout. Compiled layers are packed on a GPU alone, which also needs a graph without breaks."""
    models = [build_classifier(tiny_encoder(family, i, 0.2), "mean", 3, seed=i) for i in range(2)]
    stacked = stack_models(models)
    assert pack_layers(stacked)
    counters.clear()
    compare_compiled_with_eager(stacked, random_batch(2 * 4, 9, types=family == "bert"), tokens=48)
    assert not counters["graph_break"]
    assert counters["stats"]["unique_graphs"] == 1, "one graph serves all layers"


@pytest.mark.parametrize("family", ["deberta-v2", "llama"])
def test_compiled_layers_of_packed_tokens_train_adapters(family):
    targets = tuple(ModelStructure(tiny_encoder(family)).linear_modules())[:3]
    models = [build_classifier(tiny_encoder(family, 0, 0.2), "mean", 3, seed=i) for i in range(2)]
    for name, parameter in models[0].named_parameters():
        parameter.requires_grad_(not name.startswith("encoder."))
    frozen = [name for name, p in models[0].named_parameters() if not p.requires_grad]
    shared = [name for name in frozen if not ModelStructure(models[0].encoder).is_for_all_layers(name[8:])]
    stacked = StackedModel(models[0], 2, shared=shared)
    adapter = Adapter("lora", (1, 3), targets, rank=4, dropout=0.2)
    attach_adapters(stacked, models[0].encoder, [Trial("", "", "", "", 1, 0, adapter=adapter)] * 2)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in stacked.named_parameters():
            if ".adapter." in name:
                parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    assert pack_layers(stacked)
    compare_compiled_with_eager(stacked, random_batch(2 * 4, 9, types=family == "bert"), tokens=48)
