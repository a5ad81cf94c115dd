"""Copy a model to a machine where each transfer is limited in size.

    python benchmarks/carry_model.py split MODEL_FOLDER carry/models      # on this machine
    python benchmarks/carry_model.py join carry/models studies/gpu        # on the other one

`split` writes the folders carry/models/NAME/0, 1, 2, ...: the first one has the configuration, the tokenizer and
checksums, each further one a part of the weights, which are rounded to float16. They can be copied in any order.
`join` checks them and writes the model to studies/gpu/NAME; it lists the parts that are missing or damaged. A model in
float16 is another model for whichlayers than the one in float32: use the joined one wherever a study is resumed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

MEBIBYTE = 1 << 20
PART, PARTS, WEIGHTS = "part", "parts.json", "model.safetensors"
SMALL_FILES = (".json", ".txt", ".model", ".jinja")  # configuration and tokenizer


def write_float16(folder: Path, target: Path) -> None:
    """Write the weights of a model to one file, float32 rounded to float16."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    from whichlayers.models.find import weight_files

    weights = {}
    for file in weight_files(folder, allow_pickle=False):
        if file.suffix != ".safetensors":
            continue  # the index of a sharded model
        with safe_open(file, "pt") as stored:
            for name in stored.keys():  # noqa: SIM118 (it is no dict)
                value = stored.get_tensor(name)
                if value.dtype == torch.float32:
                    value = value.half()
                    if not value.isfinite().all():
                        raise SystemExit(f"{name} in {file} has values that are too large for float16")
                weights[name] = value
    save_file(weights, target, {"format": "pt"})


def split(folder: Path, carry: Path, size: int) -> None:
    """Write a model in parts of at most `size` bytes to the folder `carry`."""
    folder = folder.resolve()
    target = carry / folder.name
    shutil.rmtree(target, ignore_errors=True)
    first = target / "0"
    first.mkdir(parents=True)
    for file in sorted(folder.iterdir()):
        if file.suffix in SMALL_FILES and not file.name.endswith(".index.json"):
            shutil.copyfile(file, first / file.name)
    whole = target / WEIGHTS
    write_float16(folder, whole)
    checksum, sums = hashlib.sha256(), list[str]()
    with open(whole, "rb") as source:
        while piece := source.read(size):
            checksum.update(piece)
            sums.append(hashlib.sha256(piece).hexdigest())
            part = target / str(len(sums)) / PART
            part.parent.mkdir()
            part.write_bytes(piece)
    whole.unlink()
    (first / PARTS).write_text(json.dumps({"sha256": checksum.hexdigest(), "parts": sums}) + "\n")
    print(f"{target}: {len(sums)} parts of at most {size / MEBIBYTE:.0f} MiB, and {first}")


def join(carry: Path, models: Path) -> bool:
    """Join all models in the folder `carry` in the folder `models`; returns whether all are complete."""
    complete = True
    for first in sorted(carry.glob("*/0")):
        manifest, name = json.loads((first / PARTS).read_text()), first.parent.name
        target, checksum = models / name, hashlib.sha256()
        target.mkdir(parents=True, exist_ok=True)
        for file in first.iterdir():
            if file.name != PARTS:
                shutil.copyfile(file, target / file.name)
        partial, wrong = target / f"{WEIGHTS}.partial", list[str]()
        with open(partial, "wb") as whole:
            for number, expected in enumerate(manifest["parts"], 1):
                part = first.parent / str(number) / PART
                piece = part.read_bytes() if part.is_file() else b""
                if hashlib.sha256(piece).hexdigest() != expected:
                    wrong.append(f"{number} ({'damaged' if piece else 'missing'})")
                checksum.update(piece)
                whole.write(piece)
        if wrong or checksum.hexdigest() != manifest["sha256"]:
            partial.unlink()
            complete = False
            print(f"{name}: {len(wrong)} of {len(manifest['parts'])} parts are left: {', '.join(wrong)}")
        else:
            os.replace(partial, target / WEIGHTS)
            print(f"{name}: joined in {target}")
    if not any(carry.glob("*/0")):
        complete = False
        print(f"there is no model in {carry}")
    return complete


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    splitting = commands.add_parser("split", help="write a model in parts")
    splitting.add_argument("model", type=Path)
    splitting.add_argument("carry", type=Path)
    splitting.add_argument("--mebibytes", type=float, default=40, help="largest size of a part")
    joining = commands.add_parser("join", help="join all models")
    joining.add_argument("carry", type=Path)
    joining.add_argument("models", type=Path)
    options = parser.parse_args()
    if options.command == "split":
        split(options.model, options.carry, int(options.mebibytes * MEBIBYTE))
    elif not join(options.carry, options.models):
        sys.exit(1)


if __name__ == "__main__":
    main()
