"""Activation extraction for words, in words per second: the batched pass of whichlayers against NeuroX.

NeuroX runs one sentence at a time through the model, tokenizes every word separately, and writes JSON (its default) or
HDF5. Both get a loaded model, the same number of torch threads and float32, and write all layers of all words to a
file; rounds are interleaved. The activations are compared, too.

NeuroX 1.0.9 pins libraries of 2021. To run it with the libraries that whichlayers uses, install it into a separate
environment that also has the packages of whichlayers (here .venv), and run this script there:

    python -m venv /tmp/neurox
    echo "import site; site.addsitedir('$PWD/.venv/lib/python3.11/site-packages')" \\
        > /tmp/neurox/lib/python3.11/site-packages/beside.pth
    /tmp/neurox/bin/pip install --no-deps neurox h5py
    /tmp/neurox/bin/python benchmarks/words_vs_neurox.py FILE [--model NAME] [--sentences 300] [--rounds 5]

FILE: a corpus in CoNLL columns (word first), such as CoNLL-2000's test.txt.
"""

from __future__ import annotations

import argparse
import dataclasses
import platform
import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch
import transformers
from common import Seconds, load_model, make_parser, quiet
from neurox.data.extraction import transformers_extractor as neurox

from whichlayers.data.conll import TaggedCorpus, read_conll
from whichlayers.models.load import resolve
from whichlayers.probes.alignment import align
from whichlayers.probes.extract import extract_words, word_batches


def main() -> None:
    options = parse()
    torch.set_num_threads(options.threads)
    corpus = read_conll(options.file)
    every = max(1, len(corpus.sentences) // options.sentences)
    corpus = dataclasses.replace(corpus, sentences=corpus.sentences[::every][: options.sentences])
    encoder, tokenizer = load_model(options.model)
    folder = resolve(options.model).folder
    neurox_model = transformers.AutoModel.from_pretrained(folder, output_hidden_states=True).eval()
    neurox.get_model_and_tokenizer = lambda *args, **kwargs: (neurox_model, tokenizer)  # loaded once
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        text = folder / "sentences.txt"
        text.write_text("".join(" ".join(s.words) + "\n" for s in corpus.sentences), encoding="utf-8")
        methods: dict[str, Callable[[], object]] = {
            "whichlayers": lambda: extract_with_whichlayers(encoder, tokenizer, corpus, folder),
            "whichlayers, encoder only": lambda: encoder_only(encoder, tokenizer, corpus),
            "NeuroX, HDF5": lambda: extract_with_neurox(text, folder / "theirs.hdf5", "hdf5"),
            "NeuroX, JSON": lambda: extract_with_neurox(text, folder / "theirs.json", "json"),
        }
        seconds: dict[str, list[Seconds]] = {method: [] for method in methods}
        for round_number in range(options.rounds + 1):  # the first round is a warm-up
            for method, call in methods.items():
                started = Seconds.now()
                call()
                if round_number:
                    seconds[method].append(Seconds.now() - started)
        difference = largest_difference(
            extract_with_whichlayers(encoder, tokenizer, corpus, folder), folder / "theirs.hdf5"
        )
    report(options, corpus, seconds, difference)


KINDS: tuple[Callable[[Seconds], float], ...] = (lambda t: t.wall, lambda t: t.cores)


def extract_with_whichlayers(encoder, tokenizer, corpus: TaggedCorpus, folder: Path) -> np.ndarray:
    (folder / "words.npy").unlink(missing_ok=True)
    return extract_words(encoder, tokenizer, corpus, precision="float32", cache=folder, key="words").states


def encoder_only(encoder, tokenizer, corpus: TaggedCorpus) -> None:
    """The same batches without storing anything: a lower bound on the time."""
    aligned = align(corpus, tokenizer)
    for _ in word_batches(encoder, tokenizer, aligned, "last"):
        pass


def extract_with_neurox(text: Path, output: Path, kind: str) -> None:
    with quiet():
        neurox.extract_representations("", str(text), str(output), aggregation="last", output_type=kind)


def largest_difference(states: np.ndarray, file: Path) -> float:
    """Largest absolute difference between the activations of whichlayers and of NeuroX's HDF5 file."""
    with h5py.File(file) as stored:
        theirs = [np.array(stored[str(i)]) for i in range(len(stored) - 1)]  # each (layers, words, H)
    return float(np.abs(np.concatenate(theirs, 1).transpose(1, 0, 2) - states).max())


def report(
    options: argparse.Namespace, corpus: TaggedCorpus, seconds: dict[str, list[Seconds]], difference: float
) -> None:
    print(
        f"{options.model} on {len(corpus.sentences)} sentences ({corpus.n_words:,} words) of "
        f"{Path(options.file).name}; {options.rounds} rounds; {platform.machine()}, {options.threads} torch "
        f"threads, torch {torch.__version__}, transformers {transformers.__version__}.\n"
    )
    print("| | words/s | words per CPU second | speedup of whichlayers | in CPU time |")
    print("|---|---|---|---|---|")
    own = seconds["whichlayers"]
    for method, times in seconds.items():
        rates = [statistics.median(corpus.n_words / kind(t) for t in times) for kind in KINDS]
        ratios = [
            statistics.median(kind(other) / kind(one) for one, other in zip(own, times, strict=True))
            for kind in KINDS
        ]
        faster = ["", ""] if method.startswith("whichlayers") else [f"**{ratio:.1f}x**" for ratio in ratios]
        print(f"| {method} | {rates[0]:,.0f} | {rates[1]:,.0f} | {faster[0]} | {faster[1]} |")
    print(f"\nMedians. Largest difference between the activations of both: {difference:.1e}.")


def parse() -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("file")
    parser.add_argument("--sentences", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
