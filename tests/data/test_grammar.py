"""The built-in grammar: its promises about words, labels and tags; no cheap trick solves its tasks."""

import collections
import itertools

import numpy as np
import pytest

from whichlayers.data.grammar import BUILTIN, MOST_ROWS, write_tagged, write_task
from whichlayers.data.grammar.phrases import FUNCTION, Speaker, read, text
from whichlayers.data.grammar.words import Noun, Quality, Verb, article, lexicon_of, noun, verb
from whichlayers.errors import WhichlayersError

FEW = {  # small words of the templates that FUNCTION does not list because their tag stands in the template
    "start", "finish", "thought", "part", "complete", "nothing", "nobody", "one", "seemed", "end", "expected",
    "something", "people", "call", "which", "much", "country", "size",
}  # fmt: skip


@pytest.fixture(scope="module")
def tasks():
    return {name: write_task(name) for name in BUILTIN}


def examples(split):
    return list(zip(split.texts, split.pairs or itertools.repeat(""), strict=False))


def word_probe_of(example) -> list[str]:
    return " ".join(example).replace(".", " ").replace(",", " ").replace("?", " ").lower().split()


def forms(value) -> set[str]:
    """All written forms of a lexicon entry."""
    if isinstance(value, tuple):
        return set().union(*map(forms, value))
    if isinstance(value, Noun):
        found = [value.lemma, value.many]
    elif isinstance(value, Verb):
        found = [value.lemma, value.was, value.been, value.going, value.goes]
    elif isinstance(value, Quality):
        found = [value.lemma, value.manner]
    else:
        found = [piece.split("/")[0] for piece in value.split() if not piece.endswith("/DT")]
    return {form.lower() for form in found if form}


def all_forms(side) -> set[str]:
    return set().union(*(forms(value) for value in vars(lexicon_of(side)).values()))


def test_splits_share_no_content_word():
    train, dev = all_forms("train"), all_forms("dev")
    assert train & dev == set()
    assert len(train | dev) > 800


def test_every_class_has_words_on_both_sides():
    for side in ("train", "dev"):
        for name, entries in vars(lexicon_of(side)).items():
            assert len(entries) >= 2, (side, name)


@pytest.mark.parametrize("name", BUILTIN)
def test_texts_share_small_words_only(name, tasks):
    train, dev = (
        {word for example in examples(split) for word in word_probe_of(example)}
        for split in (tasks[name].train, tasks[name].evals[""])
    )
    assert train & dev <= set(FUNCTION) | FEW
    assert len(train) > 150


@pytest.mark.parametrize("name", BUILTIN)
def test_labels_are_balanced_and_nothing_comes_twice(name, tasks):
    task = tasks[name]
    assert (len(task.train), len(task.evals[""])) == (2000, 400)
    seen = examples(task.train) + examples(task.evals[""])
    assert len(set(seen)) == len(seen)
    for split in (task.train, task.evals[""]):
        assert np.bincount(split.labels).tolist() == [len(split) // 2] * 2
        assert abs(split.labels[: len(split) // 2].mean() - 0.5) < 0.1  # shuffled, not in blocks


def test_the_same_call_writes_the_same_task(tasks):
    for name, task in tasks.items():
        assert write_task(name).fingerprint == task.fingerprint
    assert len({task.fingerprint for task in tasks.values()}) == 3


@pytest.mark.parametrize("name", BUILTIN)
def test_first_sentences_stay_what_they_were(name, tasks):
    """Results name a task by its fingerprint: change the grammar on purpose, and then change these too."""
    assert tasks[name].train.texts[0] == FIRST[name]


@pytest.mark.parametrize("name", BUILTIN)
def test_up_to_the_limit_and_an_odd_number(name):
    task = write_task(name, train_rows=MOST_ROWS["train"], dev_rows=401)
    assert len(set(examples(task.train))) == MOST_ROWS["train"]
    assert sorted(np.bincount(task.evals[""].labels)) == [200, 201]


@pytest.mark.parametrize("rows", [0, -3, MOST_ROWS["train"] + 1])
def test_rows_beyond_the_limit(rows):
    with pytest.raises(WhichlayersError, match=f"{rows} train rows.*1 to {MOST_ROWS['train']}"):
        write_task("sentiment", train_rows=rows)


def test_unknown_names():
    with pytest.raises(
        WhichlayersError, match=r"'colour' does not exist.*acceptability, sentiment, question-answer"
    ):
        write_task("colour")
    with pytest.raises(WhichlayersError, match=r"tags 'pos'.*upos, xpos, chunk"):
        write_tagged(3, "train", "pos")
    with pytest.raises(WhichlayersError, match=r"split 'test'.*train, dev"):
        write_tagged(3, "test")


def bag_of_words_accuracy(task, only: set[str] | None) -> float:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    def tokens(example):
        return [word for word in word_probe_of(example) if only is None or word in only]

    bag = CountVectorizer(analyzer=tokens, ngram_range=(1, 1), min_df=2)
    train, dev = bag.fit_transform(examples(task.train)), bag.transform(examples(task.evals[""]))
    model = LogisticRegression(max_iter=2000).fit(train, task.train.labels)
    return model.score(dev, task.evals[""].labels)


@pytest.mark.parametrize("only", [None, set(FUNCTION) | FEW], ids=["all words", "function words"])
@pytest.mark.parametrize("name", BUILTIN)
def test_a_bag_of_words_does_not_solve_it(name, only, tasks):
    assert bag_of_words_accuracy(tasks[name], only) < 0.6


def test_the_bag_of_words_check_can_fail(tasks):
    """A task given away by one small word is found out."""
    leaking = write_task("sentiment", 400, 100)
    for split in (leaking.train, leaking.evals[""]):
        split.texts[:] = [t + " very" * int(y) for t, y in zip(split.texts, split.labels, strict=True)]
    assert bag_of_words_accuracy(leaking, None) > 0.9


@pytest.mark.parametrize("name", BUILTIN)
def test_length_and_overlap_do_not_solve_it(name, tasks):
    from sklearn.tree import DecisionTreeClassifier

    def features(split):
        return [
            (
                len(word_probe_of((a,))),
                len(word_probe_of((b,))),
                len(a),
                len(b),
                len(set(word_probe_of((a,))) & set(word_probe_of((b,)))),
            )
            for a, b in examples(split)
        ]

    task = tasks[name]
    tree = DecisionTreeClassifier(max_depth=4, random_state=0).fit(features(task.train), task.train.labels)
    assert tree.score(features(task.evals[""]), task.evals[""].labels) < 0.6


def test_acceptability_pairs_have_a_right_and_a_wrong_one():
    from whichlayers.data.grammar import acceptability

    speaker = Speaker("train", "test")
    for construction in acceptability.CONSTRUCTIONS:
        for _ in range(200):
            right, wrong = map(text, construction(speaker))
            assert right != wrong, construction.__name__


def test_agreement_is_right_in_the_acceptable_one_and_wrong_in_the_other():
    """A slow look at subject and verb: singular with -s, plural without."""
    from whichlayers.data.grammar import acceptability

    def agrees(template: str) -> bool:
        tagged = read(template)
        head = next(word for word in tagged if word.xpos in ("NN", "NNS"))
        finite = next(word for word in tagged if word.chunk == "B-VP")
        if finite.form in ("was", "were"):
            return (finite.form == "was") == (head.xpos == "NN")
        return finite.xpos == {"NN": "VBZ", "NNS": "VBP"}[head.xpos]

    speaker = Speaker("train", "agreement")
    for construction in (acceptability.agreement, acceptability.agreement_across):
        for _ in range(300):
            right, wrong = construction(speaker)
            assert agrees(right), text(right)
            assert not agrees(wrong), text(wrong)


def test_word_forms():
    assert (noun("city").many, noun("box").many, noun("boy").many, noun("child:children").many) == (
        *("cities", "boxes", "boys", "children"),
    )
    assert verb("hug*") == Verb("hug", "hugged", "hugged", "hugging", "hugs")
    assert verb("cry") == Verb("cry", "cried", "cried", "crying", "cries")
    assert verb("die") == Verb("die", "died", "died", "dying", "dies")
    assert verb("steal:stole:stolen") == Verb("steal", "stole", "stolen", "stealing", "steals")
    assert verb("bring:brought") == Verb("bring", "brought", "brought", "bringing", "brings")
    assert [article(w) for w in ("egg/NN", "university/NN", "horse/NN")] == ["an/DT", "a/DT", "a/DT"]


def test_template_to_words():
    words = read("[NP the old/JJ dog/NN] [VP was not sleeping/VBG] [PP near] [NP Rome/NNP] .")
    assert [w.form for w in words] == ["The", "old", "dog", "was", "not", "sleeping", "near", "Rome", "."]
    assert [w.xpos for w in words] == ["DT", "JJ", "NN", "VBD", "RB", "VBG", "IN", "NNP", "."]
    assert [w.upos for w in words] == ["DET", "ADJ", "NOUN", "AUX", "PART", "VERB", "ADP", "PROPN", "PUNCT"]
    assert [w.chunk for w in words] == ["B-NP", "I-NP", "I-NP", "B-VP", "I-VP", "I-VP", "B-PP", "B-NP", "O"]
    assert text("[NP i] [VP smiled/VBD] , but [NP she] [VP did] .") == "I smiled, but she did."


@pytest.mark.parametrize("tags", ["upos", "xpos", "chunk"])
def test_tagged_text(tags):
    train, dev = write_tagged(300, "train", tags), write_tagged(100, "dev", tags)
    assert (len(train.sentences), len(dev.sentences)) == (300, 100)
    assert set(dev.tag_names) <= set(train.tag_names)
    assert len(train.tag_names) >= {"upos": 12, "xpos": 20, "chunk": 10}[tags]
    assert write_tagged(300, "train", tags) == train
    sentences = [s.words for s in train.sentences + dev.sentences]
    assert len(set(sentences)) == 400
    if tags == "chunk":
        for sentence in train.sentences:
            for before, tag in itertools.pairwise(("O", *sentence.tags)):
                assert not tag.startswith("I-") or before[2:] == tag[2:]


def test_closed_classes_have_few_words_and_open_ones_many():
    by_tag = collections.defaultdict(set)
    for sentence in write_tagged(1000, "train", "upos").sentences:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            by_tag[tag].add(word.lower())
    assert all(len(by_tag[tag]) < 25 for tag in ("DET", "AUX", "ADP", "PRON", "CCONJ"))
    assert all(len(by_tag[tag]) > 80 for tag in ("NOUN", "VERB", "ADJ"))


FIRST = {
    "acceptability": "The guards bitterly trembled in the hotel.",
    "sentiment": "Although the chapter was forgettable, the theme was witty.",
    "question-answer": "What drink did Ruth draw?",
}
