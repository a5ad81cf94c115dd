"""The states of every word at every layer of a frozen model, from one pass over a tagged corpus.

    key = words_key(files.fingerprint, corpus)
    found = extract_words(encoder, tokenizer, corpus, device="cuda", cache=folder, key=key)
    found.states        # (words, depth + 1, H), memory-mapped; words in the order of the corpus
    found.report        # sentences that were split, words the tokenizer makes nothing of

A word's vector is the state of its last sub-word, of its first, or the mean of all. Place 0 holds the
embeddings, place k the output of layer k, as in `features`, whose file and lock are used here too. The encoder
runs in eval mode over pieces of like length. What is in memory at once is one batch, whatever the corpus; on a
GPU the next batch is computed while the last one travels to the host.
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
from whichlayers.models.anatomy import Anatomy
from whichlayers.models.head import takes_token_types
from whichlayers.models.load import longest_input
from whichlayers.probes.alignment import Alignment, AlignmentReport, align
from whichlayers.probes.extract_sentences import Precision, by_length, finite, kept, name_of, not_finite

FORMAT = 1  # raise it when the file's contents change
TOKENS_AT_ONCE = {"cpu": 1024, "cuda": 32768}  # padded tokens in a batch; all its layers are held at once
IN_FLIGHT = 2  # batches that may be on their way to the host

WordPooling = Literal["last", "first", "mean"]
OnWords = Callable[[int], None]  # how many more words have their vectors


@dataclass(frozen=True, eq=False)
class WordFeatures:
    states: np.ndarray | Tensor  # (words, depth + 1, H)
    report: AlignmentReport


def corpus_fingerprint(corpus: TaggedCorpus) -> str:
    """16 hex digits of the words and where sentences end; tags play no part: all columns of a file share it."""
    digest = hashlib.blake2b(digest_size=8)
    for sentence in corpus.sentences:
        digest.update("\0".join(sentence.words).encode("utf-8", "surrogatepass") + b"\0\0")
    return digest.hexdigest()


def words_key(
    model_fingerprint: str,
    corpus: TaggedCorpus,
    pooling: WordPooling = "last",
    precision: Precision = "float16",
    max_length: int | None = None,
) -> str:
    """A name for the states of a corpus' words in a model: a hash of all that decides them.

    `model_fingerprint` stands for the weights and the tokenizer: that of the model's files, or of a finetuned
    model whatever tells it from all others.
    """
    import tokenizers
    import transformers

    parts = ["words", FORMAT, model_fingerprint, corpus_fingerprint(corpus), pooling, precision, max_length]
    return name_of([*parts, transformers.__version__, tokenizers.__version__])


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
    tokens_at_once: int | None = None,
    aligned: Alignment | None = None,
    on_device: bool = False,
) -> WordFeatures:
    """Read from the cache's file `key`, or computed and put there; without a cache in a temporary file.

    `max_length`: the longest piece of a sentence in tokens; None for what the model's positions allow.
    `aligned`: the corpus as this tokenizer cuts it, if that is known. `on_device`: the states stay there, as a
    tensor; no file is read or written.
    """
    if pooling not in get_args(WordPooling):
        raise WhichlayersError(f"pooling {pooling!r} is not known: choose one of last, first, mean")
    known = aligned or align(corpus, tokenizer, longest_piece(encoder, max_length))
    shape = states_shape(encoder, known)
    place = torch.device(device)
    budget = tokens_at_once or TOKENS_AT_ONCE.get(place.type, TOKENS_AT_ONCE["cpu"])
    with_types = takes_token_types(encoder) and "token_type_ids" in tokenizer.model_input_names
    pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0

    def batches() -> Iterator[tuple[np.ndarray, Tensor]]:
        for words, states in _batches(encoder, known, pad_id, with_types, pooling, place, budget):
            yield words, states
            if on_words is not None:
                on_words(len(words))

    def compute(target: np.ndarray) -> None:
        for words, states, values in _on_host(batches(), precision):
            target[words] = finite(values.numpy(), states)

    if on_device:
        return WordFeatures(_on_device(batches(), shape, precision, place), known.report)
    states, fresh = kept(shape, precision, compute, cache, key)
    if not fresh and on_words is not None:
        on_words(len(states))
    return WordFeatures(states, known.report)


def states_shape(encoder: PreTrainedModel, aligned: Alignment) -> tuple[int, int, int]:
    """(words, depth + 1, H)."""
    return len(aligned.first), Anatomy(encoder).depth + 1, encoder.config.hidden_size


def longest_piece(encoder: PreTrainedModel, asked: int | None = None) -> int | None:
    """In tokens; None: the model sets no limit."""
    anatomy = Anatomy(encoder)
    limit = longest_input(anatomy.family, anatomy.model.config)
    if asked is not None and limit is not None and asked > limit:
        raise WhichlayersError(f"max_length = {asked} is more than the model's own limit of {limit} tokens")
    return limit if asked is None else asked


def _batches(
    encoder: PreTrainedModel,
    aligned: Alignment,
    pad_id: int,
    with_types: bool,
    pooling: WordPooling,
    device: torch.device,
    tokens_at_once: int,
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """(words, their states (w, depth + 1, H)) until every word has been through the encoder once."""
    encoder = encoder.to(device)  # type: ignore[arg-type]
    was_training = encoder.training
    encoder.eval()
    try:
        for pieces in by_length(np.diff(aligned.offsets), tokens_at_once):
            ids, mask, types, starts = _padded(aligned, pieces, pad_id)
            words = np.concatenate([np.arange(aligned.words[p], aligned.words[p + 1]) for p in pieces])
            owner = np.repeat(np.arange(len(pieces)), aligned.words[pieces + 1] - aligned.words[pieces])
            shift = starts[owner] - aligned.offsets[pieces[owner]]  # from places in `ids` to the padded batch
            first, last = (
                torch.from_numpy(at[words] + shift).to(device) for at in (aligned.first, aligned.last)
            )
            subwords = int((aligned.last[words] - aligned.first[words] + 1).sum())
            inputs = {"input_ids": ids.to(device), "attention_mask": mask.to(device)}
            if with_types:
                inputs["token_type_ids"] = types.to(device)
            with torch.inference_mode():
                hidden = encoder(**inputs, output_hidden_states=True).hidden_states  # each (B, L, H)
                flat = [h.reshape(-1, h.shape[-1]) for h in hidden]  # (B * L, H)
                states = torch.stack([_pooled(h, first, last, subwords, pooling) for h in flat], 1)
            yield words, states
    finally:
        encoder.train(was_training)


def _padded(aligned: Alignment, pieces: np.ndarray, pad_id: int) -> tuple[Tensor, Tensor, Tensor, np.ndarray]:
    """(ids, mask, types, where each piece starts in the flattened batch), padded on the right."""
    lengths = aligned.offsets[pieces + 1] - aligned.offsets[pieces]
    width = int(lengths.max())
    real = np.arange(width) < lengths[:, None]  # (B, L)
    source = np.concatenate([np.arange(aligned.offsets[p], aligned.offsets[p + 1]) for p in pieces])
    ids = np.full(real.shape, pad_id, np.int64)
    types = np.zeros(real.shape, np.int64)
    ids[real], types[real] = aligned.ids[source], aligned.type_ids[source]
    mask = torch.from_numpy(real.astype(np.int64))
    return torch.from_numpy(ids), mask, torch.from_numpy(types), np.arange(len(pieces)) * width


def _pooled(states: Tensor, first: Tensor, last: Tensor, subwords: int, pooling: WordPooling) -> Tensor:
    """(B * L, H) states of tokens -> (w, H) of the words that go from token `first` to `last`.

    `subwords`: how many tokens all words have, so that a GPU need not be asked.
    """
    if pooling == "first":
        return states.index_select(0, first)
    if pooling == "last":
        return states.index_select(0, last)
    counts = last - first + 1
    ends = counts.cumsum(0)
    word = torch.repeat_interleave(counts, output_size=subwords)  # (t,): the word of each sub-word
    token = torch.arange(len(word), device=word.device) - (ends - counts - first).index_select(0, word)
    total = states.new_zeros(len(first), states.shape[-1])
    return total.index_add_(0, word, states.index_select(0, token)) / counts[:, None]


def _on_device(
    batches: Iterator[tuple[np.ndarray, Tensor]],
    shape: tuple[int, int, int],
    precision: Precision,
    device: torch.device,
) -> Tensor:
    """All states in one tensor; whether they are numbers is asked once, at the end."""
    target = torch.empty(shape, dtype=getattr(torch, precision), device=device)
    kept_whole, were_whole = (torch.ones((), dtype=torch.bool, device=device) for _ in range(2))
    for words, states in batches:
        rounded = states.to(target.dtype)
        target[torch.from_numpy(words).to(device)] = rounded
        kept_whole &= torch.isfinite(rounded).all()
        were_whole &= torch.isfinite(states).all()
    if not bool(kept_whole):
        raise not_finite(bool(were_whole))
    return target


def _on_host(
    batches: Iterator[tuple[np.ndarray, Tensor]], precision: Precision
) -> Iterator[tuple[np.ndarray, Tensor, Tensor]]:
    """(words, states, the same on the host as they are stored); on a GPU a few batches behind."""
    waiting: deque[tuple[np.ndarray, Tensor, Tensor, torch.cuda.Event | None]] = deque()
    for words, states in batches:
        rounded = states.to(getattr(torch, precision))
        done = None
        if states.is_cuda:
            values = torch.empty(rounded.shape, dtype=rounded.dtype, pin_memory=True)
            values.copy_(rounded, non_blocking=True)
            done = torch.cuda.Event()
            done.record()
        else:
            values = rounded
        waiting.append((words, states, values, done))
        while len(waiting) > (IN_FLIGHT if done is not None else 0):
            yield _arrived(waiting)
    while waiting:
        yield _arrived(waiting)


def _arrived(waiting: deque) -> tuple[np.ndarray, Tensor, Tensor]:
    words, states, values, done = waiting.popleft()
    if done is not None:
        done.synchronize()
    return words, states, values
