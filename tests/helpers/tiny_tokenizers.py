"""Tiny real tokenizers of the kinds that decoders have, trained on a few sentences."""

from __future__ import annotations

import json

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

TEXTS = [
    "The old man doesn't know what the 1990s were like, she said.",
    "In 2023, 4567 people visited the city; they'd never seen it before!",
    "Café owners (and the neighbours) weren't amused - not at all.",
    "This is a much better film than the one I have seen in the city.",
    "where there is a will there is a way, the old people said",
] * 4
# as in tokenizers of GPT-4 and Llama 3: contractions, words with one leading character, digits in groups of three
TIKTOKEN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
KINDS = ("byte-level", "tiktoken-like", "digits", "sentencepiece", "metaspace", "gemma-like")


def tiny_tokenizer(kind: str, bos: bool = False, pad: bool = False) -> PreTrainedTokenizerFast:
    """A trained tokenizer: byte-level BPE (GPT-2, Llama 3, SmolLM2) or SentencePiece BPE (Llama 2, Mistral, Gemma)."""
    byte_level = kind in ("byte-level", "tiktoken-like", "digits")
    tokenizer = Tokenizer(models.BPE(unk_token=None if byte_level else "<unk>", fuse_unk=not byte_level))
    special = ["<unk>", "<s>", "</s>", "<pad>"]
    level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if kind == "byte-level":
        tokenizer.pre_tokenizer = level
    elif kind == "tiktoken-like":
        split = pre_tokenizers.Split(Regex(TIKTOKEN), "isolated")
        raw = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, raw])
    elif kind == "digits":
        digits = pre_tokenizers.Digits(individual_digits=True)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, level])
    elif kind == "sentencepiece":
        parts = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
        tokenizer.normalizer = normalizers.Sequence(parts)
    elif kind == "metaspace":
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    else:
        tokenizer.normalizer = normalizers.Replace(" ", "▁")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    if byte_level:
        alphabet = pre_tokenizers.ByteLevel.alphabet()
        trainer = trainers.BpeTrainer(
            vocab_size=420, special_tokens=special, initial_alphabet=alphabet, show_progress=False
        )
        tokenizer.train_from_iterator(TEXTS, trainer)
        tokenizer.decoder = decoders.ByteLevel()
    else:  # words are separated for training only
        whole = (tokenizer.normalizer, tokenizer.pre_tokenizer)
        tokenizer.normalizer, tokenizer.pre_tokenizer = None, pre_tokenizers.Metaspace()
        trainer = trainers.BpeTrainer(vocab_size=200, special_tokens=special, show_progress=False)
        tokenizer.train_from_iterator(TEXTS, trainer)
        if whole[0] is not None:
            tokenizer.normalizer = whole[0]
        rules = json.loads(tokenizer.to_str())
        tokenizer = Tokenizer.from_str(json.dumps(rules | {"pre_tokenizer": None}))
        if whole[1] is not None:
            tokenizer.pre_tokenizer = whole[1]
    if bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token=None if byte_level else "<unk>",
        bos_token="<s>",
        eos_token="</s>",
        pad_token="<pad>" if pad else None,
        model_input_names=["input_ids", "attention_mask"],
    )
