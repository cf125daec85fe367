#!/usr/bin/env bash
# A comparison as a job array of a real Slurm on this machine: shards run side by side, one is told to stop and goes into the queue
# again, the dependent job makes the page, and every run has the files of a single process to the byte. KERPLE=PROGRAM tries a
# program that was built before. Takes two minutes.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -z "${KERPLE:-}" ]; then
    cargo build --release --locked --workspace
    KERPLE=$PWD/target/release/kerple
fi
here=$(mktemp -d)
trap 'scripts/slurm_here.sh stop "$here/slurm"; rm -rf "$here"' EXIT
eval "$(scripts/slurm_here.sh start "$here/slurm")"
fail() { printf 'FAILED: %s\n' "$*" >&2; tail -n 20 "$here"/out/slurm/*.log "$here/slurm/slurmctld.log" >&2 || true; exit 1; }
timeless() { sed -E 's/"(seconds|step_seconds)":[^,}]*,?//g; s/"threads":[0-9]+,?//' "$1"; }
# Waits until a condition holds, at most so many seconds.
within() { local limit=$1 second; shift; for second in $(seq $((limit * 5))); do if "$@"; then return; fi; sleep 0.2; done; fail "not within $limit s: $*"; }

"$KERPLE" prepare --input docs/*.md --out "$here/data" >/dev/null 2>&1
cat >"$here/run.toml" <<TOML
seed = 5
data.path = "$here/data"
encoding.kind = "none"
[model]
n_layers = 2
n_heads = 2
head_dim = 16
[train]
train_len = 256
batch = 8
steps = 60
learning_rate = 3e-3
log_every = 5
checkpoint_every = 20
TOML
compare=(compare --config "$here/run.toml" --encodings alibi,rotary --seeds 2 --lengths 64,256 --segments 5 --span 256)

echo "== one process"
"$KERPLE" "${compare[@]}" --threads 1 --out "$here/alone" >/dev/null 2>&1

echo "== two shards under Slurm, one of them stopped by TERM"
"$KERPLE" "${compare[@]}" --out "$here/out" --slurm 2%2 >/dev/null 2>&1
said=$(bash "$here/out/slurm/submit.sh" --cpus-per-task=1 --time=30)
echo "   $said"
shards=$(sed -E 's/.*shards: job ([0-9]+).*/\1/' <<<"$said")
pages=$(sed -E 's/.*pages: job ([0-9]+).*/\1/' <<<"$said")
state() { squeue --noheader --jobs "$1" --format=%T 2>/dev/null; }
trains() { [ -f "$here/out/runs/rotary/seed-5/metrics.jsonl" ]; }
waits_again() { [ "$(squeue --noheader --jobs "${shards}_1" --format=%T 2>/dev/null)" = PENDING ]; }
is_over() { [ -z "$(state "$1")" ]; }
within 60 trains
# what Slurm sends before the time of a job is over: TERM to its script alone
scancel --signal=TERM --batch "${shards}_1"
within 60 waits_again
grep -q "what was done is saved" "$here/out/slurm/shard-1.log" || fail "the shard does not say that it has saved"
! is_over "$pages" || fail "the page is made before all shards are done"
# a job that goes into the queue again waits for two minutes there; nobody else wants this machine
scontrol update JobId="${shards}_1" StartTime=now
within 120 is_over "$shards"
within 60 is_over "$pages"

for label in alibi rotary; do
    for seed in 5 6; do
        run=runs/$label/seed-$seed
        for file in checkpoints/step-00000060/{model,optimizer}.safetensors kernels.json; do
            if [ -f "$here/alone/$run/$file" ]; then cmp "$here"/{alone,out}/"$run/$file" || fail "$run/$file differs"; fi
        done
        for file in metrics.jsonl evaluation.jsonl; do
            cmp <(timeless "$here/alone/$run/$file") <(timeless "$here/out/$run/$file") || fail "$run/$file differs"
        done
    done
done
[ "$(wc -l <"$here/out/runs/rotary/seed-5/sittings.jsonl")" = 2 ] || fail "the stopped run was not gone on with"
[ -f "$here/out/report/index.html" ] || fail "the dependent job has made no page"
for table in report.md report.json; do
    [ -f "$here/alone/report/$table" ] || continue
    echo "   $table: $(wc -c <"$here/out/report/$table") bytes, alone $(wc -c <"$here/alone/report/$table")"
done
echo "shards of Slurm: all is well"
