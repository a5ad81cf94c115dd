"""Where the vectors of a corpus' words lie while questions are asked of one model.

    shelf = Shelf("cuda", folder)
    states = shelf.states(encoder, tokenizer, {"train": ..., "test": ...}, "last")    # (words, depth + 1, H) each

On a GPU with room for them they stay there: nothing is written, nothing travels. Elsewhere they lie in files,
memory-mapped, in `folder`. Two corpora with the same words (UPOS and XPOS of one treebank) share their vectors
if they are asked about one after the other.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache as cache_once
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from carryover.data.tagged import TaggedCorpus
from carryover.engine.need import release
from carryover.probes.alignment import Alignment, align
from carryover.probes.features import Precision
from carryover.probes.words import (
    OnWords,
    WordFeatures,
    WordPooling,
    corpus_fingerprint,
    extract_words,
    longest_piece,
    states_shape,
    words_key,
)
from carryover.trial import CarryoverError

SHARE_OF_DEVICE = 0.4  # of a GPU's free memory that the vectors of one corpus may take

log = logging.getLogger(__name__)


@dataclass
class Shelf:
    """For one model. `aligned` may be shared by models with one tokenizer: a corpus is tokenised once for all."""

    device: str | torch.device = "cpu"
    folder: Path | None = None  # None: temporary files
    aligned: dict[str, Alignment] = field(default_factory=dict)  # by the words of a corpus
    held: dict[str, WordFeatures] = field(default_factory=dict)  # by their key: what lies on the device

    @cached_property
    def place(self) -> torch.device:
        from carryover.engine.finetune import checked_device

        return checked_device(self.device)

    def states(
        self,
        encoder: PreTrainedModel,
        tokenizer: Any,
        splits: Mapping[str, TaggedCorpus],
        vector: WordPooling,
        on_words: OnWords | None = None,
    ) -> dict[str, np.ndarray | Tensor]:
        """Those of each split, as 16-bit floats unless one is too large for them."""
        aligned = {name: self._aligned(encoder, tokenizer, split) for name, split in splits.items()}
        keys = {words_key("", split, vector) for split in splits.values()}
        self.held = {key: found for key, found in self.held.items() if key in keys}
        release()
        here = self._fits(encoder, aligned)
        found = {}
        for name, split in splits.items():
            features = self._found(encoder, tokenizer, split, vector, aligned[name], here, on_words)
            for told in features.report.lines():
                _tell_once(told)
            found[name] = features.states
        return found

    def _aligned(self, encoder: PreTrainedModel, tokenizer: Any, split: TaggedCorpus) -> Alignment:
        words = corpus_fingerprint(split)
        if words not in self.aligned:
            self.aligned[words] = align(split, tokenizer, longest_piece(encoder))
        return self.aligned[words]

    def _fits(self, encoder: PreTrainedModel, aligned: Mapping[str, Alignment]) -> bool:
        if self.place.type != "cuda":
            return False
        values = sum(int(np.prod(states_shape(encoder, one))) for one in aligned.values())
        return values * torch.float16.itemsize < SHARE_OF_DEVICE * torch.cuda.mem_get_info(self.place)[0]

    def _found(
        self,
        encoder: PreTrainedModel,
        tokenizer: Any,
        split: TaggedCorpus,
        vector: WordPooling,
        aligned: Alignment,
        here: bool,
        on_words: OnWords | None,
    ) -> WordFeatures:
        key = words_key("", split, vector)
        if key in self.held:
            if on_words is not None:
                on_words(split.n_words)
            return self.held[key]

        def extracted(precision: Precision) -> WordFeatures:
            return extract_words(
                encoder,
                tokenizer,
                split,
                pooling=vector,
                precision=precision,
                device=self.place,
                cache=self.folder,
                key=words_key("", split, vector, precision),  # the folder is this model's own
                on_words=on_words,
                aligned=aligned,
                on_device=here,
            )

        try:
            features = extracted("float16")
        except CarryoverError as error:
            if "float16" not in str(error):
                raise
            features = extracted("float32")
        if here:
            self.held[key] = features
        return features


@cache_once
def _tell_once(text: str) -> None:
    """A corpus is read anew by every finetuned model; what there is to say of it is said once a process."""
    log.warning("%s", text)
