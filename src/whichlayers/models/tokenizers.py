"""Load the tokenizers of pretrained and of saved models."""

from __future__ import annotations

import copy
import json
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedTokenizerFast

from whichlayers.errors import WhichlayersError
from whichlayers.models.find import TOKENIZER_FILES, ModelFiles
from whichlayers.models.quiet import quiet_transformers


def load_tokenizer(files: ModelFiles, bos: bool | None = None) -> PreTrainedTokenizerFast:
    """The model's fast tokenizer, set to pad on the right (XLNet's default is left).

    Args:
        files: The files of the model.
        bos: Whether texts start with the BOS token. Default: if the tokenizer adds it.
    """
    if not any(
        (files.folder / name).is_file() for name in TOKENIZER_FILES if name != "tokenizer_config.json"
    ):
        raise WhichlayersError(
            f"model {files.name!r}: no tokenizer in {files.folder} (expected tokenizer.json, vocab.txt, "
            "spiece.model, ...). Save one there with tokenizer.save_pretrained(folder)."
        )
    with quiet_transformers():
        try:
            tokenizer = AutoTokenizer.from_pretrained(
                files.folder, local_files_only=True, trust_remote_code=False
            )
        except Exception as error:  # many types: missing optional packages, broken files
            raise WhichlayersError(
                f"model {files.name!r}: the tokenizer in {files.folder} could not be read: {error} "
                "(A sentencepiece file without a tokenizer.json needs `pip install sentencepiece protobuf`.)"
            ) from error
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise WhichlayersError(
            f"model {files.name!r}: {type(tokenizer).__name__} is not a fast tokenizer, which is needed to map "
            "tokens to words. Save a tokenizer.json next to the model."
        )
    _check_algorithm(tokenizer, files)
    tokenizer.padding_side = "right"
    if bos is not None:
        set_bos(tokenizer, bos, files.name)
    return tokenizer


def _check_algorithm(tokenizer: PreTrainedTokenizerFast, files: ModelFiles) -> None:
    """Raise an error if the tokenizer is not of the kind that tokenizer.json holds.

    For some families (qwen2), transformers builds its own class of tokenizer, which takes the vocabulary of any
    tokenizer.json but tokenizes by its own algorithm: texts could lose all of their tokens.
    """
    path = files.folder / "tokenizer.json"
    if type(tokenizer) is PreTrainedTokenizerFast or not path.is_file():
        return
    stored = json.loads(path.read_text(encoding="utf-8"))["model"].get("type")
    found = type(tokenizer.backend_tokenizer.model).__name__
    if stored is not None and stored != found:
        raise WhichlayersError(
            f"model {files.name!r}: tokenizer.json holds a {stored} tokenizer, which transformers reads as {found} "
            f"({type(tokenizer).__name__}) for this model family, so that texts would get the wrong tokens. Save a "
            f"{found} tokenizer next to the model."
        )


def set_bos(tokenizer: PreTrainedTokenizerFast, bos: bool, name: str) -> None:
    """Make the tokenizer start texts with the BOS token, or not, in place; other special tokens stay."""
    from tokenizers.processors import TemplateProcessing

    token, token_id = tokenizer.bos_token, tokenizer.bos_token_id
    if token is None or token_id is None:
        raise WhichlayersError(
            f"model {name!r}: bos = {str(bos).lower()}, but its tokenizer has no BOS token."
        )
    plain = tokenizer("a", add_special_tokens=False)["input_ids"]
    ids = tokenizer("a")["input_ids"]
    start = next(i for i in range(len(ids)) if ids[i : i + len(plain)] == plain)
    before, after = ids[:start], ids[start + len(plain) :]
    before = [i for i in before if i != token_id]
    if bos:
        before = [token_id, *before]
    used = {str(tokenizer.convert_ids_to_tokens(i)): i for i in (*before, *after)}
    pieces = [[str(tokenizer.convert_ids_to_tokens(i)) for i in part] for part in (before, after)]
    template = " ".join([*pieces[0], "$A", *pieces[1]])
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=template, special_tokens=list(used.items())
    )


def starts_with_bos(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether the tokenizer starts texts with the BOS token."""
    bos = tokenizer.bos_token_id
    return bos is not None and tokenizer("a")["input_ids"][:1] == [bos]


def load_saved_tokenizer(folder: Path) -> PreTrainedTokenizerFast:
    """The tokenizer in the folder of a saved model."""
    return load_tokenizer(ModelFiles(str(folder), folder, None, ""))


def without_truncation(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """A copy of the tokenizer without the truncation and padding of its last call, which would be saved with it."""
    result = copy.deepcopy(tokenizer)
    result.backend_tokenizer.no_truncation()
    result.backend_tokenizer.no_padding()
    return result
