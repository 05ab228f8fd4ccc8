#!/usr/bin/env bash
# The main job: one plan on two stacks, and the proof that both train the same. Run it as `make demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
planc=.venv/bin/planc
runs=runs/demo
mkdir -p "$runs"

step() { printf '\n\033[1m[%3d s] %s\033[0m\n' "$SECONDS" "$1"; shift; printf '$ planc %s\n' "$*"; "$planc" "$@"; }

step "Check 70B on 512 H100s, on this machine" \
  check plans/llama3_70b_h100.plan
step "The program a reviewer reads, for torch" \
  lower plans/llama3_70b_h100.plan --target cuda -o $runs/llama3_70b_h100_cuda.py
step "The same model on a TPU pod, for JAX" \
  lower plans/llama3_70b_v5p.plan --target xla -o $runs/llama3_70b_v5p_xla.py

refused=0
step "A sentence that a target cannot do is refused, not dropped" \
  lower plans/field/deepseek_v3_h800.plan --target xla -o $runs/refused.py || refused=$?
[ "$refused" = 1 ] || { echo "expected a refusal (exit 1), got exit $refused" >&2; exit 1; }

measured() { # what this machine does on a stack is measured once, and kept
  [ -f "$runs/machine_$1.plan" ] || step "Measure this machine: $2" \
    calibrate --target "$1" --devices 4 --no-tables --window 0.02 -o "$runs/machine_$1.plan"
}
measured cuda torch
step "Train on torch: 4 processes" \
  train plans/presets/tiny.toml --target cuda --steps 100 --machine $runs/machine_cuda.plan --receipt $runs/cuda.json
measured xla JAX
step "Train on JAX: 4 devices, the same plan" \
  train plans/presets/tiny.toml --target xla --steps 100 --machine $runs/machine_xla.plan --receipt $runs/xla.json
step "One loss curve, or two?" \
  crosscheck $runs/cuda.json $runs/xla.json --plot $runs/losses.svg

printf '\n\033[1m[%3d s] done\033[0m  programs, receipts and the plot are in %s/\n' "$SECONDS" "$runs"
