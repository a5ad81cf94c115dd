"""Small random models of six families, each with a tokenizer of its type trained on a few words."""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Sequence

import numpy as np
import torch
import transformers as tf
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from whichlayers.data.conll import TaggedCorpus, TaggedSentence
from whichlayers.probes.run_word_probes import run_word_probes

WORD_FAMILIES = ("bert", "roberta", "xlnet", "distilbert", "electra", "mpnet")
TEXT = (
    "the cat sat on the mat while the dogs were running home . she does n't know what it 's worth , "
    "although Mr. Smith couldn't have been kinder to us all in 1999 - and the unbelievable rebuilding of "
    "houses went on ; readers read unreadable books quickly , quietly , unhappily ."
)
BERT_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROBERTA_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
XLNET_SPECIAL = ["<unk>", "<s>", "</s>", "<cls>", "<sep>", "<pad>", "<mask>", "<eod>", "<eop>"]


def word_tokenizer_of(family: str, prefix_space: bool = False):
    """The tokenizer of a family; `prefix_space` is RoBERTa's add_prefix_space."""
    if family == "roberta":
        vocabulary, merges = _byte_level_bpe()
        return tf.RobertaTokenizer(vocab=vocabulary, merges=merges, add_prefix_space=prefix_space)
    if family == "xlnet":
        return tf.XLNetTokenizer(vocab=_unigram(), unk_id=0)
    if family == "mpnet":
        special = ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")
        return tf.MPNetTokenizer(vocab=_wordpiece(special))
    kind = {"bert": tf.BertTokenizer, "distilbert": tf.DistilBertTokenizer, "electra": tf.ElectraTokenizer}
    return kind[family](vocab=_wordpiece(BERT_SPECIAL))


def word_encoder_of(family: str, depth: int = 2, positions: int = 64):
    """A random encoder with no parameter at its initial value, and dropout enabled in its config."""
    size = {
        "vocab_size": len(word_tokenizer_of(family)),
        "pad_token_id": word_tokenizer_of(family).pad_token_id,
    }
    usual = size | {
        "hidden_size": 16,
        "num_hidden_layers": depth,
        "num_attention_heads": 2,
        "intermediate_size": 24,
        "max_position_embeddings": positions + (size["pad_token_id"] + 1) * (family in ("roberta", "mpnet")),
    }
    configs = {
        "bert": lambda: tf.BertConfig(**usual),
        "roberta": lambda: tf.RobertaConfig(**usual, type_vocab_size=1),
        "electra": lambda: tf.ElectraConfig(**usual, embedding_size=8),
        "mpnet": lambda: tf.MPNetConfig(**usual),
        "distilbert": lambda: tf.DistilBertConfig(
            **size, dim=16, n_layers=depth, n_heads=2, hidden_dim=24, max_position_embeddings=positions
        ),
        "xlnet": lambda: tf.XLNetConfig(**size, d_model=16, n_layer=depth, n_head=2, d_inner=24),
    }
    with torch.random.fork_rng():
        torch.manual_seed(4)
        model = tf.AutoModel.from_config(configs[family](), attn_implementation="eager").float()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model.eval()


def corpus_of(*sentences: str | Sequence[str], name: str = "made-up") -> TaggedCorpus:
    """A corpus of sentences given as lists or separated by spaces, with alternating tags X and Y."""
    tagged, line = [], 1
    for sentence in sentences:
        words = tuple(sentence.split(" ")) if isinstance(sentence, str) else tuple(sentence)
        tags = tuple("XY"[i % 2] for i in range(len(words)))
        tagged.append(TaggedSentence(words, tags, line))
        line += len(words) + 1
    return TaggedCorpus(name, tagged)


def one_sentence_at_a_time(encoder, tokenizer, corpus, pooling):
    """Hidden states (words, depth + 1, H) from transformers alone, without batches or padding."""
    rows = []
    for sentence in corpus.sentences:
        encoded = tokenizer(list(sentence.words), is_split_into_words=True, return_tensors="pt")
        word_ids = encoded.word_ids(0)
        with torch.no_grad():
            hidden = encoder(**encoded, output_hidden_states=True).hidden_states
        for w in range(len(sentence.words)):
            positions = [p for p, word in enumerate(word_ids) if word == w]
            pick = {"last": positions[-1:], "first": positions[:1], "mean": positions}[pooling]
            rows.append(torch.stack([h[0, pick].mean(0) for h in hidden]))
    return torch.stack(rows).numpy()


@functools.cache
def _wordpiece(special: tuple[str, ...]) -> dict[str, int]:
    """Letters, short words and a few common affixes. Not trained: the trainer breaks ties at random."""
    words = set(re.findall(r"[a-z]+|[^a-z ]", TEXT.lower()))
    short = {word for word in words if len(word) <= 4}
    letters = sorted(set("".join(words)))
    parts = ["un", "read", "##ing", "##ly", "##able", "##er", "##s"]
    pieces = [
        *special,
        *letters,
        *(f"##{letter}" for letter in letters),
        *parts,
        *sorted(short - set(letters)),
    ]
    return {piece: i for i, piece in enumerate(dict.fromkeys(pieces))}


@functools.cache
def _byte_level_bpe() -> tuple[dict[str, int], list[tuple[str, ...]]]:
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=330,
        special_tokens=ROBERTA_SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([TEXT], trainer)
    return inner.get_vocab(), [tuple(pair) for pair in json.loads(inner.to_str())["model"]["merges"]]


@functools.cache
def _unigram() -> list[tuple[str, float]]:
    inner = Tokenizer(models.Unigram())
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=90, special_tokens=XLNET_SPECIAL, unk_token="<unk>", show_progress=False
    )
    inner.train_from_iterator([TEXT] * 3, trainer)
    learned = json.loads(inner.to_str())["model"]["vocab"]  # order and last digits differ between runs
    special, other = learned[: len(XLNET_SPECIAL)], learned[len(XLNET_SPECIAL) :]
    return [(piece, round(score, 3)) for piece, score in [*special, *sorted(other)]]


def random_words(n: int, seed: int) -> TaggedCorpus:
    """A corpus of about n words from the training text of the tokenizers, in sentences of 1 to 20."""
    rng = np.random.default_rng(seed)
    vocabulary, sentences = TEXT.split(), []
    while n > 0:
        size = int(rng.integers(1, 21))
        sentences.append([vocabulary[i] for i in rng.integers(0, len(vocabulary), size)])
        n -= size
    return corpus_of(*sentences)


def word_probe_results(trials, *model, **options):
    """The results of `run_word_probes`, in the order of the trials."""
    results = {
        result.trial_id: result for some in run_word_probes(trials, *model, **options) for result in some
    }
    assert results.keys() == {trial.id for trial in trials}
    return [results[trial.id] for trial in trials]
