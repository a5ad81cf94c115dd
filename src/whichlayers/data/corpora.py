"""Load tagged corpora for word-level probing: those of the papers, built-in ones, or custom files.

    load_corpus("UD-EWT:xpos", source="data")                # data/ud_english_ewt/en_ewt-ud-train.conllu, ...
    load_corpus("builtin:chunk")
    load_corpus("my-corpus", train="train.conll", test="test.conll", format="conll", column=1)

The splits are the official ones. A corpus can be limited to a number of words; the sentences are then sampled with
a fixed seed.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from whichlayers.catalog import BUILTIN_CORPORA, CORPORA, CorpusFormat
from whichlayers.data.conll import TaggedCorpus, read_tagged
from whichlayers.data.tasks import BadData
from whichlayers.errors import WhichlayersError
from whichlayers.rng import permutation
from whichlayers.text import counted

DATA_FOLDER = Path(__file__).parent  # contains builtin/


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
    format: CorpusFormat | None = None,
    column: str | int | None = None,
    train_words: int | None = None,
    test_words: int | None = None,
) -> Corpus:
    """Load a tagged corpus.

    Args:
        name: A corpus of the catalog, such as "builtin:pos" or "UD-EWT:xpos", or any name for custom files.
        source: Folder that contains the folder of a corpus that is not built in.
        train, test, dev: Custom files; dev is optional. The settings are validated in the study file.
        format, column: Format of custom files and the column of the tags (see `read_tagged`).
        train_words, test_words: Maximum number of words of the training split, and of the dev and test splits.
    """
    if train is not None and test is not None and format is not None:
        files = {"train": train, "test": test, "dev": dev}
        splits = {part: read_tagged(file, format, column) for part, file in files.items() if file is not None}
    else:
        splits = _read_known(name, DATA_FOLDER if name in BUILTIN_CORPORA else source)
    max_words = {"train": train_words, "dev": test_words, "test": test_words}
    limited = {part: _limit_words(split, max_words[part]) for part, split in splits.items()}
    _check_several_tags(
        f"corpus {name!r}" if train is None else str(train), splits["train"], limited["train"]
    )
    return Corpus(name, limited["train"], limited["test"], limited.get("dev"), tuple(_notes(limited)))


def _read_known(name: str, source: str | Path | None) -> dict[str, TaggedCorpus]:
    """Read the splits of a corpus of the catalog from its folder inside `source`."""
    files = CORPORA[name]
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
    raise BadData(f"{where}: every word has the tag {tags[0]!r}; a probe needs at least two different tags")


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
