"""Extracts the hidden states of every word at every layer of a frozen model in one forward pass over a tagged corpus.

    key = word_cache_key(files.fingerprint, corpus)
    found = extract_words(encoder, tokenizer, corpus, device="cuda", cache=folder, key=key)
    found.states        # (words, depth + 1, H), memory-mapped; words in corpus order
    found.report        # sentences that were split, words replaced by the unknown token

A word is represented by its last subword, its first subword or the mean of all its subwords. Index 0 is the embeddings
and index k the output of layer k. File format and locking are those of `extract_sentences`. The encoder runs in eval
mode on batches of similar length. Only one batch is in memory at a time; on a GPU the next batch is computed while the
last one is copied to the host.
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

from whichlayers.data.conll import TaggedCorpus
from whichlayers.errors import WhichlayersError
from whichlayers.models.families import Anatomy
from whichlayers.models.head import takes_token_types
from whichlayers.models.load import max_input_length
from whichlayers.probes.alignment import Alignment, AlignmentReport, align
from whichlayers.probes.extract_sentences import (
    Precision,
    batches_by_length,
    cached_array,
    check_finite,
    hash_key,
    not_finite_error,
)

FORMAT = 1  # increase when the contents of the file change
# by device type, including padding; all layers of a batch are in memory at once
TOKENS_PER_BATCH = {"cpu": 1024, "cuda": 32768}
MAX_PENDING_COPIES = 2  # batches that are being copied to the host

WordPooling = Literal["last", "first", "mean"]
# called with the number of words whose hidden states were added since the last call
OnWords = Callable[[int], None]


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
    precision: Precision = "float16",
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
    precision: Precision = "float16",
    max_length: int | None = None,
    device: str | torch.device = "cpu",
    cache: Path | None = None,
    key: str = "",
    on_words: OnWords | None = None,
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
    shape = states_shape(encoder, alignment)
    torch_device = torch.device(device)
    budget = tokens_per_batch or TOKENS_PER_BATCH.get(torch_device.type, TOKENS_PER_BATCH["cpu"])
    with_types = takes_token_types(encoder) and "token_type_ids" in tokenizer.model_input_names
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0

    def batches() -> Iterator[tuple[np.ndarray, Tensor]]:
        for words, states in _batches(encoder, alignment, pad_id, with_types, pooling, torch_device, budget):
            yield words, states
            if on_words is not None:
                on_words(len(words))

    def compute(target: np.ndarray) -> None:
        for words, states, values in _copy_to_host(batches(), precision):
            target[words] = check_finite(values.numpy(), states)

    if on_device:
        return WordActivations(
            _collect_on_device(batches(), shape, precision, torch_device), alignment.report
        )
    states, computed = cached_array(shape, precision, compute, cache, key)
    if not computed and on_words is not None:
        on_words(len(states))
    return WordActivations(states, alignment.report)


def states_shape(encoder: PreTrainedModel, aligned: Alignment) -> tuple[int, int, int]:
    """Shape of the hidden states: (words, depth + 1, H)."""
    return len(aligned.first_token), Anatomy(encoder).depth + 1, encoder.config.hidden_size


def max_segment_length(encoder: PreTrainedModel, max_length: int | None = None) -> int | None:
    """Maximum length of a segment in tokens: `max_length`, or by default the model's limit; None for no limit."""
    anatomy = Anatomy(encoder)
    limit = max_input_length(anatomy.family, anatomy.model.config)
    if max_length is not None and limit is not None and max_length > limit:
        raise WhichlayersError(f"max_length = {max_length} is more than the model's limit of {limit} tokens")
    return limit if max_length is None else max_length


def _batches(
    encoder: PreTrainedModel,
    aligned: Alignment,
    pad_id: int,
    with_types: bool,
    pooling: WordPooling,
    device: torch.device,
    tokens_per_batch: int,
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Yields (word indices (w,), hidden states (w, depth + 1, H)), each word once."""
    encoder = encoder.to(device)  # type: ignore[arg-type]
    was_training = encoder.training
    encoder.eval()
    try:
        for segments in batches_by_length(np.diff(aligned.offsets), tokens_per_batch):
            ids, mask, types, starts = _pad(aligned, segments, pad_id)
            offsets = aligned.word_offsets
            words = np.concatenate([np.arange(offsets[s], offsets[s + 1]) for s in segments])
            counts = offsets[segments + 1] - offsets[segments]  # (B,) words of each segment
            segment_of = np.repeat(np.arange(len(segments)), counts)  # (w,)
            # (w,) from an index in `ids` to an index in the flattened, padded batch
            shift = starts[segment_of] - aligned.offsets[segments[segment_of]]
            first, last = (
                torch.from_numpy(index[words] + shift).to(device)
                for index in (aligned.first_token, aligned.last_token)
            )
            subwords = int((aligned.last_token[words] - aligned.first_token[words] + 1).sum())
            inputs = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
            if with_types:
                inputs["token_type_ids"] = types.to(device)
            with torch.inference_mode():
                hidden = encoder(**inputs, output_hidden_states=True).hidden_states  # each (B, L, H)
                flat = [h.reshape(-1, h.shape[-1]) for h in hidden]  # (B * L, H)
                states = torch.stack([_pool(h, first, last, subwords, pooling) for h in flat], 1)
            yield words, states
    finally:
        encoder.train(was_training)


def _pad(aligned: Alignment, segments: np.ndarray, pad_id: int) -> tuple[Tensor, Tensor, Tensor, np.ndarray]:
    """Pad segments on the right: (ids, mask, types), each (B, L), and their starts (B,) in the flattened batch."""
    lengths = aligned.offsets[segments + 1] - aligned.offsets[segments]
    width = int(lengths.max())
    real = np.arange(width) < lengths[:, None]  # (B, L)
    source = np.concatenate([np.arange(aligned.offsets[s], aligned.offsets[s + 1]) for s in segments])
    ids = np.full(real.shape, pad_id, np.int64)
    types = np.zeros(real.shape, np.int64)
    ids[real], types[real] = aligned.ids[source], aligned.type_ids[source]
    mask = torch.from_numpy(real.astype(np.int64))
    return torch.from_numpy(ids), mask, torch.from_numpy(types), np.arange(len(segments)) * width


def _pool(states: Tensor, first: Tensor, last: Tensor, subwords: int, pooling: WordPooling) -> Tensor:
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


def _collect_on_device(
    batches: Iterator[tuple[np.ndarray, Tensor]],
    shape: tuple[int, int, int],
    precision: Precision,
    device: torch.device,
) -> Tensor:
    """All hidden states in one tensor on the device; they are checked to be finite once, at the end."""
    target = torch.empty(shape, dtype=getattr(torch, precision), device=device)
    all_finite, finite_before = (torch.ones((), dtype=torch.bool, device=device) for _ in range(2))
    for words, states in batches:
        rounded = states.to(target.dtype)
        target[torch.from_numpy(words).to(device)] = rounded
        all_finite &= torch.isfinite(rounded).all()
        finite_before &= torch.isfinite(states).all()
    if not bool(all_finite):
        raise not_finite_error(bool(finite_before))
    return target


def _copy_to_host(
    batches: Iterator[tuple[np.ndarray, Tensor]], precision: Precision
) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """Yields (words, states, the states rounded on the host); on a GPU the copies lag a few batches behind."""
    pending: deque[tuple[np.ndarray, Tensor, Tensor, torch.cuda.Event | None]] = deque()
    for words, states in batches:
        rounded = states.to(getattr(torch, precision))
        copied = None
        if states.is_cuda:
            values = torch.empty(rounded.shape, dtype=rounded.dtype, pin_memory=True)
            values.copy_(rounded, non_blocking=True)
            copied = torch.cuda.Event()
            copied.record()
        else:
            values = rounded
        pending.append((words, states, values, copied))
        while len(pending) > (MAX_PENDING_COPIES if copied is not None else 0):
            yield _wait_for_copy(pending)
    while pending:
        yield _wait_for_copy(pending)


def _wait_for_copy(pending: deque) -> tuple[np.ndarray, Tensor, Tensor]:
    words, states, values, copied = pending.popleft()
    if copied is not None:
        copied.synchronize()
    return words, states, values
