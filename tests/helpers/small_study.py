"""A small study with a randomly initialized BERT and a word-level tokenizer, which trains in seconds."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from whichlayers.data.load_task import load_task

if TYPE_CHECKING:  # it needs pydantic, which machines with a GPU may lack
    from whichlayers.study.study_file import Study

QUICK: dict[str, Any] = {
    "train_sizes": [120],
    "trials": 2,
    "training": {"epochs": 2, "max_length": 32, "lr": 1e-3},
}


def write_model(folder: Path, words: Iterable[str], layers: int = 2) -> Path:
    """Write a model whose vocabulary is `words`, and return its folder."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=16,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    return folder


def small_study(folder: Path, **settings: Any) -> Study:
    """A study of the built-in sentiment task with a model of three layers, which is written into `folder`."""
    words = sorted(
        {word for text in load_task("builtin:sentiment").train.texts for word in text.lower().split()}
    )
    model = write_model(folder / "model", words, layers=3)
    from whichlayers.study.study_file import Study

    return Study(name="small", models=[str(model)], tasks=["builtin:sentiment"], **(QUICK | settings))
