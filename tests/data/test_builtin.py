"""The built-in tasks and corpora: labels, tags and fingerprints; simple heuristics do not solve the tasks."""

import collections
import itertools

import numpy as np
import pytest

from whichlayers.catalog import BUILTIN, BUILTIN_CORPORA, BUILTIN_TASKS
from whichlayers.data.corpora import load_corpus
from whichlayers.data.load_task import BUILTIN_FOLDER, load_task

TASKS = [name.removeprefix(BUILTIN) for name in BUILTIN_TASKS]
FUNCTION = """
the a an this these that those every no each both all another in on at near with of from about behind because
although though after out to but and not really quite never ever truly simply too so far many first i we he she
it they him her them us me himself herself themselves who what where when why will can is has are have was were
had did color material start finish thought part complete nothing nobody one seemed end expected something people
call which much country size
"""
FUNCTION_WORDS = set(FUNCTION.split())
FIRST = {
    "acceptability": "The guards bitterly trembled in the hotel.",
    "sentiment": "Although the chapter was forgettable, the theme was witty.",
    "question-answer": "What drink did Ruth draw?",
}
FINGERPRINTS = {
    "acceptability": "c83b94d67722d278",
    "sentiment": "cb9e0225c27efcdc",
    "question-answer": "f226775a5f0f236f",
    "builtin:pos": "12f4913f1aa08f00",
    "builtin:chunk": "67c514b278de858f",
}


@pytest.fixture(scope="module")
def tasks():
    return {name: load_task(f"builtin:{name}") for name in TASKS}


@pytest.fixture(scope="module")
def corpora():
    return {name: load_corpus(name).splits for name in BUILTIN_CORPORA}


def examples(split):
    return list(zip(split.texts, split.pairs or itertools.repeat(""), strict=False))


def words_of(example) -> list[str]:
    return " ".join(example).replace(".", " ").replace(",", " ").replace("?", " ").lower().split()


def test_splits_share_no_content_word(tasks, corpora):
    """Not even across tasks: a content word of any training split is in no dev or test split."""
    train, dev = (
        {word for split in splits for example in examples(split) for word in words_of(example)}
        for splits in ([t.train for t in tasks.values()], [t.evals[""] for t in tasks.values()])
    )
    train_tagged, test_tagged = (
        {word.lower() for corpus in corpora.values() for s in corpus[part].sentences for word in s.words}
        for part in ("train", "test")
    )
    assert (train | train_tagged) & (dev | test_tagged) <= FUNCTION_WORDS | {",", ".", "?"}
    assert len((train | dev) - FUNCTION_WORDS) > 800


@pytest.mark.parametrize("name", TASKS)
def test_texts_share_only_function_words(name, tasks):
    train, dev = (
        {word for example in examples(split) for word in words_of(example)}
        for split in (tasks[name].train, tasks[name].evals[""])
    )
    assert train & dev <= FUNCTION_WORDS
    assert len(train) > 150


@pytest.mark.parametrize("name", TASKS)
def test_labels_are_balanced_and_examples_are_unique(name, tasks):
    task = tasks[name]
    assert (len(task.train), len(task.evals[""])) == (2000, 400)
    seen = examples(task.train) + examples(task.evals[""])
    assert len(set(seen)) == len(seen)
    for split in (task.train, task.evals[""]):
        assert np.bincount(split.labels).tolist() == [len(split) // 2] * 2
        assert abs(split.labels[: len(split) // 2].mean() - 0.5) < 0.1  # shuffled, not in blocks


def test_labels_and_metrics_of_the_tasks(tasks):
    assert {name: (task.name, task.label_names, task.metrics) for name, task in tasks.items()} == {
        "acceptability": ("acceptability", ("unacceptable", "acceptable"), ("accuracy", "mcc")),
        "sentiment": ("sentiment", ("negative", "positive"), ("accuracy",)),
        "question-answer": ("question-answer", ("entailment", "not_entailment"), ("accuracy",)),
    }
    for task in tasks.values():
        assert (task.kind, task.metric, task.notes, list(task.evals)) == (
            "classification",
            "accuracy",
            (),
            [""],
        )
        for split in (task.train, task.evals[""]):
            assert split.labels.dtype == np.int64
            assert (split.pairs is not None) == (task.name == "question-answer")


def test_fingerprints_do_not_change(tasks):
    """Trial ids contain the fingerprint of their data, so stored results stay valid only if these stay."""
    found = {name: task.fingerprint for name, task in tasks.items()}
    found |= {name: load_corpus(name).fingerprint for name in BUILTIN_CORPORA}
    assert found == FINGERPRINTS


def test_fingerprints_of_limited_corpora_do_not_change():
    assert load_corpus("builtin:pos", train_words=3000).fingerprint == "fad4a0610dc9e9fe"
    assert load_corpus("builtin:chunk", train_words=500, test_words=200).fingerprint == "c7d20c9c5f40d260"


@pytest.mark.parametrize("name", TASKS)
def test_first_sentences_do_not_change(name, tasks):
    assert tasks[name].train.texts[0] == FIRST[name]


def test_every_file_is_used_and_all_are_small():
    files = [path for path in BUILTIN_FOLDER.iterdir() if path.is_file()]
    names = {f"{name}-{part}.tsv" for name in TASKS for part in ("train", "dev")}
    assert {path.name for path in files} == names | {"tagged-train.conll", "tagged-dev.conll"}
    assert sum(path.stat().st_size for path in files) < 700_000


def test_a_loaded_task_is_not_shared():
    """Changing a loaded task does not change the next one."""
    load_task("builtin:sentiment").train.texts[0] = "changed"
    assert load_task("builtin:sentiment").train.texts[0] == FIRST["sentiment"]


def bag_of_words_accuracy(task, only: set[str] | None) -> float:
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression

    def tokens(example):
        return [word for word in words_of(example) if only is None or word in only]

    bag = CountVectorizer(analyzer=tokens, ngram_range=(1, 1), min_df=2)
    train, dev = bag.fit_transform(examples(task.train)), bag.transform(examples(task.evals[""]))
    model = LogisticRegression(max_iter=2000).fit(train, task.train.labels)
    return model.score(dev, task.evals[""].labels)


@pytest.mark.parametrize("only", [None, FUNCTION_WORDS], ids=["all words", "function words"])
@pytest.mark.parametrize("name", TASKS)
def test_a_bag_of_words_does_not_solve_it(name, only, tasks):
    assert bag_of_words_accuracy(tasks[name], only) < 0.6


def test_the_bag_of_words_check_can_fail():
    """A label that can be predicted from one word is detected."""
    leaking = load_task("builtin:sentiment")
    for split in (leaking.train, leaking.evals[""]):
        split.texts[:] = [t + " very" * int(y) for t, y in zip(split.texts, split.labels, strict=True)]
    assert bag_of_words_accuracy(leaking, None) > 0.9


@pytest.mark.parametrize("name", TASKS)
def test_length_and_overlap_do_not_solve_it(name, tasks):
    from sklearn.tree import DecisionTreeClassifier

    def features(split):
        return [
            (
                len(words_of((a,))),
                len(words_of((b,))),
                len(a),
                len(b),
                len(set(words_of((a,))) & set(words_of((b,)))),
            )
            for a, b in examples(split)
        ]

    task = tasks[name]
    tree = DecisionTreeClassifier(max_depth=4, random_state=0).fit(features(task.train), task.train.labels)
    assert tree.score(features(task.evals[""]), task.evals[""].labels) < 0.6


@pytest.mark.parametrize(("name", "n_tags"), [("builtin:pos", 23), ("builtin:chunk", 12)])
def test_tagged_sentences(name, n_tags, corpora):
    train, test = corpora[name]["train"], corpora[name]["test"]
    assert (len(train.sentences), len(test.sentences)) == (2000, 400)
    assert (train.n_words, test.n_words) == (15_053, 3_111)
    assert set(test.tag_names) <= set(train.tag_names)
    assert len(train.tag_names) == n_tags
    assert len({s.words for s in train.sentences + test.sentences}) == 2400
    for split in (train, test):
        lines = itertools.accumulate((len(s.words) + 1 for s in split.sentences), initial=1)
        assert [s.number for s in split.sentences] == list(lines)[:-1]
        assert all(len(s.words) == len(s.tags) and all(s.words) and all(s.tags) for s in split.sentences)


def test_both_corpora_have_the_same_sentences(corpora):
    for part in ("train", "test"):
        pos, chunk = (corpora[name][part].sentences for name in ("builtin:pos", "builtin:chunk"))
        assert [s.words for s in pos] == [s.words for s in chunk]


def test_chunks_are_valid_bio_tags(corpora):
    for split in corpora["builtin:chunk"].values():
        for sentence in split.sentences:
            for before, tag in itertools.pairwise(("O", *sentence.tags)):
                assert not tag.startswith("I-") or before[2:] == tag[2:]


def test_subjects_and_verbs_of_tagged_sentences_agree(corpora):
    """A singular subject at the start of a sentence has a verb with -s, a plural one a verb without."""
    checked = 0
    for part in ("train", "test"):
        pos, chunk = (corpora[name][part].sentences for name in ("builtin:pos", "builtin:chunk"))
        for tagged, chunked in zip(pos, chunk, strict=True):
            verb = next((i for i, tag in enumerate(chunked.tags) if tag == "B-VP"), None)
            subject = list(itertools.takewhile(lambda tag: tag != "B-VP", chunked.tags))
            if verb is None or set(subject) - {"B-NP", "I-NP", "B-PP"} or "," in tagged.tags[:verb]:
                continue
            head = next((tag for tag in tagged.tags[:verb] if tag in ("NN", "NNS", "NNP", "PRP")), None)
            form, finite = tagged.words[verb], tagged.tags[verb]
            if head not in ("NN", "NNS") or (finite not in ("VBZ", "VBP") and form not in ("was", "were")):
                continue
            plural = finite == "VBP" or form == "were"
            assert plural == (head == "NNS"), " ".join(tagged.words)
            checked += 1
    assert checked > 300


def test_closed_classes_have_few_words_and_open_ones_many(corpora):
    by_tag = collections.defaultdict(set)
    for sentence in corpora["builtin:pos"]["train"].sentences:
        for word, tag in zip(sentence.words, sentence.tags, strict=True):
            by_tag[tag].add(word.lower())
    assert all(len(by_tag[tag]) < 25 for tag in ("DT", "IN", "PRP", "CC", "MD", "TO", "WDT", "WP", "WRB"))
    assert all(len(by_tag[tag]) > 80 for tag in ("NN", "VBD", "JJ"))
