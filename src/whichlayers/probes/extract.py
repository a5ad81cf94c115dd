"""Extracts the hidden states of sentences or words at every layer of a frozen model in one forward pass.

    states = extract_sentences(encoder, split, pad_id, cache=folder, key=cache_key(...))    # (n, depth + 1, H)

    found = extract_words(encoder, tokenizer, corpus, device="cuda", cache=folder, key=word_cache_key(...))
    found.states        # (words, depth + 1, H); words in corpus order
    found.report        # sentences that were split, words replaced by the unknown token

A sentence is represented by the mean of its tokens, its [CLS]-like token or the output of the pretrained pooler; a word
by its last subword, its first subword or the mean of all its subwords. The encoder runs in eval mode, without dropout,
on batches of similar length, so the hidden states of a text are deterministic and computed once. Only one batch is in
memory at a time; on a GPU the next batch is computed while the last one is copied to the host.

Index 0 is the embeddings and index k the output of layer k, as in `hidden_states` of transformers. ModernBERT is an
exception: its layers add to a residual stream that is normalized only after the last layer. Its top index is the
stream after the final norm, as its task heads read it; all others are the stream before the norm.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from whichlayers.data.batches import pad
from whichlayers.data.conll import TaggedCorpus
from whichlayers.data.tokenize import TokenizedSplit
from whichlayers.errors import WhichlayersError
from whichlayers.models.head import cls_states, has_pooler, mean_states, takes_token_types
from whichlayers.models.load import max_input_length
from whichlayers.models.structure import ModelStructure
from whichlayers.probes.activation_files import StoredPrecision, cached_array, hash_key
from whichlayers.probes.alignment import Alignment, AlignmentReport, align
from whichlayers.trial import Pooling

FORMAT = 1  # increase when the contents of the file change
# by device type, including padding; all layers of a batch are in memory at once
TOKENS_PER_BATCH = {"cpu": 2048, "cuda": 16384}  # of sentences
WORD_TOKENS_PER_BATCH = {"cpu": 1024, "cuda": 32768}
MAX_PENDING_COPIES = 2  # batches that are being copied to the host

WordPooling = Literal["last", "first", "mean"]
# called with the number of sentences or words that went through the encoder since the last call
OnRows = Callable[[int], None]
# (indices (m,) of sentences or words, their hidden states (m, depth + 1, H))
StateBatches = Iterator[tuple[np.ndarray, Tensor]]
# (rows (B,) of a batch, attention mask (B, L)) -> indices (m,), and a function from one layer (B, L, H) to (m, H)
PoolBatch = Callable[[np.ndarray, Tensor], tuple[np.ndarray, Callable[[Tensor], Tensor]]]


# --- sentences ---


def cache_key(
    model_fingerprint: str,
    task_fingerprint: str,
    max_length: int,
    pooling: Pooling = "mean",
    precision: StoredPrecision = "float32",
) -> str:
    """File name of the hidden states of a model on a task: a hash of everything that determines them."""
    import transformers

    parts = [FORMAT, model_fingerprint, task_fingerprint, max_length, pooling, precision]
    return hash_key([*parts, transformers.__version__])


def extract_sentences(
    encoder: PreTrainedModel,
    split: TokenizedSplit,
    pad_id: int,
    *,
    pooling: Pooling = "mean",
    precision: StoredPrecision = "float32",
    device: str | torch.device = "cpu",
    cache: Path | None = None,
    key: str = "",
    on_rows: OnRows | None = None,
    tokens_per_batch: int | None = None,
) -> np.ndarray:
    """Pooled hidden states of all examples, (n, depth + 1, H), memory-mapped.

    They are read from the file `key` in the folder `cache`, or computed and written there. Without a cache they are
    stored in a temporary file, which is deleted together with the array.
    """
    family = ModelStructure(encoder).family
    if pooling == "pooler" and not has_pooler(encoder):
        raise WhichlayersError(
            f'pooling = "pooler" needs a pretrained pooler, but this {encoder.config.model_type} model was saved '
            'without one. Use pooling = "mean" or "summary".'
        )

    def pool(rows: np.ndarray, mask: Tensor) -> tuple[np.ndarray, Callable[[Tensor], Tensor]]:
        if pooling == "mean":
            return rows, lambda hidden: mean_states(hidden, mask)
        if pooling == "pooler":
            return rows, encoder.get_submodule(family.pooler or "")
        return rows, lambda hidden: cls_states(hidden, mask, family.cls_position)

    torch_device = torch.device(device)
    tokens = tokens_per_batch or _for_device(TOKENS_PER_BATCH, torch_device)
    batches = _batches(encoder, split, pad_id, pool, torch_device, tokens)
    return _collect_in_file(batches, _shape(encoder, len(split)), precision, cache, key, on_rows)


# --- words ---


@dataclass(frozen=True, eq=False)
class WordActivations:
    """Hidden states of the words of a corpus."""

    states: np.ndarray | Tensor  # (words, depth + 1, H)
    report: AlignmentReport


def corpus_fingerprint(corpus: TaggedCorpus) -> str:
    """16 hex digits: a hash of the words and sentence boundaries. Tags are ignored: all columns of a file share it."""
    digest = hashlib.blake2b(digest_size=8)
    for sentence in corpus.sentences:
        digest.update("\0".join(sentence.words).encode("utf-8", "surrogatepass") + b"\0\0")
    return digest.hexdigest()


def word_cache_key(
    model_fingerprint: str,
    corpus: TaggedCorpus,
    pooling: WordPooling = "last",
    precision: StoredPrecision = "float16",
    max_length: int | None = None,
) -> str:
    """File name of the hidden states of a corpus' words: a hash of everything that determines them.

    `model_fingerprint` identifies weights and tokenizer: the fingerprint of the model's files, or any unique name of a
    finetuned model.
    """
    import tokenizers
    import transformers

    parts = ["words", FORMAT, model_fingerprint, corpus_fingerprint(corpus), pooling, precision, max_length]
    return hash_key([*parts, transformers.__version__, tokenizers.__version__])


def extract_words(
    encoder: PreTrainedModel,
    tokenizer: Any,
    corpus: TaggedCorpus,
    *,
    pooling: WordPooling = "last",
    precision: StoredPrecision = "float16",
    max_length: int | None = None,
    device: str | torch.device = "cpu",
    cache: Path | None = None,
    key: str = "",
    on_words: OnRows | None = None,
    tokens_per_batch: int | None = None,
    aligned: Alignment | None = None,
    on_device: bool = False,
) -> WordActivations:
    """Hidden states of all words, (words, depth + 1, H).

    Args:
        encoder: The frozen model.
        tokenizer: Its fast tokenizer.
        corpus: The tagged sentences.
        pooling: Which subwords represent a word: "last", "first" or the "mean" of all.
        precision: dtype of the result.
        max_length: Maximum length of a segment of a sentence in tokens. Default: the model's maximum length.
        device: Where the encoder runs.
        cache: Folder of the file `key`, which is read if it exists and written otherwise. Default: a temporary file.
        key: File name without suffix.
        on_words: Progress callback.
        tokens_per_batch: Batch size in tokens, including padding. Default: depends on the device.
        aligned: The result of `align` for this corpus and tokenizer, if it is known.
        on_device: Return a tensor on the device instead of a memory-mapped array; no file is read or written.
    """
    if pooling not in get_args(WordPooling):
        raise WhichlayersError(f"unknown pooling {pooling!r}: choose one of last, first, mean")
    alignment = aligned or align(corpus, tokenizer, max_segment_length(encoder, max_length))
    batches = word_batches(encoder, tokenizer, alignment, pooling, device, tokens_per_batch)
    shape = states_shape(encoder, alignment)
    if on_device:
        states = _collect_on_device(batches, shape, precision, torch.device(device), on_words)
        return WordActivations(states, alignment.report)
    in_file = _collect_in_file(batches, shape, precision, cache, key, on_words)
    return WordActivations(in_file, alignment.report)


def word_batches(
    encoder: PreTrainedModel,
    tokenizer: Any,
    aligned: Alignment,
    pooling: WordPooling,
    device: str | torch.device = "cpu",
    tokens_per_batch: int | None = None,
) -> StateBatches:
    """The hidden states of the words of a corpus in batches, each word once."""
    has_types = "token_type_ids" in tokenizer.model_input_names
    segments = TokenizedSplit(
        aligned.ids,
        aligned.type_ids if has_types else None,
        aligned.offsets,
        labels=np.zeros(len(aligned.offsets) - 1, np.int64),
    )

    def pool(rows: np.ndarray, mask: Tensor) -> tuple[np.ndarray, Callable[[Tensor], Tensor]]:
        words, first, last, subwords = _words_of_batch(aligned, rows, mask)
        return words, lambda hidden: _pool_words(hidden.flatten(0, 1), first, last, subwords, pooling)

    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    torch_device = torch.device(device)
    tokens = tokens_per_batch or _for_device(WORD_TOKENS_PER_BATCH, torch_device)
    return _batches(encoder, segments, pad_id, pool, torch_device, tokens)


def states_shape(encoder: PreTrainedModel, aligned: Alignment) -> tuple[int, int, int]:
    """Shape of the hidden states of words: (words, depth + 1, H)."""
    return _shape(encoder, len(aligned.first_token))


def max_segment_length(encoder: PreTrainedModel, max_length: int | None = None) -> int | None:
    """Maximum length of a segment in tokens: `max_length`, or by default the model's limit; None for no limit."""
    structure = ModelStructure(encoder)
    limit = max_input_length(structure.family, structure.model.config)
    if max_length is not None and limit is not None and max_length > limit:
        raise WhichlayersError(f"max_length = {max_length} is more than the model's limit of {limit} tokens")
    return limit if max_length is None else max_length


def _words_of_batch(
    aligned: Alignment, segments: np.ndarray, mask: Tensor
) -> tuple[np.ndarray, Tensor, Tensor, int]:
    """The words (w,) of segments (B,) padded to (B, L), and where they are in the flattened batch.

    Returns:
        (words, index of each word's first subword (w,), of its last (w,), number of subwords of all words)
    """
    offsets = aligned.word_offsets
    words = np.concatenate([np.arange(offsets[s], offsets[s + 1]) for s in segments])
    counts = offsets[segments + 1] - offsets[segments]  # (B,) words of each segment
    segment_of = np.repeat(np.arange(len(segments)), counts)  # (w,)
    # (w,) from an index in `ids` to an index in the flattened, padded batch
    shift = segment_of * mask.shape[1] - aligned.offsets[segments[segment_of]]
    first, last = aligned.first_token[words], aligned.last_token[words]
    first_index, last_index = (torch.from_numpy(index + shift).to(mask.device) for index in (first, last))
    return words, first_index, last_index, int((last - first + 1).sum())


def _pool_words(states: Tensor, first: Tensor, last: Tensor, subwords: int, pooling: WordPooling) -> Tensor:
    """Hidden states of tokens (B * L, H) -> hidden states (w, H) of words, which span tokens `first` to `last` (w,).

    `subwords`: the number of tokens of all words, passed in to avoid a GPU synchronization.
    """
    if pooling == "first":
        return states.index_select(0, first)
    if pooling == "last":
        return states.index_select(0, last)
    counts = last - first + 1
    ends = counts.cumsum(0)
    word = torch.repeat_interleave(counts, output_size=subwords)  # (t,): the word of each subword
    token = torch.arange(len(word), device=word.device) - (ends - counts - first).index_select(0, word)
    total = states.new_zeros(len(first), states.shape[-1])
    return total.index_add_(0, word, states.index_select(0, token)) / counts[:, None]


# --- forward pass ---


def batches_by_length(lengths: np.ndarray, tokens_per_batch: int) -> Iterator[np.ndarray]:
    """Yields row indices in batches of similar length, each with at most `tokens_per_batch` tokens including padding.

    The longest rows come first, so that a batch too large for memory fails at the start.
    """
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        size = max(1, tokens_per_batch // int(lengths[order[start]]))
        yield order[start : start + size]
        start += size


def _batches(
    encoder: PreTrainedModel,
    split: TokenizedSplit,
    pad_id: int,
    pool: PoolBatch,
    device: torch.device,
    tokens_per_batch: int,
) -> StateBatches:
    """Run the encoder over all rows; `pool` selects the sentences or words of a batch."""
    with_types = takes_token_types(encoder)
    if (
        getattr(encoder.config, "word_embed_proj_dim", encoder.config.hidden_size)
        != encoder.config.hidden_size
    ):
        raise WhichlayersError(
            "this OPT model projects its last hidden state to the width of its embeddings, so that its layers do not "
            "have the same width: it can be finetuned, but not probed."
        )
    encoder = encoder.to(device)  # type: ignore[arg-type]
    was_training = encoder.training
    encoder.eval()
    try:
        for rows in batches_by_length(np.diff(split.offsets), tokens_per_batch):
            batch = pad(split, rows, pad_id)
            mask = torch.from_numpy(batch.attention_mask).to(device)
            inputs = {"input_ids": torch.from_numpy(batch.input_ids).to(device), "attention_mask": mask}
            if with_types and batch.token_type_ids is not None:
                inputs["token_type_ids"] = torch.from_numpy(batch.token_type_ids).to(device)
            indices, pool_layer = pool(rows, mask)
            with torch.inference_mode():
                hidden = encoder(**inputs, output_hidden_states=True).hidden_states  # each (B, L, H)
                states = torch.stack([pool_layer(layer) for layer in hidden], 1)
            yield indices, states
    finally:
        encoder.train(was_training)


def _shape(encoder: PreTrainedModel, n: int) -> tuple[int, int, int]:
    return n, ModelStructure(encoder).depth + 1, encoder.config.hidden_size


def _for_device(tokens: dict[str, int], device: torch.device) -> int:
    return tokens.get(device.type, tokens["cpu"])


# --- results ---


def _collect_in_file(
    batches: StateBatches,
    shape: tuple[int, int, int],
    precision: StoredPrecision,
    cache: Path | None,
    key: str,
    on_rows: OnRows | None,
) -> np.ndarray:
    """All hidden states in a memory-mapped file, which is read if it exists and computed otherwise."""

    def compute(target: np.ndarray) -> None:
        for indices, states, values in _copy_to_host(batches, precision):
            rounded = values.numpy()
            if not np.isfinite(rounded).all():
                raise _not_finite_error(bool(torch.isfinite(states).all()))
            target[indices] = rounded
            if on_rows is not None:
                on_rows(len(indices))

    states, computed = cached_array(shape, precision, compute, cache, key)
    if not computed and on_rows is not None:
        on_rows(len(states))
    return states


def _collect_on_device(
    batches: StateBatches,
    shape: tuple[int, int, int],
    precision: StoredPrecision,
    device: torch.device,
    on_rows: OnRows | None,
) -> Tensor:
    """All hidden states in one tensor on the device; they are checked to be finite once, at the end."""
    target = torch.empty(shape, dtype=getattr(torch, precision), device=device)
    all_finite, finite_before = (torch.ones((), dtype=torch.bool, device=device) for _ in range(2))
    for indices, states in batches:
        rounded = states.to(target.dtype)
        target[torch.from_numpy(indices).to(device)] = rounded
        all_finite &= torch.isfinite(rounded).all()
        finite_before &= torch.isfinite(states).all()
        if on_rows is not None:
            on_rows(len(indices))
    if not bool(all_finite):
        raise _not_finite_error(bool(finite_before))
    return target


def _copy_to_host(
    batches: StateBatches, precision: StoredPrecision
) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Yields (indices, states, the states rounded on the host); on a GPU the copies lag a few batches behind."""
    pending: deque[tuple[np.ndarray, Tensor, Tensor, torch.cuda.Event | None]] = deque()
    for indices, states in batches:
        rounded = states.to(getattr(torch, precision))
        copied = None
        if states.is_cuda:
            values = torch.empty(rounded.shape, dtype=rounded.dtype, pin_memory=True)
            values.copy_(rounded, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record(torch.cuda.current_stream(states.device))
        else:
            values = rounded
        pending.append((indices, states, values, copied))
        while len(pending) > (MAX_PENDING_COPIES if copied is not None else 0):
            yield _wait_for_copy(pending)
    while pending:
        yield _wait_for_copy(pending)


def _wait_for_copy(pending: deque) -> tuple[np.ndarray, Tensor, Tensor]:
    indices, states, values, copied = pending.popleft()
    if copied is not None:
        copied.synchronize()
    return indices, states, values


def _not_finite_error(finite_before_rounding: bool) -> WhichlayersError:
    """The error for hidden states that are not finite, because of rounding to float16 or because of the model."""
    return WhichlayersError(
        "a hidden state is too large for float16: store the hidden states in float32"
        if finite_before_rounding
        else "the model's hidden states are not finite numbers: check that its weights are not corrupted"
    )
