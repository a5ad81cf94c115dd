"""Where the vectors of a corpus' words lie while questions are asked of one model.

    shelf = Shelf("cuda", folder)
    states = shelf.states(encoder, tokenizer, {"train": ..., "test": ...}, "last")    # (words, depth + 1, H) each

On a GPU with room for them they stay there: nothing is written, nothing travels. Elsewhere they lie in files,
memory-mapped, in `folder`, which is the shelf's own. Two corpora with the same words (UPOS and XPOS of one
treebank) share their vectors if they are asked about one after the other; those of other words go.
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
from whichlayers.engine.cost import release
from whichlayers.errors import WhichlayersError
from whichlayers.probes.alignment import Alignment, align
from whichlayers.probes.extract_sentences import Precision
from whichlayers.probes.extract_words import (
    OnWords,
    WordFeatures,
    WordPooling,
    corpus_fingerprint,
    extract_words,
    longest_piece,
    states_shape,
    words_key,
)

SHARE_OF_DEVICE = 0.4  # of a GPU's free memory that the vectors of one corpus may take

log = logging.getLogger(__name__)


@dataclass
class Shelf:
    """For one model. `aligned` may be shared by models with one tokenizer: a corpus is tokenised once for all."""

    device: str | torch.device = "cpu"
    folder: Path | None = None  # None: temporary files
    aligned: dict[str, Alignment] = field(default_factory=dict)  # by the words of a corpus
    held: dict[tuple[str, str], WordFeatures] = field(
        default_factory=dict
    )  # by words and vector: on the device

    @cached_property
    def place(self) -> torch.device:
        from whichlayers.engine.finetune import checked_device

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
        words = {name: corpus_fingerprint(split) for name, split in splits.items()}
        for name, split in splits.items():
            if words[name] not in self.aligned:
                self.aligned[words[name]] = align(split, tokenizer, longest_piece(encoder))
        aligned = {name: self.aligned[one] for name, one in words.items()}
        wanted = {(one, vector) for one in words.values()}
        self.held = {key: found for key, found in self.held.items() if key in wanted}
        release()
        here = self._fits(encoder, aligned.values())
        if self.folder is not None and not here:
            self._clear(
                {_file_name(split, vector, p) for split in splits.values() for p in get_args(Precision)}
            )
        found = {}
        for name, split in splits.items():
            features = self.held.get((words[name], vector))
            if features is None:
                features = self._extracted(encoder, tokenizer, split, vector, aligned[name], here, on_words)
            elif on_words is not None:
                on_words(split.n_words)
            if here:
                self.held[words[name], vector] = features
            for told in features.report.lines():
                _tell_once(told)
            found[name] = features.states
        return found

    def _fits(self, encoder: PreTrainedModel, aligned: Iterable[Alignment]) -> bool:
        if self.place.type != "cuda":
            return False
        values = sum(int(np.prod(states_shape(encoder, one))) for one in aligned)
        return values * torch.float16.itemsize < SHARE_OF_DEVICE * torch.cuda.mem_get_info(self.place)[0]

    def _clear(self, wanted: set[str]) -> None:
        """Delete the files of other words, and what a process that was killed left half-written."""
        assert self.folder is not None
        for file in self.folder.iterdir() if self.folder.is_dir() else ():
            if file.is_file() and file.stem not in wanted:
                file.unlink(missing_ok=True)

    def _extracted(
        self,
        encoder: PreTrainedModel,
        tokenizer: Any,
        split: TaggedCorpus,
        vector: WordPooling,
        aligned: Alignment,
        here: bool,
        on_words: OnWords | None,
    ) -> WordFeatures:
        def extracted(precision: Precision) -> WordFeatures:
            return extract_words(
                encoder,
                tokenizer,
                split,
                pooling=vector,
                precision=precision,
                device=self.place,
                cache=self.folder,
                key="" if here else _file_name(split, vector, precision),
                on_words=on_words,
                aligned=aligned,
                on_device=here,
            )

        try:
            return extracted("float16")
        except WhichlayersError as error:
            if "float16" not in str(error):
                raise
            return extracted("float32")


def _file_name(split: TaggedCorpus, vector: WordPooling, precision: Precision) -> str:
    return words_key("", split, vector, precision)  # of no model: the folder is one model's own


@cache_once
def _tell_once(text: str) -> None:
    """A corpus is read anew by every finetuned model; what there is to say of it is said once a process."""
    log.warning("%s", text)
