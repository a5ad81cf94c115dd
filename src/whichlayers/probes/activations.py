"""Holds the hidden states of a corpus' words while one model is probed.

    store = ActivationStore("cuda", folder)
    states = store.hidden_states(encoder, tokenizer, {"train": ..., "test": ...}, "last")  # (words, depth + 1, H) each

Hidden states that fit into GPU memory stay there and no file is written. Otherwise they are memory-mapped files in
`folder`, which no other store may use. Corpora with the same words (UPOS and XPOS of one treebank) share their
hidden states if they are requested one after the other; those of any other corpus are discarded.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache as cache_once
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from whichlayers.data.conll import TaggedCorpus
from whichlayers.engine.devices import resolve_device, select_device
from whichlayers.engine.out_of_memory import release_memory
from whichlayers.errors import WhichlayersError
from whichlayers.probes.activation_files import StoredPrecision
from whichlayers.probes.alignment import Alignment, align
from whichlayers.probes.extract import (
    OnRows,
    WordActivations,
    WordPooling,
    corpus_fingerprint,
    extract_words,
    max_segment_length,
    states_shape,
    word_cache_key,
)

MAX_DEVICE_FRACTION = 0.4  # of a GPU's free memory, for the hidden states of one corpus

log = logging.getLogger(__name__)


@dataclass
class ActivationStore:
    """Hidden states of one model, on the GPU or in files.

    `alignments` may be shared by models with the same tokenizer, so that a corpus is tokenized only once.
    """

    device: str | torch.device = "cpu"
    folder: Path | None = None  # None: temporary files
    alignments: dict[str, Alignment] = field(default_factory=dict)  # by the fingerprint of a split's words
    # by (fingerprint, pooling)
    on_device: dict[tuple[str, str], WordActivations] = field(default_factory=dict)

    @cached_property
    def torch_device(self) -> torch.device:
        device = resolve_device(self.device)
        select_device(device)
        return device

    def hidden_states(
        self,
        encoder: PreTrainedModel,
        tokenizer: Any,
        splits: Mapping[str, TaggedCorpus],
        pooling: WordPooling,
        on_words: OnRows | None = None,
    ) -> dict[str, np.ndarray | Tensor]:
        """The hidden states (words, depth + 1, H) of each split, in float16, or float32 if a value overflows."""
        fingerprints = {name: corpus_fingerprint(split) for name, split in splits.items()}
        for name, split in splits.items():
            if fingerprints[name] not in self.alignments:
                self.alignments[fingerprints[name]] = align(split, tokenizer, max_segment_length(encoder))
        aligned = {name: self.alignments[fingerprint] for name, fingerprint in fingerprints.items()}
        wanted = {(fingerprint, pooling) for fingerprint in fingerprints.values()}
        self.on_device = {key: stored for key, stored in self.on_device.items() if key in wanted}
        release_memory()
        fits = self._fits_on_device(encoder, aligned.values())
        if self.folder is not None and not fits:
            self._delete_other_files(
                {
                    _file_name(split, pooling, p)
                    for split in splits.values()
                    for p in get_args(StoredPrecision)
                }
            )
        states = {}
        for name, split in splits.items():
            activations = self.on_device.get((fingerprints[name], pooling))
            if activations is None:
                activations = self._extract(encoder, tokenizer, split, pooling, aligned[name], fits, on_words)
            elif on_words is not None:
                on_words(split.n_words)
            if fits:
                self.on_device[fingerprints[name], pooling] = activations
            for message in activations.report.warnings():
                _warn_once(message)
            states[name] = activations.states
        return states

    def _fits_on_device(self, encoder: PreTrainedModel, aligned: Iterable[Alignment]) -> bool:
        """Whether the float16 hidden states of all splits fit into free GPU memory; False on a CPU."""
        if self.torch_device.type != "cuda":
            return False
        values = sum(int(np.prod(states_shape(encoder, one))) for one in aligned)
        free = torch.cuda.mem_get_info(self.torch_device)[0]
        return values * torch.float16.itemsize < MAX_DEVICE_FRACTION * free

    def _delete_other_files(self, wanted: set[str]) -> None:
        """Delete the files of other corpora, and partial files of processes that were killed."""
        assert self.folder is not None
        for file in self.folder.iterdir() if self.folder.is_dir() else ():
            if file.is_file() and file.stem not in wanted:
                file.unlink(missing_ok=True)

    def _extract(
        self,
        encoder: PreTrainedModel,
        tokenizer: Any,
        split: TaggedCorpus,
        pooling: WordPooling,
        aligned: Alignment,
        on_device: bool,
        on_words: OnRows | None,
    ) -> WordActivations:
        """Extract in float16; if a value overflows, again in float32."""

        def extract(precision: StoredPrecision) -> WordActivations:
            return extract_words(
                encoder,
                tokenizer,
                split,
                pooling=pooling,
                precision=precision,
                device=self.torch_device,
                cache=self.folder,
                key="" if on_device else _file_name(split, pooling, precision),
                on_words=on_words,
                aligned=aligned,
                on_device=on_device,
            )

        try:
            return extract("float16")
        except WhichlayersError as error:
            if "float16" not in str(error):
                raise
            return extract("float32")


def _file_name(split: TaggedCorpus, pooling: WordPooling, precision: StoredPrecision) -> str:
    # no model fingerprint: the folder belongs to one model
    return word_cache_key("", split, pooling, precision)


@cache_once
def _warn_once(text: str) -> None:
    """Log a warning once per process, although every finetuned model reads the corpus again."""
    log.warning("%s", text)
