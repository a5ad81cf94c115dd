"""Corpora by name, from folders, from files of one's own; what is wrong with them is told with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from whichlayers.data.conll import BadCorpus
from whichlayers.data.corpora import BUILTIN, KNOWN, load_corpus
from whichlayers.errors import WhichlayersError

REAL = Path(__file__).parents[3] / "shared" / "data"
WORDS = {"UD-EWT:xpos": (204_577, 25_094, 49), "UD-EWT:upos": (204_577, 25_094, 17)}
WORDS |= {"CoNLL-2000:pos": (211_727, 47_377, 44), "CoNLL-2000:chunk": (211_727, 47_377, 22)}
WORDS |= {"PMB:sem": (50_408, 6_821, 69)}


def own(tmp_path, train, test="a X\nb Y\n", column=1):
    for name, text in (("train", train), ("test", test)):
        (tmp_path / f"{name}.conll").write_text(text)
    return load_corpus(
        "mine", train=tmp_path / "train.conll", test=tmp_path / "test.conll", format="conll", column=column
    )


@pytest.mark.parametrize("name", KNOWN)
def test_the_papers_corpora_are_read_whole(name):
    if not REAL.is_dir():
        pytest.skip("the corpora are not here")
    corpus = load_corpus(name, source=REAL)
    assert (corpus.train.n_words, corpus.test.n_words, len(corpus.train.tag_names)) == WORDS[name]
    assert (corpus.dev is None) == name.startswith("CoNLL")
    assert load_corpus(name, source=REAL / "glue").fingerprint == corpus.fingerprint  # beside the GLUE data


@pytest.mark.parametrize("name", BUILTIN)
def test_built_in_ones_share_no_content_words_between_splits(name):
    corpus = load_corpus(name)
    assert corpus.train.n_words > 10_000
    train = {w for s in corpus.train.sentences for w in s.words}
    test = {w for s in corpus.test.sentences for w in s.words}
    assert len(test - train) > 50
    assert load_corpus(name).fingerprint == corpus.fingerprint
    assert len({load_corpus(n).fingerprint for n in BUILTIN}) == len(BUILTIN)


def test_a_cut_takes_whole_sentences_always_the_same_ones():
    whole, cut = load_corpus("builtin:pos"), load_corpus("builtin:pos", train_words=500, test_words=100)
    assert 480 < cut.train.n_words <= 500
    assert 80 < cut.test.n_words <= 100
    places = [whole.train.sentences.index(s) for s in cut.train.sentences]
    assert places == sorted(places)
    assert places[-1] > 1000  # from all over the file
    assert cut.fingerprint == load_corpus("builtin:pos", train_words=500, test_words=100).fingerprint
    assert cut.fingerprint != whole.fingerprint


def test_tags_that_training_never_saw_are_told_of(tmp_path):
    corpus = own(tmp_path, "a X\nb Y\n\nc X\n", "a X\nb Z\nc Z\nd W\n")
    assert corpus.notes == (
        "3 test words have one of 2 tags that no training word has, and count as wrong: Z (2), W (1)",
    )


@pytest.mark.parametrize(
    ("test", "said"),
    [
        ("a X\nb Z\n", "1 test word has a tag that no training word has, and counts as wrong: Z (1)"),
        ("a Z\nb Z\n", "2 test words have a tag that no training word has, and count as wrong: Z (2)"),
    ],
)
def test_one_tag_or_word_that_training_never_saw(tmp_path, test, said):
    assert own(tmp_path, "a X\nb Y\n", test).notes == (said,)


def test_a_corpus_of_one_tag_cannot_be_probed(tmp_path):
    with pytest.raises(BadCorpus, match=r"train\.conll: every word has the tag 'X'; a probe needs two"):
        own(tmp_path, "a X\nb X\n")
    own(tmp_path, "a X\nb Y\n", "a X\n")  # a test set may have one
    files = {"train": tmp_path / "train.conll", "test": tmp_path / "test.conll", "format": "conll"}
    files["train"].write_text("a X\n\nb X\n\nc Y\nd Y\ne Y\n")
    assert load_corpus("mine", **files).can_choose
    with pytest.raises(
        WhichlayersError, match=r"train\.conll: all words that train_words leaves have the tag 'X'"
    ):
        load_corpus("mine", **files, train_words=2)


def test_whether_there_are_sentences_to_choose_by(tmp_path):
    assert not own(tmp_path, "a X\nb Y\n").can_choose
    assert own(tmp_path, "a X\n\nb Y\n").can_choose
    (tmp_path / "train.conll").write_text("a X\nb Y\n")
    files = {part: tmp_path / f"{file}.conll" for part, file in (("train", "train"), ("test", "test"))}
    assert load_corpus("mine", **files, dev=tmp_path / "test.conll", format="conll").can_choose


@pytest.mark.parametrize(
    ("train", "column", "said"),
    [
        (
            "a\nb\n",
            -1,
            r"train\.conll:1: one column: 'a'; a word and its tag are needed, white space between",
        ),
        ("a X\nb Y\n", 0, r"train\.conll:1: column 0 holds the words; give the column of their tags"),
        ("a X\nb Y\n", -2, r"train\.conll:1: column -2 holds the words"),
        ("a X\nb Y\n", "upos", r"train\.conll: column 'upos': the columns of a conll file are numbered"),
        ("a X\nb\n", 1, r"train\.conll:2: 1 column where the first row has 2"),
        ("a X\nb Y\n", 5, r"train\.conll:1: there is no column 5"),
        ("", 1, r"train\.conll: the file is empty"),
        ("\n\n\n", 1, r"train\.conll: the file is empty"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_line(tmp_path, train, column, said):
    with pytest.raises(WhichlayersError, match=said):
        own(tmp_path, train, column=column)


def test_empty_lines_are_no_sentences(tmp_path):
    assert len(own(tmp_path, "\n\na X\n\n\n\nb Y\n\n").train.sentences) == 2


def test_names_and_folders_that_are_not_there(tmp_path):
    with pytest.raises(WhichlayersError, match="did you mean 'PMB:sem'"):
        load_corpus("PMB:sam", source=tmp_path)
    with pytest.raises(WhichlayersError, match=r"has no conll2000/train\.txt"):
        load_corpus("CoNLL-2000:pos", source=tmp_path)
    with pytest.raises(WhichlayersError, match="name the folder that holds ud_english_ewt"):
        load_corpus("UD-EWT:xpos")
    with pytest.raises(WhichlayersError, match="test and format not given"):
        load_corpus("mine", train="x")
