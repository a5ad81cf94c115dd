"""Corpora by name, from folders and from custom files; errors give file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from whichlayers.catalog import BUILTIN_CORPORA, CORPORA, FOLDER_CORPORA
from whichlayers.data.corpora import load_corpus
from whichlayers.data.tasks import BadData
from whichlayers.errors import WhichlayersError

REAL = Path(__file__).parents[3] / "shared" / "data"
WORDS = {"UD-EWT:xpos": (204_577, 25_094, 49), "UD-EWT:upos": (204_577, 25_094, 17)}
WORDS |= {"CoNLL-2000:pos": (211_727, 47_377, 44), "CoNLL-2000:chunk": (211_727, 47_377, 22)}
WORDS |= {"PMB:sem": (50_408, 6_821, 69)}


def own(tmp_path, train, test="a X\nb Y\n", column=1):
    for name, text in (("train", train), ("test", test)):
        (tmp_path / f"{name}.conll").write_text(text)
    return load_corpus(
        "my-corpus",
        train=tmp_path / "train.conll",
        test=tmp_path / "test.conll",
        format="conll",
        column=column,
    )


@pytest.mark.parametrize("name", FOLDER_CORPORA)
def test_the_corpora_of_the_papers_are_read_completely(name):
    if not REAL.is_dir():
        pytest.skip("the corpora are not next to the repository")
    corpus = load_corpus(name, source=REAL)
    assert (corpus.train.n_words, corpus.test.n_words, len(corpus.train.tag_names)) == WORDS[name]
    assert (corpus.dev is None) == name.startswith("CoNLL")
    assert load_corpus(name, source=REAL / "glue").fingerprint == corpus.fingerprint  # next to the GLUE data


@pytest.mark.parametrize("name", BUILTIN_CORPORA)
def test_splits_of_builtin_corpora_share_no_content_words(name):
    corpus = load_corpus(name)
    assert corpus.train.n_words > 10_000
    train = {w for s in corpus.train.sentences for w in s.words}
    test = {w for s in corpus.test.sentences for w in s.words}
    assert len(test - train) > 50
    assert load_corpus(name).fingerprint == corpus.fingerprint
    assert len({load_corpus(n).fingerprint for n in BUILTIN_CORPORA}) == len(BUILTIN_CORPORA)


def test_limiting_words_always_samples_the_same_complete_sentences():
    full, limited = load_corpus("builtin:pos"), load_corpus("builtin:pos", train_words=500, test_words=100)
    assert 480 < limited.train.n_words <= 500
    assert 80 < limited.test.n_words <= 100
    indices = [full.train.sentences.index(s) for s in limited.train.sentences]
    assert indices == sorted(indices)
    assert indices[-1] > 1000  # from the whole file
    assert limited.fingerprint == load_corpus("builtin:pos", train_words=500, test_words=100).fingerprint
    assert limited.fingerprint != full.fingerprint


def test_tags_that_only_occur_in_test_give_a_note(tmp_path):
    corpus = own(tmp_path, "a X\nb Y\n\nc X\n", "a X\nb Z\nc Z\nd W\n")
    assert corpus.notes == (
        "3 test words have one of 2 tags that no training word has, and count as wrong: Z (2), W (1)",
    )


@pytest.mark.parametrize(
    ("test", "message"),
    [
        ("a X\nb Z\n", "1 test word has a tag that no training word has, and counts as wrong: Z (1)"),
        ("a Z\nb Z\n", "2 test words have a tag that no training word has, and count as wrong: Z (2)"),
    ],
)
def test_one_tag_or_word_that_only_occurs_in_test(tmp_path, test, message):
    assert own(tmp_path, "a X\nb Y\n", test).notes == (message,)


def test_a_corpus_of_one_tag_cannot_be_probed(tmp_path):
    with pytest.raises(
        BadData, match=r"train\.conll: every word has the tag 'X'; a probe needs at least two"
    ):
        own(tmp_path, "a X\nb X\n")
    own(tmp_path, "a X\nb Y\n", "a X\n")  # a test set may have one
    files = {"train": tmp_path / "train.conll", "test": tmp_path / "test.conll", "format": "conll"}
    files["train"].write_text("a X\n\nb X\n\nc Y\nd Y\ne Y\n")
    assert load_corpus("my-corpus", **files).has_validation_data
    with pytest.raises(
        WhichlayersError, match=r"train\.conll: with this train_words, every word has the tag 'X'; increase"
    ):
        load_corpus("my-corpus", **files, train_words=2)


def test_has_validation_data(tmp_path):
    assert not own(tmp_path, "a X\nb Y\n").has_validation_data
    assert own(tmp_path, "a X\n\nb Y\n").has_validation_data
    (tmp_path / "train.conll").write_text("a X\nb Y\n")
    files = {part: tmp_path / f"{file}.conll" for part, file in (("train", "train"), ("test", "test"))}
    assert load_corpus("my-corpus", **files, dev=tmp_path / "test.conll", format="conll").has_validation_data


@pytest.mark.parametrize(
    ("train", "column", "message"),
    [
        (
            "a\nb\n",
            -1,
            r"train\.conll:1: only one column: 'a'; expected a word and its tag, separated by whitespace",
        ),
        ("a X\nb Y\n", 0, r"train\.conll:1: column 0 contains the words; set column to that of the tags"),
        ("a X\nb Y\n", -2, r"train\.conll:1: column -2 contains the words"),
        ("a X\nb\n", 1, r"train\.conll:2: 1 column, but the first row has 2"),
        ("a X\nb Y\n", 5, r"train\.conll:1: no column 5"),
        ("", 1, r"train\.conll is empty"),
        ("\n\n\n", 1, r"train\.conll is empty"),
    ],
)
def test_errors_give_file_and_line(tmp_path, train, column, message):
    with pytest.raises(WhichlayersError, match=message):
        own(tmp_path, train, column=column)


def test_empty_lines_are_not_sentences(tmp_path):
    assert len(own(tmp_path, "\n\na X\n\n\n\nb Y\n\n").train.sentences) == 2


def test_missing_folders(tmp_path):
    with pytest.raises(WhichlayersError, match=r"has no conll2000/train\.txt"):
        load_corpus("CoNLL-2000:pos", source=tmp_path)
    with pytest.raises(WhichlayersError, match="to the folder that contains ud_english_ewt"):
        load_corpus("UD-EWT:xpos")


@pytest.mark.parametrize("name", [name for name in FOLDER_CORPORA if CORPORA[name].dev is not None])
def test_the_dev_file_of_a_known_corpus_is_read_if_it_is_there(tmp_path, name):
    files = CORPORA[name]
    folder = tmp_path / files.folders[0]
    folder.mkdir()
    width = 10
    for split, word in ((files.train, "a"), (files.test, "b"), (files.dev, "c")):
        rows = [[str(i), f"{word}{i}", *[f"T{i}"] * (width - 2)] for i in (1, 2)]
        if files.format == "pmb":
            rows = [[f"{word}{i}", *[f"T{i}"] * (width - 1)] for i in (1, 2)]
        (folder / split).write_text("\n".join("\t".join(row) for row in rows) + "\n")
    corpus = load_corpus(name, source=tmp_path)
    assert [s.sentences[0].words for s in (corpus.train, corpus.test, corpus.dev)] == [
        ("a1", "a2"), ("b1", "b2"), ("c1", "c2"),
    ]  # fmt: skip
    with_dev = corpus.fingerprint
    (folder / files.dev).unlink()
    without = load_corpus(name, source=tmp_path)
    assert without.dev is None
    assert without.fingerprint != with_dev
    assert not without.has_validation_data  # one training sentence


def test_the_dev_file_of_own_files_is_validation_data(tmp_path):
    for name, text in (("train", "a X\nb Y\n"), ("test", "c X\n\nd Y\n"), ("dev", "e X\nf Y\n")):
        (tmp_path / name).write_text(text)
    paths = {name: tmp_path / name for name in ("train", "test", "dev")}
    corpus = load_corpus("mine", **paths, format="conll", column=1, test_words=2)
    assert corpus.dev.sentences[0].words == ("e", "f")
    assert corpus.has_validation_data
    assert corpus.n_words == 6


def test_a_limit_may_be_reached_exactly(tmp_path):
    corpus = own(tmp_path, "a X\nb Y\n\nc X\nd Y\n\ne X\nf Y\n")
    assert corpus.train.n_words == 6
    limited = load_corpus(
        "my-corpus",
        train=tmp_path / "train.conll",
        test=tmp_path / "test.conll",
        format="conll",
        train_words=4,
    )
    assert limited.train.n_words == 4
