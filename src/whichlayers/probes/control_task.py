"""Control tasks (Hewitt & Liang 2019): what a probe can learn of tags that mean nothing.

Every word type gets one tag, drawn at random with the frequencies of the real tags, and keeps it wherever it
occurs. Only by learning words by heart can a probe do well on such tags, so the accuracy on the real ones minus
that on these, the selectivity, says how much of it is more than memory.
"""

from __future__ import annotations

import hashlib
from typing import TypeVar

import numpy as np

from whichlayers.data.conll import TaggedCorpus
from whichlayers.errors import WhichlayersError

Number = TypeVar("Number", float, np.ndarray)


def control_ids(corpus: TaggedCorpus, frequencies: np.ndarray, seed: int) -> np.ndarray:
    """(words,) int64: the control tag of every word, decided by the word and the seed alone.

    So a type has the same tag in training and test, and one that occurs only in test has one too.
    `frequencies`: (n_tags,), those of the real tags in training.
    """
    if len(frequencies) < 2 or (frequencies < 0).any() or not np.isclose(frequencies.sum(), 1):
        raise WhichlayersError("the frequencies of the tags must be two or more shares that add up to 1")
    types = {word for sentence in corpus.sentences for word in sentence.words}
    upper = np.cumsum(frequencies)
    upper[np.flatnonzero(frequencies)[-1] :] = np.inf  # rounding must not draw a tag of frequency 0
    tag_of = {word: int(np.searchsorted(upper, _share(word, seed), side="right")) for word in types}
    return np.fromiter((tag_of[word] for s in corpus.sentences for word in s.words), np.int64)


def selectivity(accuracy: Number, control: Number) -> Number:
    return accuracy - control


def _share(word: str, seed: int) -> float:
    """Uniform in [0, 1)."""
    text = f"{seed}\0control\0{word}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") / 2**64
