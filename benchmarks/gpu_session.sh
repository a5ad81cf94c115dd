#!/usr/bin/env bash
# All CUDA tests and GPU benchmarks, in parts of at most ten minutes, each step with its own time limit.
#
#   benchmarks/gpu_session.sh prepare GLUE_FOLDER [MODEL_FOLDER...]     on any machine: write what the parts need to carry/
#   benchmarks/gpu_session.sh PART OUT_FOLDER                           on the GPU machine
#
# PART is tests, or start, steps, rivals or adapters (benchmarks). PYTEST_ADDOPTS selects tests (-k llama), JOBS is the
# number of processes that run them (default: 8). Three parts are about the study in the folder STUDY (default:
# studies/gpu; with study.toml and all that it names): join puts the models there that `prepare` split into carry/models;
# study starts or resumes it in the background; fetch waits until it ends, at most WAIT seconds (default: 520), and copies
# its results.db and the end of its log to OUT_FOLDER. RUN_OPTIONS are further options of `whichlayers run`
# (--max-stack 32).
#
# A step that fails or runs out of time does not stop the next ones; a part takes less than ten minutes. OUT_FOLDER gets
# one log per part, which ends with the exit status and the seconds of every step, and one JSON file per benchmark.
# PYTHON names the interpreter (default: python3); packages in carry/site-packages are used as well. `prepare` puts those
# there that a GPU machine may lack, for the version of Python in TARGET_PYTHON (default: that of this machine).
set -u
cd "$(dirname "$0")/.."
part=${1:?give prepare, or a part: tests, start, steps, rivals, adapters, join, study or fetch}
study=${STUDY:-studies/gpu}
python=${PYTHON:-python3}
export PYTHONPATH="$PWD/src:$PWD/carry/site-packages${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1

if [ "$part" = prepare ]; then
    glue=${2:?give the folder with GLUE}
    mkdir -p carry
    install=("$python" -m pip install -q --no-compile --upgrade --target carry/site-packages --only-binary=:all:)
    install+=(${TARGET_PYTHON:+--python-version "$TARGET_PYTHON"})
    "${install[@]}" pytest pytest-xdist || echo "no pytest-xdist: part tests will not run" >&2
    "${install[@]}" pydantic typer || echo "no pydantic, typer: parts start, study will not run" >&2
    "${install[@]}" --no-deps accelerate peft psutil || echo "no peft: parts rivals, adapters will not run" >&2
    for model in "${@:3}"; do
        "$python" benchmarks/carry_model.py split "$model" carry/models || exit 1
    done
    "$python" benchmarks/stack_vs_hf.py tokens --glue "$glue" --out carry/sst2.npz || exit 1
    qnli=$(cd "$glue/QNLI" && ls train*.tsv | head -n 1)
    exec "$python" benchmarks/packed_vs_padded.py tokens --glue "$glue" --qnli-train "$qnli" --out carry/three.npz
fi

out=${2:?give a folder for the results}
mkdir -p "$out"
log="$out/$part.log"
: > "$log"
summary=()

step() { # step NAME SECONDS COMMAND...: at most this long, and not after 575 s of the part
    local name=$1 seconds=$2 began=$SECONDS status
    shift 2
    echo "=== $name: $*" | tee -a "$log"
    [ "$seconds" -lt $((575 - SECONDS)) ] || seconds=$((575 - SECONDS))
    [ "$seconds" -gt 0 ] || seconds=10 # 0 would be no limit
    # not a pipe, which waits for processes that the command leaves behind
    exec {output}> >(tee -a "$log")
    local tee=$!
    timeout --kill-after=10 "$seconds" "$@" >&"$output" 2>&1
    status=$?
    exec {output}>&-
    for _ in {1..10}; do kill -0 "$tee" 2> /dev/null && sleep 0.1; done
    kill "$tee" 2> /dev/null
    summary+=("$name: exit status $status, $((SECONDS - began)) s")
}

running() { # whether the study runs; a process that has ended stays a zombie (Z) where nobody waits for it
    grep -q '^State:[[:space:]]*[^ZX[:space:]]' "/proc/$(cat "$study/pid" 2> /dev/null)/status" 2> /dev/null
}

needs() { # needs MODULE...: stop at once if one is missing
    "$python" -c '
import importlib.util, sys
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
sys.exit(f"missing: {missing}" if missing else 0)
' "$@" || exit 3
}

case $part in # the time limits of a part add up to less than ten minutes
tests) # all CUDA tests at once: most of their time goes into compiling, on the CPU
    needs pytest xdist sklearn
    # every process of pytest starts compiler processes of its own
    export TORCHINDUCTOR_COMPILE_THREADS=${TORCHINDUCTOR_COMPILE_THREADS:-2}
    step tests 570 "$python" -m pytest -v -p no:cacheprovider -n "${JOBS:-8}" --dist worksteal --durations=20 \
        tests/engine/test_{attention,decoders_cuda,cuda,freezing_cuda,stack_rounding,compile_ahead,optimizer_kernels}.py \
        tests/probes/test_*_cuda.py tests/test_rng.py
    ;;
start) # to the first step, between stacks, a small study
    needs pydantic sklearn
    step study_time 570 "$python" benchmarks/study_time.py --trials 2 --out "$out/study_time.json"
    ;;
steps) # packed against padded stacks, BERT and MPNet
    for family in bert mpnet; do # CoLA, whose sentences are as short as those of SST-2, would take too long
        step "packed_vs_padded_$family" 285 "$python" benchmarks/packed_vs_padded.py run --tokens carry/three.npz \
            --families $family --tasks SST-2 QNLI --profile --out "$out/packed_$family.json"
    done
    ;;
rivals) # stacks against Hugging Face, also in float32
    needs accelerate
    step stack_vs_hf 570 "$python" benchmarks/stack_vs_hf.py run --tokens carry/sst2.npz --out "$out/stack_vs_hf.json" \
        --stacks SST-2:39,32:64,128:32 --float32 SST-2:24 --rivals SST-2,32,128
    ;;
adapters) # LoRA stacks against peft
    needs peft
    step lora_135M 200 "$python" benchmarks/lora_vs_peft.py --geometry 135M --trials 32 --out "$out/lora_135M.json"
    step lora_1B 300 "$python" benchmarks/lora_vs_peft.py --geometry 1B --trials 32 --out "$out/lora_1B.json"
    ;;
join) # as many models as have been copied
    step join 300 "$python" benchmarks/carry_model.py join carry/models "$study"
    ;;
study) # survives the end of this script; STUDY/out/results.db is resumed if it exists
    needs pydantic typer rich sklearn scipy
    if running; then
        echo "$study is running already" >&2
        exit 2
    fi
    read -ra options <<< "${RUN_OPTIONS:-}"
    run=("$python" -m whichlayers run "$study/study.toml" --folder "$study/out" ${options[@]+"${options[@]}"})
    setsid nohup "${run[@]}" > "$study/log" 2>&1 < /dev/null &
    echo $! > "$study/pid"
    end=$((SECONDS + ${START_WAIT:-30})) # until it trains, or shows why it cannot
    while [ "$SECONDS" -lt "$end" ] && running && ! grep -q " to run, " "$study/log"; do sleep 0.2; done
    tail -n 30 "$study/log" | tee -a "$log"
    running || wait $! || exit 1
    ;;
fetch) # a consistent copy, also while the study runs
    end=$((SECONDS + ${WAIT:-520}))
    while [ "$SECONDS" -lt "$end" ] && running; do sleep 1; done
    tail -n 30 "$study/log" | tee -a "$log"
    step copy 60 "$python" -c '
import lzma, pathlib, sqlite3, sys
source, copy, packed = map(pathlib.Path, sys.argv[1:])
copy.unlink(missing_ok=True)
target = sqlite3.connect(copy)
sqlite3.connect(f"{source.resolve().as_uri()}?mode=ro", uri=True).backup(target)
target.close()
packed.write_bytes(lzma.compress(copy.read_bytes()))
' "$study/out/results.db" "$study/copy.db" "$out/results.db.xz"
    ;;
*)
    echo "no such part: $part" >&2
    exit 2
    ;;
esac
printf '%s\n' "${summary[@]}" | tee -a "$log"
