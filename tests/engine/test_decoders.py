"""Every decoder family: a stack equals Hugging Face's own classifier trained with AdamW, alone, in a stack, packed."""

import dataclasses

import numpy as np
import pytest
import torch
from plain_loop import HuggingFaceClassifier, plain_finetune
from stack_loop import run_steps, without_dropout
from test_attention import DEVICE, needs_kernel
from test_packing import compare_packed_with_padded
from tiny import DECODERS, random_batch, tiny_encoder, tiny_task
from transformers import AutoModel

from whichlayers.engine.attention import sequence_attention
from whichlayers.engine.finetune import finetune, stack_key
from whichlayers.engine.memory import measure_memory
from whichlayers.engine.recompute import is_large
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.engine.stacking import StackedModel, stack_models
from whichlayers.errors import WhichlayersError
from whichlayers.models.families import layers_differ
from whichlayers.models.head import build_classifier
from whichlayers.trial import Surgery, Training, Trial

RECIPE = Training(epochs=3, batch_size=8, lr=3e-3, clip_norm=1.0, dropout=0.0, eps=1e-6, warmup=0.2)


def trial(seed: int = 0, surgery: Surgery | None = None, **training) -> Trial:
    return Trial(
        "tiny", "m", "tiny", "t", 52, seed, head="last", surgery=surgery or Surgery(),
        training=dataclasses.replace(RECIPE, **training),
    )  # fmt: skip


def unlike_trials(encoder) -> list[Trial]:
    """Five trials that differ in everything a stack allows."""
    moved = None if layers_differ(encoder.config) else (1, 3, 2)
    return [
        trial(0),
        trial(1, Surgery(reinit=(2, 3))),
        trial(2, Surgery(moved, (1,), "as_described_v1"), lr=1e-3),
        trial(3, Surgery(reinit=(3,), recipe="as_released", keep_layer_norm=True), weight_decay=0.1),
        trial(4, Surgery(reinit=(1,), recipe="model_init"), lr_factors=((1, 5.0), (2, 0.0), (0, 0.5))),
    ]


def assert_equal_to_hugging_face(trials, encoder, data, steps: int = 20) -> None:
    trainer, losses = run_steps(trials, encoder, data, steps)
    plain = without_dropout(encoder)
    for t, one in enumerate(trials):
        model, expected = plain_finetune(one, plain, data, steps, build=HuggingFaceClassifier)
        torch.testing.assert_close(losses[:, t], torch.tensor(expected), rtol=0, atol=1e-4)
        for name, p in model.named_parameters():
            found = trainer.model.trial_parameter(name, t)
            torch.testing.assert_close(
                found, p, rtol=0, atol=1e-4, msg=lambda m, n=name, t=t: f"{t} {n}: {m}"
            )


@pytest.mark.parametrize("family", DECODERS)
def test_a_stack_equals_hugging_face_over_20_steps(family):
    encoder = tiny_encoder(family)
    assert_equal_to_hugging_face(unlike_trials(encoder), encoder, tiny_task(pairs=False))


@pytest.mark.parametrize("family", ["gemma3_text", "smollm3"])
def test_a_moved_layer_keeps_its_kind_of_attention(family):
    """Trials with different orders of such layers have different stacks."""
    encoder = tiny_encoder(family)
    pair = [trial(0, Surgery((2, 3, 1))), trial(1, Surgery((2, 3, 1), reinit=(1,)))]
    assert_equal_to_hugging_face(pair, encoder, tiny_task(pairs=False), steps=6)
    key = stack_key(trial(0), family, 3, layers_differ(encoder.config))
    assert key != stack_key(pair[0], family, 3, layers_differ(encoder.config))
    with pytest.raises(WhichlayersError, match="cannot share a stack"):
        finetune([trial(0), pair[0]], encoder, tiny_task(pairs=False))
    assert_equal_to_hugging_face([trial(0, Surgery((1, 2)))], encoder, tiny_task(pairs=False), steps=3)


@pytest.mark.parametrize("family", DECODERS)
def test_a_trial_is_the_same_alone_and_in_any_slot_with_dropout(family):
    encoder, data = tiny_encoder(family), tiny_task(pairs=False)
    trials = [
        dataclasses.replace(t, training=dataclasses.replace(t.training, dropout=0.2))
        for t in unlike_trials(encoder)[:3]
    ]
    torch.manual_seed(1)
    trainer, together = run_steps(trials, encoder, data, 8)
    before = torch.get_rng_state()
    trainer.step_runner(8)
    assert torch.equal(torch.get_rng_state(), before), "a step does not use the global random state"
    _, turned = run_steps(trials[::-1], encoder, data, 8)
    torch.testing.assert_close(turned.flip(1), together, rtol=0, atol=1e-4)
    torch.manual_seed(2)
    _, alone = run_steps([trials[1]], encoder, data, 8)
    torch.testing.assert_close(alone[:, 0], together[:, 1], rtol=0, atol=1e-4)
    _, without = run_steps(unlike_trials(encoder)[:3], encoder, data, 2)
    assert (without - together[:2]).abs().max() > 1e-3, "dropout has an effect"


@pytest.mark.parametrize("tokens", [None, 80], ids=["ragged", "with a tail"])
@pytest.mark.parametrize("family", DECODERS)
def test_packed_batches_give_the_results_of_padded_ones(family, tokens):
    compare_packed_with_padded(family, training=True, tokens=tokens, head="last")


@needs_kernel
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("family", DECODERS)
def test_batches_packed_for_the_kernel_give_the_results_of_padded_ones(family, training, monkeypatch):
    """Causal attention, windows and shared key heads as each family uses them."""
    used = []

    def spy(*args):
        used.append(sequence_attention(*args))
        return used[-1]

    monkeypatch.setattr("whichlayers.engine.packing.sequence_attention", spy)
    compare_packed_with_padded(family, training, tokens=80, head="last", device=DEVICE)
    assert [out is not None for out in used] == [family != "gemma2"] * 3, "gemma2 caps its scores"


def test_layerdrop_of_opt_depends_on_the_trial_and_the_step_only():
    encoders = [tiny_encoder("opt", seed) for seed in range(3)]
    for encoder in encoders:
        encoder.decoder.layerdrop = 0.5
    models = [build_classifier(encoder, "last", 3, seed=0) for encoder in encoders]
    batch, keys = random_batch(12, 9, types=False), torch.tensor([5, 6, 7], dtype=torch.int32)
    together, alone = stack_models(models).train(), stack_models(models[1:2]).train()
    for model in (together, alone):  # only layers are dropped
        for module in model.modules():
            if hasattr(module, "stacked_dropout"):
                module.stacked_dropout.p = 0.0
            for name in ("attention_output_dropout", "output_dropout"):
                if hasattr(module, name):
                    getattr(module, name).p = 0.0
    outputs = []
    for step in range(6):
        number = torch.tensor(step, dtype=torch.int32)
        together.set_dropout_keys(keys, number, 4)
        alone.set_dropout_keys(keys[1:2], number, 4)
        out = together(**batch)
        rows = {name: values[4:8] for name, values in batch.items()}
        torch.testing.assert_close(alone(**rows), out[4:8], rtol=1e-4, atol=1e-5)
        outputs.append(out[4:8])
    distinct = {round(out.sum().item(), 4) for out in outputs}
    assert 1 < len(distinct) <= 2**3, "subsets of three layers"


def test_the_padding_token_is_not_trained_even_if_it_occurs_in_a_text():
    """As in Hugging Face: torch.nn.Embedding gives the row of its padding token no gradient."""
    encoder, data = tiny_encoder("llama"), tiny_task(pairs=False)
    encoder.config.pad_token_id = encoder.embed_tokens.padding_idx = 7
    ids, offsets = data.train.ids.copy(), data.train.offsets
    ids[offsets[:-1]] = 7  # the first token of every text
    ids[offsets[1:] - 1] = np.where(ids[offsets[1:] - 1] == 7, 8, ids[offsets[1:] - 1])
    data = dataclasses.replace(data, train=dataclasses.replace(data.train, ids=ids), pad_id=7)
    assert_equal_to_hugging_face([trial(0), trial(1, weight_decay=0.1)], encoder, data, steps=4)


def test_a_tokenizer_without_a_padding_token():
    """Whatever fills a batch is masked: other padding, the same result."""
    encoder, data = tiny_encoder("llama"), tiny_task(pairs=False)
    encoder.embed_tokens.padding_idx = encoder.config.pad_token_id = None
    [one] = finetune([trial(0)], encoder, data)
    [other] = finetune([trial(0)], encoder, dataclasses.replace(data, pad_id=50))
    assert [e.dev_loss for e in one.epochs] == pytest.approx([e.dev_loss for e in other.epochs], abs=1e-5)


def test_only_the_rows_of_a_large_vocabulary_that_occur_are_trained():
    encoder, data = tiny_encoder("gemma"), tiny_task(n_train=12, pairs=False)
    one = dataclasses.replace(trial(0, weight_decay=0.5, lr=1e-2), train_size=12)
    trainer, _ = run_steps([one], encoder, data, 4)
    assert trainer.word_embeddings.weight.shape[1] < 100
    assert_equal_to_hugging_face([one], encoder, data, steps=4)


def test_the_memory_of_a_trial_does_not_depend_on_the_vocabulary():
    costs, vocabulary = [], 100_000
    for size in (120, vocabulary):
        config = tiny_encoder("gemma").config
        config.vocab_size = size
        encoder = AutoModel.from_config(config).eval()
        costs.append(measure_memory([trial(0)], encoder, tiny_task(pairs=False), "cpu", limit=2))
    table = 4 * vocabulary * config.hidden_size
    few_numbers = 4 * vocabulary * 3  # for each token
    assert costs[1].first_trial - costs[0].first_trial < 1.5 * (table + few_numbers), "one copy for the stack"
    assert costs[1].extra_trial - costs[0].extra_trial < 1.5 * few_numbers


def test_heads_last_and_mean_do_not_share_a_stack():
    encoder, data = tiny_encoder("llama"), tiny_task(pairs=False)
    with pytest.raises(WhichlayersError, match="cannot share a stack"):
        finetune([trial(0), dataclasses.replace(trial(1), head="mean")], encoder, data)
    mean = dataclasses.replace(trial(1, epochs=1), head="mean")
    _, losses = run_steps([mean, dataclasses.replace(mean, seed=2)], encoder, data, 5)
    _, expected = plain_finetune(mean, without_dropout(encoder), data, 5)
    torch.testing.assert_close(losses[:, 0], torch.tensor(expected), rtol=0, atol=1e-4)


def test_an_unknown_kind_of_embedding_is_rejected():
    class Doubled(torch.nn.Embedding):
        def forward(self, ids):
            return 2 * super().forward(ids)

    model = build_classifier(tiny_encoder("llama"), "last", 2, seed=0)
    model.encoder.embed_tokens = Doubled(120, 64)
    with pytest.raises(WhichlayersError, match="cannot stack Doubled"):
        StackedModel(model, 2)


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "opt", "bert"])
@pytest.mark.parametrize("packed", [True, False])
def test_activation_checkpointing_changes_nothing(family, packed):
    encoder, data = tiny_encoder(family), tiny_task(pairs=False)
    head = "mean" if family == "bert" else "last"
    trials = [dataclasses.replace(trial(seed, dropout=0.2), head=head) for seed in range(2)]
    (one, plain), (other, recomputed) = (
        run_steps(trials, encoder, data, 5, EngineSettings(packed=packed, recompute=recompute))
        for recompute in (False, True)
    )
    torch.testing.assert_close(recomputed, plain, rtol=0, atol=1e-6)
    for name, _ in build_classifier(encoder, head, 3, seed=0).named_parameters():
        torch.testing.assert_close(
            other.model.trial_parameter(name, 1), one.model.trial_parameter(name, 1), rtol=0, atol=1e-6
        )


def test_activation_checkpointing_keeps_only_the_inputs_of_layers(monkeypatch):
    encoder, data = tiny_encoder("llama"), tiny_task(pairs=False)
    saved = {}
    for recompute in (False, True):
        trainer = StackTrainer(
            [trial(0)], encoder, data, torch.device("cpu"), EngineSettings(recompute=recompute)
        )
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t, s=sizes: s.append(t.numel()) or t, lambda t: t
        ):
            trainer.model.set_dropout_keys(trainer.trial_keys, torch.tensor(0, dtype=torch.int32), 8)
            trainer.model(**trainer.train_loader.batch(trainer.step_on_device, 13).inputs)
        saved[recompute] = sum(sizes)
    assert saved[True] < saved[False] / 3
    assert not is_large(encoder)
    monkeypatch.setattr("whichlayers.engine.recompute.MIN_PARAMETERS", 1000)
    assert is_large(encoder)
