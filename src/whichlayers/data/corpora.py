"""Load tagged corpora for word-level probing: those of the papers, built-in ones, or custom files.

    load_corpus("UD-EWT:xpos", source="data")                # data/ud_english_ewt/en_ewt-ud-train.conllu, ...
    load_corpus("builtin:chunk")
    load_corpus("my-corpus", train="train.conll", test="test.conll", format="conll", column=1)

The splits are the official ones. A corpus can be limited to a number of words; the sentences are then sampled with
a fixed seed.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

from whichlayers.data.builtin import BUILTIN_CORPORA, load_builtin_corpus
from whichlayers.data.conll import BadCorpus, TaggedCorpus, read_tagged
from whichlayers.errors import WhichlayersError
from whichlayers.rng import permutation
from whichlayers.text import counted

Format = Literal["conll", "conllu", "pmb"]


@dataclass(frozen=True)
class CorpusFiles:
    """File layout of a supported corpus, and the column of its tags."""

    folders: tuple[str, ...]  # possible names of its folder
    format: Format
    column: str | int
    train: str
    test: str
    dev: str | None = None


_EWT = ("ud_english_ewt", "UD_English-EWT", "ud-english-ewt")
_EWT_FILES = [f"en_ewt-ud-{part}.conllu" for part in ("train", "test", "dev")]
_PMB_FILES = ("train.conll", "test.conll", "dev.conll")
CORPUS_FILES: dict[str, CorpusFiles] = {
    "UD-EWT:xpos": CorpusFiles(_EWT, "conllu", "xpos", *_EWT_FILES),
    "UD-EWT:upos": CorpusFiles(_EWT, "conllu", "upos", *_EWT_FILES),
    "CoNLL-2000:pos": CorpusFiles(("conll2000",), "conll", 1, "train.txt", "test.txt"),
    "CoNLL-2000:chunk": CorpusFiles(("conll2000",), "conll", 2, "train.txt", "test.txt"),
    "PMB:sem": CorpusFiles(("sem_pmb", "pmb"), "pmb", "sem", *_PMB_FILES),
}


@dataclass(frozen=True)
class Corpus:
    """The splits of a tagged corpus."""

    name: str
    train: TaggedCorpus
    test: TaggedCorpus
    dev: TaggedCorpus | None = None  # validation data; if None, a part of the training sentences is held out
    notes: tuple[str, ...] = ()  # warnings for the user, such as tags that only occur in the test split

    @property
    def splits(self) -> dict[str, TaggedCorpus]:
        """The existing splits by name."""
        all_splits = {"train": self.train, "test": self.test, "dev": self.dev}
        return {name: split for name, split in all_splits.items() if split is not None}

    @property
    def n_words(self) -> int:
        """Number of words in all splits."""
        return sum(split.n_words for split in self.splits.values())

    @property
    def has_validation_data(self) -> bool:
        """Whether there are sentences to select L1/L2 penalties and neurons on: dev, or held-out training sentences."""
        return self.dev is not None or len(self.train.sentences) > 1

    @cached_property
    def fingerprint(self) -> str:
        """Hash (16 hex digits) of the words and tags of all splits, but not of names or line numbers."""
        digest = hashlib.blake2b(digest_size=8)
        for name, split in (("train", self.train), ("dev", self.dev), ("test", self.test)):
            digest.update(f"\0{name}\0{0 if split is None else len(split.sentences)}".encode())
            for sentence in split.sentences if split is not None else ():
                digest.update("\n".join((*sentence.words, "", *sentence.tags)).encode() + b"\0")
        return digest.hexdigest()


def load_corpus(
    name: str,
    *,
    source: str | Path | None = None,
    train: str | Path | None = None,
    test: str | Path | None = None,
    dev: str | Path | None = None,
    format: Format | None = None,
    column: str | int | None = None,
    train_words: int | None = None,
    test_words: int | None = None,
) -> Corpus:
    """Load a tagged corpus.

    Args:
        name: A built-in corpus, a supported corpus such as "UD-EWT:xpos", or any name for custom files.
        source: Folder of a supported corpus.
        train, test, dev: Custom files; dev is optional.
        format, column: Format of custom files and the column of the tags (see `read_tagged`).
        train_words, test_words: Maximum number of words of the training split, and of the dev and test splits.
    """
    if name in BUILTIN_CORPORA:
        splits = load_builtin_corpus(name)
    elif train is None:
        splits = _read_supported(name, source)
    else:
        if test is None or format is None:
            missing = [key for key, value in {"test": test, "format": format}.items() if value is None]
            raise WhichlayersError(
                f"corpus {name!r}: {' and '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing; a custom "
                "corpus needs train, test and format"
            )
        files = {"train": train, "test": test, "dev": dev}
        splits = {part: read_tagged(file, format, column) for part, file in files.items() if file is not None}
    max_words = {"train": train_words, "dev": test_words, "test": test_words}
    limited = {part: _limit_words(split, max_words[part]) for part, split in splits.items()}
    _check_several_tags(
        f"corpus {name!r}" if train is None else str(train), splits["train"], limited["train"]
    )
    return Corpus(name, limited["train"], limited["test"], limited.get("dev"), tuple(_notes(limited)))


def _read_supported(name: str, source: str | Path | None) -> dict[str, TaggedCorpus]:
    """Read the splits of a supported corpus from its folder inside `source`."""
    if name not in CORPUS_FILES:
        raise WhichlayersError(_unknown_corpus_message(name))
    files = CORPUS_FILES[name]
    if source is None:
        raise WhichlayersError(
            f"corpus {name} cannot be downloaded; set source = ... (or --data) to the folder that contains "
            f"{files.folders[0]}/"
        )
    folder = Path(source)
    if not folder.is_dir():
        raise WhichlayersError(f"corpus {name}: source = {str(folder)!r} is not a folder; check the path")
    candidates = [
        *(folder / subfolder for subfolder in files.folders),
        folder,
        *(folder.parent / subfolder for subfolder in files.folders),
    ]
    corpus_folder = next((candidate for candidate in candidates if (candidate / files.train).is_file()), None)
    if corpus_folder is None:
        raise WhichlayersError(
            f"corpus {name}: {folder} has no {files.folders[0]}/{files.train}; set source to the folder that "
            "contains it"
        )
    if not (corpus_folder / files.test).is_file():
        raise WhichlayersError(
            f"corpus {name}: {corpus_folder} has {files.train} but no {files.test}; add this file"
        )
    parts = {"train": files.train, "test": files.test}
    if files.dev is not None and (corpus_folder / files.dev).is_file():
        parts["dev"] = files.dev
    return {
        part: read_tagged(corpus_folder / file, files.format, files.column) for part, file in parts.items()
    }


def _unknown_corpus_message(name: str) -> str:
    """Error message that lists the available corpora, with the closest match."""
    allowed = [*BUILTIN_CORPORA, *CORPUS_FILES]
    close = difflib.get_close_matches(name.lower(), [a.lower() for a in allowed], n=1, cutoff=0.5)
    hint = next((f" (did you mean {a!r}?)" for a in allowed if a.lower() in close), "")
    return (
        f"unknown corpus {name!r}{hint}; choose one of {', '.join(allowed)}, or define a custom corpus with "
        "train, test and format"
    )


def _limit_words(corpus: TaggedCorpus, max_words: int | None) -> TaggedCorpus:
    """A fixed random sample of complete sentences with at most max_words words in total, in file order."""
    if max_words is None or corpus.n_words <= max_words:
        return corpus
    chosen, words = [], 0
    for index in permutation(0, "corpus", len(corpus.sentences)):
        length = len(corpus.sentences[index].words)
        if words + length <= max_words:
            chosen.append(int(index))
            words += length
        if words == max_words:
            break
    if not chosen:
        raise WhichlayersError(
            f"corpus {corpus.name}: every sentence has more than {counted(max_words, 'word')}; increase train_words "
            "or test_words"
        )
    return dataclasses.replace(corpus, sentences=[corpus.sentences[i] for i in sorted(chosen)])


def _check_several_tags(where: str, full: TaggedCorpus, limited: TaggedCorpus) -> None:
    """Raise if all words of the training split have the same tag."""
    if len(tags := limited.tag_names) > 1:
        return
    if len(full.tag_names) > 1:
        raise WhichlayersError(
            f"{where}: with this train_words, every word has the tag {tags[0]!r}; increase train_words"
        )
    raise BadCorpus(f"{where}: every word has the tag {tags[0]!r}; a probe needs at least two different tags")


def _notes(splits: dict[str, TaggedCorpus]) -> Iterable[str]:
    """A note if the test split has tags that the training split does not have."""
    unseen = {
        tag: sum(sentence.tags.count(tag) for sentence in splits["test"].sentences)
        for tag in set(splits["test"].tag_names) - set(splits["train"].tag_names)
    }
    if unseen:
        listed = ", ".join(f"{tag} ({n})" for tag, n in sorted(unseen.items(), key=lambda item: -item[1])[:5])
        n_words, tags = sum(unseen.values()), "a tag" if len(unseen) == 1 else f"one of {len(unseen)} tags"
        has, counts = ("has", "counts") if n_words == 1 else ("have", "count")
        yield (
            f"{counted(n_words, 'test word')} {has} {tags} that no training word has, and {counts} as wrong: "
            f"{listed}{', ...' if len(unseen) > 5 else ''}"
        )
