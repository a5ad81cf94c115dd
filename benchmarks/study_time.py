"""The time of whole studies on this machine: from the command to the first step, between stacks, and in total.

    python benchmarks/study_time.py --out results.json                       # one or more CUDA devices
    python benchmarks/study_time.py --tiny --device cpu --out results.json    # try the script without a GPU
    python benchmarks/study_time.py --file study.toml --folder study --out results.json       # your own study

Every study is a new process, as `whichlayers run` is, and starts with random models that are written before. The time
to the first step counts from the start of that process.

small   24 trials of a 12 x 128 BERT with 315 steps each, with nothing compiled before, and again
cold    three tasks by two training sizes with BERT-Base, with nothing compiled before
warm    the same until its first step, with the code that `cold` compiled

A study file of your own (`--file`) is run until its first step with nothing compiled before, then planned, then run in
`--folder`, where it may also be resumed. `plan_ratio` is the time that `plan` foretold divided by the time that the run
took, and `left_ratio` the time left after a tenth of the steps divided by the time that it took from there on.

`busy` is the share of the time between the first step and the last in which a GPU ran kernels, by nvidia-smi every 0.2
seconds. The three tasks are the built-in ones, unless `--data` is a folder with SST-2, CoLA and QNLI.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).resolve().parents[1] / "src"
sys.path.insert(0, str(SOURCE))

BUILTIN = ("builtin:sentiment", "builtin:acceptability", "builtin:question-answer")
GLUE = ("SST-2", "CoLA", "QNLI")
SAMPLE_MILLISECONDS = 200


# --- in the process of a study ---


def run_study(options: argparse.Namespace) -> None:
    """Run a study and write the times of its events, in seconds since `options.began`, as JSON to `options.out`."""
    from whichlayers.runs.events import Progress, RunStarted
    from whichlayers.runs.run_study import run
    from whichlayers.study.study_file import Study, load_study

    times: dict[str, Any] = {}
    left: list[
        tuple[float, float]
    ] = []  # time, and time left as estimated then, from a tenth of the steps on
    steps = 0

    def on_event(event: object) -> None:
        nonlocal steps
        now = time.time() - options.began
        if isinstance(event, RunStarted):
            times.update(planned_s=now, stacks=event.stacks, trials=event.trials, steps=event.steps)
        elif isinstance(event, Progress) and event.steps_done > steps:
            steps = event.steps_done
            times.setdefault("first_step_s", now)
            times["last_step_s"] = now
            if event.seconds_left is not None and steps >= times["steps"] / 10:
                left.append((now, event.seconds_left))
            if options.stop_at_first_step:
                raise KeyboardInterrupt

    try:
        study = load_study(options.file) if options.file else Study(**json.loads(options.study))
        summary = run(
            study, options.folder, device=options.device, workers=options.workers, on_event=on_event
        )
        times.update(done=summary.done, failed=summary.failed)
    except KeyboardInterrupt:
        times["stopped"] = True
    times["total_s"] = time.time() - options.began
    if left and not times.get("stopped"):
        now, estimate = left[0]
        times["left_ratio"] = estimate / (times["total_s"] - now)
    options.out.write_text(json.dumps(times))


# --- in the main process ---


def write_model(folder: Path, layers: int, hidden: int, vocabulary: int) -> None:
    """A random BERT whose word-level tokenizer knows the words of the built-in tasks."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    from whichlayers.data.load_task import load_task

    texts = [
        text
        for name in BUILTIN
        for part in (load_task(name).train,)
        for text in (*part.texts, *(part.pairs or ()))
    ]
    words = sorted({word for text in texts for word in text.lower().split()})[: vocabulary - 4]
    filler = [f"[unused{i}]" for i in range(vocabulary - 4 - len(words))]
    ids = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words, *filler])}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    ).save_pretrained(folder)
    config = BertConfig(
        vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=layers, intermediate_size=4 * hidden,
        num_attention_heads=max(1, hidden // 64),
    )  # fmt: skip
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)


def read_sample(line: str) -> tuple[float, float] | None:
    """Time and share of a line like "2026/11/18 12:00:00.123, 97"; None if it is cut off, or has no number."""
    stamp, _, share = line.partition(", ")
    whole, _, fraction = stamp.partition(".")
    try:
        seconds = time.mktime(time.strptime(whole, "%Y/%m/%d %H:%M:%S")) + float(f"0.{fraction or 0}")
        return seconds, float(share) / 100
    except ValueError:
        return None


class BusyShare:
    """Samples the utilization of the first GPU with nvidia-smi, which is the share of time with a running kernel."""

    def __enter__(self) -> BusyShare:
        self.process, self.samples = None, list[tuple[float, float]]()
        self.output = tempfile.TemporaryFile("w+")  # a pipe that nobody reads fills up
        if shutil.which("nvidia-smi"):
            query = "--query-gpu=timestamp,utilization.gpu"
            command = ["nvidia-smi", "-i", "0", query, "--format=csv,noheader,nounits"]
            self.process = subprocess.Popen([*command, f"-lms={SAMPLE_MILLISECONDS}"], stdout=self.output)
        return self

    def __exit__(self, *error: object) -> None:
        with self.output:
            if self.process is None:
                return
            self.process.terminate()
            self.process.wait()
            self.output.seek(0)
            self.samples = [sample for sample in map(read_sample, self.output) if sample is not None]

    def between(self, first: float, last: float) -> float | None:
        """The mean share between two times; None without samples."""
        inside = [share for seconds, share in self.samples if first <= seconds <= last]
        return statistics.fmean(inside) if inside else None


def environment(cache: Path) -> dict[str, str]:
    """The environment of a process that keeps compiled code in the folder `cache`."""
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")]),
        "XDG_CACHE_HOME": str(cache),
        "HF_HUB_OFFLINE": "1",
    }
    variables.pop("TORCHINDUCTOR_CACHE_DIR", None)
    return variables


def measure(
    study: dict[str, Any] | Path,
    folder: Path,
    out: Path,
    cache: Path,
    options: argparse.Namespace,
    stop: bool = False,
) -> dict[str, Any]:
    """Run a study, given by its keys or as a file, in a new process and return its times."""
    with BusyShare() as busy:
        began = time.time()
        command = [
            sys.executable,
            __file__,
            "--began",
            str(began),
            "--folder",
            str(folder),
            "--out",
            str(out),
        ]
        command += ["--file", str(study)] if isinstance(study, Path) else ["--study", json.dumps(study)]
        command += ["--device", options.device] if options.device else []
        command += ["--workers", str(options.workers)] if options.workers is not None else []
        command += ["--stop-at-first-step"] if stop else []
        subprocess.run(command, env=environment(cache), check=True)
    times = json.loads(out.read_text())
    if "first_step_s" in times:
        window = (began + times["first_step_s"], began + times["last_step_s"])
        times["busy"] = busy.between(*window)
        times["busy_from_the_start"] = busy.between(began, window[1])
    return {key: round(value, 3) if isinstance(value, float) else value for key, value in times.items()}


def measure_file(options: argparse.Namespace, work: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Times of a study file: to the first step with nothing compiled before, of `plan`, and of the whole study."""
    out, cache = work / "times.json", work / "cache"
    yield "cold", measure(options.file, work / "cold", out, cache, options, stop=True)
    began = time.time()
    command = [sys.executable, "-m", "whichlayers", "plan", str(options.file), "--json"]
    command += ["--folder", str(options.folder)] + (["--device", options.device] if options.device else [])
    printed = subprocess.run(command, env=environment(cache), check=True, stdout=subprocess.PIPE, text=True)
    plan = {"plan_s": round(time.time() - began, 3), "seconds": json.loads(printed.stdout)["seconds"]}
    yield "plan", plan
    study = measure(options.file, options.folder, out, cache, options)
    if plan["seconds"]:
        study["plan_ratio"] = round(plan["seconds"]["expected"] / study["total_s"], 3)
    yield "study", study


def parse_arguments() -> argparse.Namespace:
    """The options of the command line; the hidden ones are for the process of a study."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", help="as for whichlayers run")
    parser.add_argument("--workers", type=int, help="as for whichlayers run")
    parser.add_argument("--data", type=Path, help="folder with GLUE")
    parser.add_argument("--trials", type=int, default=3, help="seeds of the study with BERT-Base")
    parser.add_argument(
        "--only", nargs="+", choices=("small", "cold", "warm"), default=("small", "cold", "warm")
    )
    parser.add_argument("--tiny", action="store_true", help="tiny models and few examples, to try the script")
    parser.add_argument("--file", type=Path, help="measure this study file in place of the studies above")
    parser.add_argument("--folder", type=Path, help="study folder of --file")
    parser.add_argument("--study", help=argparse.SUPPRESS)
    parser.add_argument("--began", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--stop-at-first-step", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.file is not None and options.folder is None:
        parser.error("--file needs --folder, the folder of the study")
    return options


def measure_studies(options: argparse.Namespace, work: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields the name and the times of each of the studies of `--only`, with models in the folder `work`."""
    shapes = {"small": (2, 16, 2000), "base": (2, 32, 2000)} if options.tiny else {
        "small": (12, 128, 16384), "base": (12, 768, 30522)
    }  # fmt: skip
    for model, shape in shapes.items():
        write_model(work / model, *shape)
    sizes, depth = [16, 32] if options.tiny else [500, 2000], shapes["small"][0]
    tasks = (
        list(BUILTIN) if options.data is None else [{"name": n, "source": str(options.data)} for n in GLUE]
    )
    training = {"epochs": 1 if options.tiny else 5, "batch_size": 8}
    common = {"experiments": ["incremental"], "training": training}
    small = common | {"name": "small", "models": [str(work / "small")], "tasks": [BUILTIN[0]],
                      "train_sizes": sizes[:1], "trials": 1 if options.tiny else 24,
                      "experiments": [{"kind": "incremental", "keep": [depth]}]}  # fmt: skip
    base = common | {"name": "base", "models": [str(work / "base")], "tasks": tasks,
                     "train_sizes": sizes, "trials": 1 if options.tiny else options.trials}  # fmt: skip
    runs = {
        "small": (small, "small", False),
        "small again": (small, "small", False),
        "cold": (base, "base", False),
        "warm": (base, "base", True),
    }
    for name, (study, cache, stop) in runs.items():
        if name.split()[0] in options.only:
            folder, cache_folder = work / f"study-{name.replace(' ', '-')}", work / f"cache-{cache}"
            yield name, measure(study, folder, work / "times.json", cache_folder, options, stop)


def main() -> None:
    options = parse_arguments()
    if options.began is not None:
        run_study(options)
        return
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as temporary:
        measured = measure_studies if options.file is None else measure_file
        for name, times in measured(options, Path(temporary)):
            results[name] = times
            print(json.dumps({name: times}), flush=True)
            options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
