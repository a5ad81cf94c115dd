#!/usr/bin/env bash
# All CUDA tests and GPU benchmarks, in parts of at most ten minutes, each step with its own time limit.
#
#   benchmarks/gpu_session.sh prepare GLUE_FOLDER     on any machine: write what the parts need into carry/
#   benchmarks/gpu_session.sh PART OUT_FOLDER         on the GPU machine; PART: tests, start, steps, rivals, adapters
#
# A step that fails or runs out of time does not stop the next ones. OUT_FOLDER gets one log per part, which ends with
# the exit status and the seconds of every step, and one JSON file per benchmark. PYTHON names the interpreter (default:
# python3); packages in carry/site-packages are used as well.
set -u
cd "$(dirname "$0")/.."
part=${1:?give a part: prepare, tests, start, steps, rivals or adapters}
python=${PYTHON:-python3}
export PYTHONPATH="$PWD/src:$PWD/carry/site-packages${PYTHONPATH:+:$PYTHONPATH}" PYTHONUNBUFFERED=1 HF_HUB_OFFLINE=1

if [ "$part" = prepare ]; then
    glue=${2:?give the folder with GLUE}
    mkdir -p carry
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

case $part in
tests) # what only a GPU can show, the newest first
    for file in engine/test_stack_rounding engine/test_compile_ahead engine/test_cuda engine/test_decoders_cuda \
        engine/test_freezing_cuda engine/test_attention engine/test_optimizer_kernels engine/test_finetune \
        probes/test_probe_trainer_cuda probes/test_run_sentence_probes_cuda probes/test_run_word_probes_cuda test_rng; do
        step "$file" 180 "$python" -m pytest "tests/$file.py" -q -s -p no:cacheprovider
    done
    ;;
start) # to the first step, between stacks, a small study
    step study_time 580 "$python" benchmarks/study_time.py --out "$out/study_time.json"
    ;;
steps) # packed against padded stacks, BERT and MPNet
    step packed_vs_padded 580 "$python" benchmarks/packed_vs_padded.py run --tokens carry/three.npz --profile \
        --out "$out/packed.json"
    ;;
rivals) # stacks against Hugging Face, also in float32
    step stack_vs_hf 580 "$python" benchmarks/stack_vs_hf.py run --tokens carry/sst2.npz --out "$out/stack_vs_hf.json" \
        --stacks SST-2:39,32:64,128:32 --float32 SST-2:24 --rivals SST-2,32,128
    ;;
adapters) # LoRA stacks against peft
    step lora_135M 200 "$python" benchmarks/lora_vs_peft.py --geometry 135M --trials 32 --out "$out/lora_135M.json"
    step lora_1B 300 "$python" benchmarks/lora_vs_peft.py --geometry 1B --trials 32 --out "$out/lora_1B.json"
    ;;
*)
    echo "no such part: $part" >&2
    exit 2
    ;;
esac
printf '%s\n' "${summary[@]}" | tee -a "$log"
