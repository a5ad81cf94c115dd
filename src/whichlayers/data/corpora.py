"""The tagged corpora that a study can ask about: those of the papers, the built-in grammar's, your own files.

    load_corpus("UD-EWT:xpos", source="data")                # data/ud_english_ewt/en_ewt-ud-train.conllu, ...
    load_corpus("builtin:chunk")
    load_corpus("mine", train="train.conll", test="test.conll", format="conll", column=1)

The splits are the official ones. A corpus may be cut to so many words: whole sentences, drawn at random but
always the same ones.
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

from whichlayers.data.conll import BadCorpus, TaggedCorpus, read_tagged
from whichlayers.errors import WhichlayersError
from whichlayers.rng import permutation
from whichlayers.text import counted

Format = Literal["conll", "conllu", "pmb"]
BUILTIN_SENTENCES = {"train": 2000, "test": 400}


@dataclass(frozen=True)
class CorpusFiles:
    """Where a known corpus lies in a folder, and which of its columns are the tags."""

    folders: tuple[str, ...]  # names that its folder may have
    format: Format
    column: str | int
    train: str
    test: str
    dev: str | None = None


_EWT = ("ud_english_ewt", "UD_English-EWT", "ud-english-ewt")
_EWT_FILES = [f"en_ewt-ud-{part}.conllu" for part in ("train", "test", "dev")]
_PMB_FILES = ("train.conll", "test.conll", "dev.conll")
KNOWN: dict[str, CorpusFiles] = {
    "UD-EWT:xpos": CorpusFiles(_EWT, "conllu", "xpos", *_EWT_FILES),
    "UD-EWT:upos": CorpusFiles(_EWT, "conllu", "upos", *_EWT_FILES),
    "CoNLL-2000:pos": CorpusFiles(("conll2000",), "conll", 1, "train.txt", "test.txt"),
    "CoNLL-2000:chunk": CorpusFiles(("conll2000",), "conll", 2, "train.txt", "test.txt"),
    "PMB:sem": CorpusFiles(("sem_pmb", "pmb"), "pmb", "sem", *_PMB_FILES),
}
BUILTIN = {"builtin:pos": "xpos", "builtin:chunk": "chunk"}


@dataclass(frozen=True)
class Corpus:
    name: str
    train: TaggedCorpus
    test: TaggedCorpus
    dev: TaggedCorpus | None = (
        None  # to choose lambdas by; None: a part of the training sentences is held out
    )
    notes: tuple[str, ...] = ()

    @property
    def splits(self) -> dict[str, TaggedCorpus]:
        """Those that there are."""
        every = {"train": self.train, "test": self.test, "dev": self.dev}
        return {name: split for name, split in every.items() if split is not None}

    @property
    def n_words(self) -> int:
        return sum(split.n_words for split in self.splits.values())

    @property
    def can_choose(self) -> bool:
        """Whether there are sentences to choose lambdas and sets by: of dev, or a part of training's."""
        return self.dev is not None or len(self.train.sentences) > 1

    @cached_property
    def fingerprint(self) -> str:
        """16 hex characters over the words and tags of all splits; not over names or lines."""
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
    """A name that is known needs the folder `source`, a built-in one needs nothing, any other one its files."""
    if name in BUILTIN:
        splits = _builtin(name)
    elif train is None:
        splits = _known(name, source)
    else:
        if test is None or format is None:
            missing = " and ".join(k for k, v in {"test": test, "format": format}.items() if v is None)
            raise WhichlayersError(
                f"corpus {name!r}: {missing} not given; your own files need train, test and format"
            )
        files = {"train": train, "test": test, "dev": dev}
        splits = {part: read_tagged(file, format, column) for part, file in files.items() if file is not None}
    most = {"train": train_words, "dev": test_words, "test": test_words}
    cut = {part: _cut(split, most[part]) for part, split in splits.items()}
    _refuse_one_tag(f"corpus {name!r}" if train is None else str(train), splits["train"], cut["train"])
    return Corpus(name, cut["train"], cut["test"], cut.get("dev"), tuple(_notes(cut)))


def _builtin(name: str) -> dict[str, TaggedCorpus]:
    from whichlayers.data.grammar import write_tagged

    tags: Literal["xpos", "chunk"] = "chunk" if BUILTIN[name] == "chunk" else "xpos"
    return {
        "train": write_tagged(BUILTIN_SENTENCES["train"], "train", tags),
        "test": write_tagged(BUILTIN_SENTENCES["test"], "dev", tags),
    }


def _known(name: str, source: str | Path | None) -> dict[str, TaggedCorpus]:
    if name not in KNOWN:
        raise WhichlayersError(unknown_corpus(name))
    files = KNOWN[name]
    if source is None:
        raise WhichlayersError(
            f"corpus {name}: it is not on the hub; name the folder that holds {files.folders[0]}/: source = ..., "
            "or --data"
        )
    folder = Path(source)
    if not folder.is_dir():
        raise WhichlayersError(f"corpus {name}: source = {str(folder)!r} is not a folder")
    homes = [
        *(folder / inside for inside in files.folders),
        folder,
        *(folder.parent / n for n in files.folders),
    ]
    home = next((home for home in homes if (home / files.train).is_file()), None)
    if home is None:
        raise WhichlayersError(
            f"corpus {name}: {folder} has no {files.folders[0]}/{files.train}; name the folder that holds it"
        )
    if not (home / files.test).is_file():
        raise WhichlayersError(
            f"corpus {name}: {home} has no {files.test} beside {files.train}; put it there"
        )
    parts = {"train": files.train, "test": files.test}
    if files.dev is not None and (home / files.dev).is_file():
        parts["dev"] = files.dev
    return {part: read_tagged(home / file, files.format, files.column) for part, file in parts.items()}


def unknown_corpus(name: str) -> str:
    allowed = [*BUILTIN, *KNOWN]
    near = difflib.get_close_matches(name.lower(), [a.lower() for a in allowed], n=1, cutoff=0.5)
    hint = next((f" (did you mean {a!r}?)" for a in allowed if a.lower() in near), "")
    return (
        f"no corpus is called {name!r}{hint}; allowed are {', '.join(allowed)}, or your own under any name, "
        "with train, test and format"
    )


def _cut(corpus: TaggedCorpus, most: int | None) -> TaggedCorpus:
    """Whole sentences of at most so many words together, in the order of the file."""
    if most is None or corpus.n_words <= most:
        return corpus
    chosen, words = [], 0
    for place in permutation(0, "corpus", len(corpus.sentences)):
        length = len(corpus.sentences[place].words)
        if words + length <= most:
            chosen.append(int(place))
            words += length
        if words == most:
            break
    if not chosen:
        raise WhichlayersError(
            f"corpus {corpus.name}: no sentence has {most} words or fewer; allow more words"
        )
    return dataclasses.replace(corpus, sentences=[corpus.sentences[i] for i in sorted(chosen)])


def _refuse_one_tag(where: str, whole: TaggedCorpus, cut: TaggedCorpus) -> None:
    if len(tags := cut.tag_names) > 1:
        return
    if len(whole.tag_names) > 1:
        raise WhichlayersError(
            f"{where}: all words that train_words leaves have the tag {tags[0]!r}; allow more words"
        )
    raise BadCorpus(f"{where}: every word has the tag {tags[0]!r}; a probe needs two or more to tell apart")


def _notes(splits: dict[str, TaggedCorpus]) -> Iterable[str]:
    unseen = {
        tag: sum(sentence.tags.count(tag) for sentence in splits["test"].sentences)
        for tag in set(splits["test"].tag_names) - set(splits["train"].tag_names)
    }
    if unseen:
        listed = ", ".join(f"{tag} ({n})" for tag, n in sorted(unseen.items(), key=lambda item: -item[1])[:5])
        words, tags = sum(unseen.values()), "a tag" if len(unseen) == 1 else f"one of {len(unseen)} tags"
        has, counts = ("has", "counts") if words == 1 else ("have", "count")
        yield (
            f"{counted(words, 'test word')} {has} {tags} that no training word has, and {counts} as wrong: "
            f"{listed}{', ...' if len(unseen) > 5 else ''}"
        )
