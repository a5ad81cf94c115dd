"""Which stacks are compiled, what they share, and where compiled code is kept."""

import functools
import os
import stat

import pytest
import torch
from tiny import tiny_encoder, tiny_task
from torch._inductor.runtime import cache_dir_utils

from whichlayers.engine.compilation import is_worth_compiling, keep_compiled_code
from whichlayers.engine.dataloader import used_token_ids
from whichlayers.engine.settings import EngineSettings
from whichlayers.engine.stack_trainer import StackTrainer
from whichlayers.trial import Training, Trial


def test_only_long_training_is_worth_compiling():
    """A 12 x 128 BERT, 24 trials of 315 steps, against 39 trials of BERT-Base with 500 examples and with 5,000."""
    small, base = (128, 12), (768, 12)
    assert not is_worth_compiling(24 * 315 * 190, *small)
    assert not is_worth_compiling(24 * 315 * 190, *small, similar_stacks=5)
    assert not is_worth_compiling(39 * 315 * 190, *base)
    assert is_worth_compiling(39 * 315 * 190, *base, similar_stacks=17)
    assert is_worth_compiling(39 * 1875 * 190, *base)


def test_stacks_of_one_shape_share_all_compiled_code(monkeypatch):
    """The second stack has other seeds, and so another number of word embeddings that it trains."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend=backend))
    torch._dynamo.reset()
    counts, rows, data = [], [], tiny_task(n_train=200)
    for seeds in ((0, 1), (2, 3)):
        trials = [Trial("m", "m", "t", "t", 24, s, training=Training(batch_size=8)) for s in seeds]
        settings = EngineSettings(compiled=True)
        trainer = StackTrainer(trials, tiny_encoder("bert"), data, torch.device("cpu"), settings)
        trainer.train_step(16)
        counts.append(len(graphs))
        rows.append(max(map(len, used_token_ids(trials, data))))
    torch._dynamo.reset()
    assert rows[0] != rows[1]
    assert counts[0] == counts[1] > 0


@pytest.fixture
def cache_home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")  # so that it is restored after the test
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR")
    return tmp_path / "whichlayers"


def test_compiled_code_is_kept_in_a_private_folder_of_the_user(cache_home):
    cache_home.mkdir()
    (cache_home / "compiled").mkdir(mode=0o777)
    assert keep_compiled_code() == cache_home / "compiled"
    assert stat.S_IMODE((cache_home / "compiled").stat().st_mode) == 0o700
    assert cache_dir_utils.cache_dir() == str(cache_home / "compiled")


def test_a_folder_of_compiled_code_that_the_user_chose_is_left_alone(cache_home, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "mine"))
    assert keep_compiled_code() is None
    assert os.environ["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "mine")
    assert not cache_home.exists()


def test_a_folder_of_compiled_code_that_may_belong_to_others_is_not_used(cache_home, tmp_path, caplog):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere").chmod(0o755)
    cache_home.mkdir()
    (cache_home / "compiled").symlink_to(tmp_path / "elsewhere")
    assert keep_compiled_code() is None
    assert "compiled code is not kept between runs" in caplog.text
    assert "TORCHINDUCTOR_CACHE_DIR" not in os.environ
    assert stat.S_IMODE((tmp_path / "elsewhere").stat().st_mode) == 0o755
