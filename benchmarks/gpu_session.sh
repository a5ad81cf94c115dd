#!/usr/bin/env bash
# All CUDA tests and GPU benchmarks, in parts of at most ten minutes, each step with its own time limit.
#
#   benchmarks/gpu_session.sh prepare GLUE_FOLDER     on any machine: write what the parts need into carry/
#   benchmarks/gpu_session.sh PART OUT_FOLDER         on the GPU machine
#
# PART is kernels, stacks, decoders, compiled or probes (tests), or start, steps, rivals or adapters (benchmarks).
#
# A step that fails or runs out of time does not stop the next ones. OUT_FOLDER gets one log per part, which ends with
# the exit status and the seconds of every step, and one JSON file per benchmark. PYTHON names the interpreter (default:
# python3); packages in carry/site-packages are used as well. `prepare` puts those there that a GPU machine may lack, for
# the version of Python in TARGET_PYTHON (default: that of this machine).
set -u
cd "$(dirname "$0")/.."
part=${1:?give prepare, or a part: kernels, stacks, decoders, compiled, probes, start, steps, rivals or adapters}
python=${PYTHON:-python3}
export PYTHONPATH="$PWD/src:$PWD/carry/site-packages${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1

if [ "$part" = prepare ]; then
    glue=${2:?give the folder with GLUE}
    mkdir -p carry
    install=("$python" -m pip install -q --upgrade --target carry/site-packages --only-binary=:all:)
    install+=(${TARGET_PYTHON:+--python-version "$TARGET_PYTHON"})
    "${install[@]}" pydantic || echo "no pydantic for the GPU machine: part start will not run" >&2
    "${install[@]}" --no-deps accelerate peft psutil || echo "no peft: parts rivals, adapters will not run" >&2
    "$python" benchmarks/stack_vs_hf.py tokens --glue "$glue" --out carry/sst2.npz || exit 1
    qnli=$(cd "$glue/QNLI" && ls train*.tsv | head -n 1)
    exec "$python" benchmarks/packed_vs_padded.py tokens --glue "$glue" --qnli-train "$qnli" --out carry/three.npz
fi

out=${2:?give a folder for the results}
mkdir -p "$out"
log="$out/$part.log"
: > "$log"
summary=()

step() { # step NAME SECONDS COMMAND...
    local name=$1 seconds=$2 began=$SECONDS
    shift 2
    echo "=== $name: $*" | tee -a "$log"
    timeout --kill-after=10 "$seconds" "$@" 2>&1 | tee -a "$log"
    summary+=("$name: exit status ${PIPESTATUS[0]}, $((SECONDS - began)) s")
}

tests() { # tests SECONDS FILE [PYTEST_OPTION...]; -v: the log of tests that ran out of time says how far they came
    local seconds=$1 file=$2
    shift 2
    step "$file" "$seconds" "$python" -m pytest "tests/$file.py" -v -s -p no:cacheprovider "$@"
}

needs() { # needs MODULE...: stop at once if one is missing
    "$python" -c "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]" "$@" || exit 3
}

case $part in # the time limits of a part add up to less than ten minutes
kernels) # the Triton kernels, random numbers, rounding in stacks of different sizes
    tests 240 engine/test_attention
    tests 60 engine/test_optimizer_kernels
    tests 60 test_rng
    tests 200 engine/test_stack_rounding
    ;;
stacks) # compiled and captured steps of every family, frozen layers, adapters
    tests 400 engine/test_cuda
    tests 180 engine/test_freezing_cuda
    ;;
decoders) # eager steps of decoders, and those that do not vary their family
    tests 580 engine/test_decoders_cuda -k "not compiled_and_captured"
    ;;
compiled) # compiled and captured steps of decoders
    tests 580 engine/test_decoders_cuda -k compiled_and_captured
    ;;
probes) # probes, and code that is compiled ahead
    tests 120 probes/test_probe_trainer_cuda
    tests 120 probes/test_run_sentence_probes_cuda
    tests 120 probes/test_run_word_probes_cuda
    tests 220 engine/test_compile_ahead
    ;;
start) # to the first step, between stacks, a small study
    needs pydantic
    step study_time 580 "$python" benchmarks/study_time.py --out "$out/study_time.json"
    ;;
steps) # packed against padded stacks, BERT and MPNet
    step packed_vs_padded 580 "$python" benchmarks/packed_vs_padded.py run --tokens carry/three.npz --profile \
        --out "$out/packed.json"
    ;;
rivals) # stacks against Hugging Face, also in float32
    needs accelerate
    step stack_vs_hf 580 "$python" benchmarks/stack_vs_hf.py run --tokens carry/sst2.npz --out "$out/stack_vs_hf.json" \
        --stacks SST-2:39,32:64,128:32 --float32 SST-2:24 --rivals SST-2,32,128
    ;;
adapters) # LoRA stacks against peft
    needs peft
    step lora_135M 200 "$python" benchmarks/lora_vs_peft.py --geometry 135M --trials 32 --out "$out/lora_135M.json"
    step lora_1B 300 "$python" benchmarks/lora_vs_peft.py --geometry 1B --trials 32 --out "$out/lora_1B.json"
    ;;
*)
    echo "no such part: $part" >&2
    exit 2
    ;;
esac
printf '%s\n' "${summary[@]}" | tee -a "$log"
