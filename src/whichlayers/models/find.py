"""Resolve a model name (hub id, folder or package:NAME) to a local folder.

The folder is checked for a config.json and safetensors weights, and its files are hashed. No weights are loaded.
"""

from __future__ import annotations

import contextlib
import difflib
import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from whichlayers.errors import WhichlayersError

CONFIG = "config.json"
SAFETENSORS = "model.safetensors"
PICKLE = "pytorch_model.bin"
INDEX_SUFFIX = ".index.json"  # suffix of the index of a sharded model
TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
)
PACKAGE_PREFIX = "package:"
HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
FOLDER_HINT = "To use a local folder, give its path, for example ./my-model."
NAMING_HINT = "Give a hub id (org/name), a folder (./my-model) or package:NAME."


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model on this machine."""

    name: str  # as specified by the user
    folder: Path
    revision: str | None  # commit of a model from the hub; None for folders and packages
    fingerprint: str  # 16 hex digits over config, weights and tokenizer
    allow_pickle: bool = False


def resolve(name: str, revision: str | None = None, allow_pickle: bool = False) -> ModelFiles:
    """Locate a model's files, downloading them from the hub if they are not in its cache.

    Args:
        name: Hub id (org/name), folder, or package:NAME.
        revision: Branch, tag or commit; only for hub ids.
        allow_pickle: Accept weights in pytorch_model.bin if there are no safetensors.
    """
    folder = local_folder(name)
    if folder is None:
        folder = hub_folder(name, revision, allow_pickle)
        return ModelFiles(
            name, folder, folder.name, _checked_fingerprint(name, folder, allow_pickle), allow_pickle
        )
    if revision is not None:
        raise WhichlayersError(
            f"model {name!r}: revision {revision!r} cannot be used with a folder or a package; only models on the "
            "hub have revisions. Remove it."
        )
    return ModelFiles(name, folder, None, _checked_fingerprint(name, folder, allow_pickle), allow_pickle)


def local_folder(name: str) -> Path | None:
    """The folder of a model that is given as a folder or as package:NAME; None for a hub id.

    Raises:
        WhichlayersError: There is no such folder or package.
    """
    path = Path(name).expanduser()
    if name.startswith(PACKAGE_PREFIX):
        return package_folder(name.removeprefix(PACKAGE_PREFIX))
    if name and path.is_dir():
        return path.resolve()
    if _looks_like_path(name):
        problem = "is a file, not a folder" if path.exists() else "does not exist"
        raise WhichlayersError(f"model {name!r}: the path {problem}. {NAMING_HINT}")
    return None


def check_name(name: str) -> None:
    """Raise WhichlayersError if a model cannot be loaded by this name, without the network and without hashing files.

    A folder or a package must hold a model; a hub id must be valid, but need not exist.
    """
    folder = local_folder(name)
    if folder is None:
        _check_hub_id(name)
        return
    _check_config(name, folder)
    weight_files(folder, allow_pickle=True)


def weight_files(folder: Path, allow_pickle: bool) -> list[Path]:
    """Paths of the weight files; for a sharded model, the index comes first.

    Safetensors take precedence; pytorch_model.bin is used only if `allow_pickle` is set.
    """
    for single in (SAFETENSORS, PICKLE) if allow_pickle else (SAFETENSORS,):
        if (folder / single).is_file():
            return [folder / single]
        index = folder / (single + INDEX_SUFFIX)
        if index.is_file():
            return _shards(index)
    if has_pickle(folder):
        raise WhichlayersError(
            f"{folder} has its weights only as a pickle (.bin), and loading a pickle can run arbitrary code. "
            "Convert it to safetensors, or set allow_pickle = true if you trust its source."
        )
    raise WhichlayersError(
        f"{folder} has no weights: expected {SAFETENSORS} or {SAFETENSORS + INDEX_SUFFIX}. Weights saved as a "
        "pickle (.bin) are used only with allow_pickle = true; other formats are not supported."
    )


def float32_bytes(files: ModelFiles) -> int:
    """Memory of the weights in float32, in bytes: that of a loaded model, whatever the precision of its files.

    Pickles, whose contents are unknown without loading them, count with the size of the file.
    """
    total = 0
    for file in weight_files(files.folder, files.allow_pickle):
        if file.suffix == ".safetensors":
            with open(file, "rb") as opened:  # the header: its length, then names, types and shapes as JSON
                header = json.loads(opened.read(int.from_bytes(opened.read(8), "little")))
            header.pop("__metadata__", None)
            total += sum(4 * math.prod(tensor["shape"]) for tensor in header.values())
        elif file.suffix == ".bin":
            total += file.stat().st_size
    return total


def has_pickle(folder: Path) -> bool:
    """Whether the folder has weights saved as a pickle, in one file or sharded."""
    return (folder / PICKLE).is_file() or (folder / (PICKLE + INDEX_SUFFIX)).is_file()


def _similar_folder(name: str) -> str:
    """A sentence on the local folder whose name is close to a hub id that does not exist; "" if there is none."""
    parent = Path(name).parent
    known = [path.name for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
    close = difflib.get_close_matches(Path(name).name, known, n=1)
    return f"There is no folder {name}; did you mean ./{(parent / close[0]).as_posix()}?" if close else ""


def hub_folder(name: str, revision: str | None, allow_pickle: bool) -> Path:
    """The snapshot folder of a hub model in the hub's cache, downloaded if necessary."""
    _check_hub_id(name)
    with _readable_hub_errors(name, revision):
        folder = _download(name, revision, "model*.safetensors", SAFETENSORS + INDEX_SUFFIX)
        has_safetensors = any((folder / file).is_file() for file in (SAFETENSORS, SAFETENSORS + INDEX_SUFFIX))
        if allow_pickle and not has_safetensors:
            folder = _download(name, revision, "pytorch_model*.bin", PICKLE + INDEX_SUFFIX)
        return folder


def _download(name: str, revision: str | None, *weights: str) -> Path:
    """Download config, tokenizer and the files that match `weights`, unless they are in the hub's cache."""
    from huggingface_hub import constants, snapshot_download

    folder = snapshot_download(
        name,
        revision=revision,
        allow_patterns=[CONFIG, *TOKENIZER_FILES, *weights],
        ignore_patterns=["*/*"],  # "*" also matches "/", so subfolders (onnx/, ...) must be excluded
        local_files_only=bool(constants.HF_HUB_OFFLINE),
    )
    return Path(folder)


@contextlib.contextmanager
def _readable_hub_errors(name: str, revision: str | None) -> Iterator[None]:
    """Raise a WhichlayersError that says what to do for an error of the hub."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    at = f" at revision {revision!r}" if revision else ""
    try:
        yield
    except LocalEntryNotFoundError as error:
        if constants.HF_HUB_OFFLINE:
            reason = (
                "HF_HUB_OFFLINE is set, so only models in the hub's cache "
                f"({constants.HF_HUB_CACHE}) can be used. Unset it to download the model."
            )
        else:
            reason = "the hub could not be reached. Check the network."
        raise WhichlayersError(
            f"model {name!r}{at} is not (completely) in the local cache, and {reason} "
            f"{_similar_folder(name) or FOLDER_HINT}"
        ) from error
    except GatedRepoError as error:
        raise WhichlayersError(
            f"model {name!r}{at} is gated: request access on its hub page, then set HF_TOKEN to a token of your "
            "account (https://huggingface.co/settings/tokens) or log in with `hf auth login`."
        ) from error
    except RevisionNotFoundError as error:
        raise WhichlayersError(
            f"model {name!r} has no revision {revision!r}: give a branch, tag or commit."
        ) from error
    except RepositoryNotFoundError as error:
        raise WhichlayersError(
            f"the hub has no model {name!r} (or it is private). {_similar_folder(name) or NAMING_HINT}"
        ) from error
    except (HfHubHTTPError, ValueError, OSError) as error:
        raise WhichlayersError(
            f"model {name!r}{at} could not be downloaded from the hub: {error} {FOLDER_HINT}"
        ) from error


def _check_hub_id(name: str) -> None:
    if not HUB_ID.fullmatch(name):
        raise WhichlayersError(
            f"model {name!r} is neither an existing folder nor a valid hub id. {NAMING_HINT}"
        )


def package_folder(package: str) -> Path:
    """The model folder inside an installed Python package; raises unless there is exactly one."""
    try:
        distribution = importlib.metadata.distribution(package)
    except (importlib.metadata.PackageNotFoundError, ValueError) as error:
        raise WhichlayersError(
            f"package {package!r} is not installed: run `pip install {package}`."
        ) from error
    folders = model_folders(distribution) or _folders_beside_code(package)
    if not folders:
        raise WhichlayersError(
            f"package {package!r} is installed but contains no model (a folder with {CONFIG} and "
            f"{SAFETENSORS}). {NAMING_HINT}"
        )
    if len(folders) > 1:
        listed = ", ".join(str(folder) for folder in folders)
        raise WhichlayersError(
            f"package {package!r} contains several models; give the folder of one instead: {listed}."
        )
    return folders[0]


def packages_with_models() -> Iterator[tuple[str, Path]]:
    """Name and model folder of every installed package that contains exactly one model."""
    seen = set()
    for distribution in importlib.metadata.distributions():
        package = distribution.metadata["Name"]
        if package in seen:
            continue
        seen.add(package)
        folders = model_folders(distribution)
        if len(folders) == 1:
            yield package, folders[0]


def model_folders(distribution: importlib.metadata.Distribution) -> list[Path]:
    """Folders of a distribution that contain a config.json and weights."""
    names_in: dict[PurePosixPath, set[str]] = {}
    for file in distribution.files or ():
        if file.name in (CONFIG, SAFETENSORS, SAFETENSORS + INDEX_SUFFIX, PICKLE):
            names_in.setdefault(file.parent, set()).add(file.name)
    found = [parent for parent, names in names_in.items() if CONFIG in names and len(names) > 1]
    return [Path(str(distribution.locate_file(str(parent)))).resolve() for parent in sorted(found)]


def _folders_beside_code(package: str) -> list[Path]:
    """Model folders of a package in an editable install, whose RECORD does not list its files."""
    spec = importlib.util.find_spec(package.replace("-", "_").replace(".", "_"))
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    configs = [config for root in roots for config in sorted(root.rglob(CONFIG))]
    weights = (SAFETENSORS, SAFETENSORS + INDEX_SUFFIX, PICKLE)
    return [c.parent.resolve() for c in configs if any((c.parent / name).is_file() for name in weights)]


def hash_model_files(folder: Path, allow_pickle: bool = False) -> str:
    """Hash (16 hex digits) of the names and contents of the config, weight and tokenizer files."""
    digest = hashlib.blake2b(digest_size=8)
    files = [folder / CONFIG, *weight_files(folder, allow_pickle)]
    files += [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    for file in sorted(files):
        stat = file.stat()
        digest.update(f"{file.name}\0{_hash_file(str(file), stat.st_mtime_ns, stat.st_size)}\0".encode())
    return digest.hexdigest()


@functools.lru_cache(maxsize=1024)
def _hash_file(path: str, mtime_ns: int, size: int) -> str:
    """Hash of a file's contents, cached until its modification time or size changes."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, hashlib.blake2b).hexdigest()  # type: ignore[arg-type]


def _check_config(name: str, folder: Path) -> None:
    if not (folder / CONFIG).is_file():
        raise WhichlayersError(
            f"model {name!r}: {folder} has no {CONFIG}, so it is not a model folder. {NAMING_HINT}"
        )


def _checked_fingerprint(name: str, folder: Path, allow_pickle: bool) -> str:
    _check_config(name, folder)
    try:
        return hash_model_files(folder, allow_pickle)
    except WhichlayersError as error:
        raise WhichlayersError(f"model {name!r}: {error}") from error


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "~", os.sep)) or name.count("/") > 1 or "\\" in name or Path(name).is_file()


def _shards(index: Path) -> list[Path]:
    """The index of a sharded model followed by its weight files."""
    try:
        shards = [
            index.parent / file for file in sorted(set(json.loads(index.read_text())["weight_map"].values()))
        ]
    except (ValueError, KeyError, AttributeError) as error:
        raise WhichlayersError(
            f"{index} is not a valid index of weight files ({error}). Download the model again."
        ) from error
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise WhichlayersError(
            f"{index} lists weight files that are missing: {', '.join(missing)}. Download the complete model."
        )
    return [index, *shards]
