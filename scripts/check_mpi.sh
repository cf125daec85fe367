#!/usr/bin/env bash
# Ranks of a real Open MPI on this machine: training, evaluation and comparison have the files of one process to the byte, with 2,
# 3 and 4 ranks, stopped, killed, on a full disk, going on with another number of ranks, and over a slow link between two networks
# of this machine where that may be set up. Takes a few minutes. KERPLE=PROGRAM tries a program that was built with `--features mpi`.
set -euo pipefail
cd "$(dirname "$0")/.."
if ! command -v mpirun >/dev/null || ! command -v mpicc >/dev/null || ! ls /usr/lib/llvm-*/lib/libclang*.so* >/dev/null 2>&1; then
    apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy openmpi-bin libopenmpi-dev libclang-dev
fi
if [ -z "${KERPLE:-}" ]; then
    cargo clippy --release --locked --workspace --features kerple-cli/mpi -- -D warnings
    cargo build --release --locked --workspace --features kerple-cli/mpi
    KERPLE=$PWD/target/release/kerple
fi
export KERPLE
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT

# containers run as root, and laptops have fewer cores than ranks
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
# after a signal to mpirun a step is finished and saved before the ranks are killed
export OMPI_MCA_odls_base_sigkill_timeout=60
ranks() { local n=$1; shift; mpirun -n "$n" --bind-to none "$@"; }
one() { env -u KERPLE_THREADS "$KERPLE" "$@" --threads 1; }

say() { printf '   %s\n' "$*"; }
fail() { printf 'FAILED: %s\n' "$*" >&2; [ ! -f "$here/log" ] || tail -n 30 "$here/log" >&2; exit 1; }

# What a run must have in common with that of one process: all but times, who trained it, and pictures of times.
same_run() {
    local newest=checkpoints/step-00000024
    for file in "$newest/model.safetensors" "$newest/optimizer.safetensors" kernels.json; do
        cmp "$1/$file" "$2/$file" || fail "$2/$file differs"
    done
    for file in metrics.jsonl evaluation.jsonl; do
        [ ! -f "$1/$file" ] || cmp <(timeless "$1/$file") <(timeless "$2/$file") || fail "$2/$file differs"
    done
}
timeless() { sed -E 's/"(seconds|step_seconds|waiting)":[^,}]*,?//g; s/"threads":[0-9]+,?//' "$1"; }

# The process of a rank of a run in a folder.
rank_of() {
    local rank=$1 folder=$2 pid
    for pid in $(pgrep -f -- "$KERPLE train .*--out $folder"); do
        if tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | grep -qx "OMPI_COMM_WORLD_RANK=$rank"; then echo "$pid"; return; fi
    done
}
# Waits until a run in the background has saved a checkpoint.
wait_for_checkpoint() {
    local folder=$1
    for _ in $(seq 600); do
        if ls "$folder"/checkpoints/step-* >/dev/null 2>&1; then return; fi
        sleep 0.1
    done
    fail "$folder has no checkpoint after a minute"
}
# Waits for a job and returns its exit code; a job that hangs is a failure.
ended() {
    local job=$1 limit=$2 status=0
    for _ in $(seq $((limit * 10))); do
        if ! kill -0 "$job" 2>/dev/null; then wait "$job" || status=$?; echo "$status"; return; fi
        sleep 0.1
    done
    echo hangs
}

one prepare --input docs/*.md --out "$here/data" 2>/dev/null >/dev/null
cat >"$here/run.toml" <<TOML
seed = 5
data.path = "$here/data"
encoding.kind = "kerple_log"
[model]
n_layers = 2
n_heads = 2
head_dim = 16
[train]
train_len = 64
batch = 12
micro_batch = 1
steps = 24
learning_rate = 3e-3
log_every = 3
valid_every = 6
valid_segments = 300
checkpoint_every = 6
TOML
# long enough to be met while it runs
slow=(--set train.steps=24 --set train.train_len=512 --set train.checkpoint_every=2)
evaluate=(--lengths 64,128,1024 --segments 7 --span 1024 --positions)

echo "== one process"
one train --config "$here/run.toml" --out "$here/alone" >/dev/null 2>&1
one train --config "$here/run.toml" "${slow[@]}" --out "$here/alone-slow" >/dev/null 2>&1
one eval "$here/alone" "${evaluate[@]}" >/dev/null 2>&1

echo "== 2, 3 and 4 ranks train and evaluate as one does"
for n in 2 3 4; do
    ranks "$n" "$KERPLE" train --config "$here/run.toml" --out "$here/ranks-$n" >"$here/log" 2>&1 || fail "train on $n ranks"
    ranks "$n" "$KERPLE" eval "$here/ranks-$n" "${evaluate[@]}" >"$here/log" 2>&1 || fail "eval on $n ranks"
    same_run "$here/alone" "$here/ranks-$n"
    grep -q "\"ranks\":$n" "$here/ranks-$n/sittings.jsonl" || fail "the sitting does not say $n ranks"
    say "$n ranks: $(grep -o '"waiting":[0-9.]*' "$here/ranks-$n/metrics.jsonl" | tail -n 1) of a step"
done

echo "== a signal to one rank ends all, saved, and another number of ranks goes on"
run=$here/stopped
for n in 2 3; do
    ranks "$n" "$KERPLE" train --config "$here/run.toml" "${slow[@]}" --out "$run" >"$here/log" 2>&1 &
    job=$!
    wait_for_checkpoint "$run"
    sleep 1
    kill -TERM "$(rank_of $((n - 1)) "$run")"
    status=$(ended "$job" 30)
    [ "$status" = 130 ] || fail "a signal to rank $((n - 1)) of $n: exit code $status"
    grep -q "the run is saved" "$here/log" || fail "nothing says that the run is saved"
    say "$n ranks: stopped after $(basename "$(ls -d "$run"/checkpoints/step-* | tail -n 1)")"
done
ranks 4 "$KERPLE" train --config "$here/run.toml" "${slow[@]}" --out "$run" >"$here/log" 2>&1 || fail "going on with 4 ranks"
same_run "$here/alone-slow" "$run"

echo "== a rank that is killed ends all within seconds, and the same command goes on"
run=$here/killed
for rank in 1 0; do
    ranks 3 "$KERPLE" train --config "$here/run.toml" "${slow[@]}" --out "$run" >"$here/log" 2>&1 &
    job=$!
    wait_for_checkpoint "$run"
    kill -KILL "$(rank_of "$rank" "$run")"
    status=$(ended "$job" 15)
    [ "$status" != hangs ] && [ "$status" != 0 ] || fail "rank $rank was killed: $status"
    grep -Eq "process rank $rank .*on node $(hostname)" "$here/log" || fail "nothing names rank $rank and its host"
    say "rank $rank killed: ended with $status, $(grep -Eo "process rank $rank .*on node [^ ]*" "$here/log" | head -n 1)"
done
ranks 3 "$KERPLE" train --config "$here/run.toml" "${slow[@]}" --out "$run" >"$here/log" 2>&1 || fail "going on after kills"
same_run "$here/alone-slow" "$run"

echo "== a full disk on one rank ends all with its message, and the same command goes on"
run=$here/full
full() { # RANK BLOCKS COMMAND...: files of that rank may not grow beyond so many kilobytes
    local rank=$1 blocks=$2; shift 2
    ranks 2 bash -c 'if [ "$OMPI_COMM_WORLD_RANK" = "$0" ]; then trap "" XFSZ; ulimit -f "$1"; fi; shift; exec "$@"' \
        "$rank" "$blocks" "$@"
}
status=0
full 0 60 "$KERPLE" train --config "$here/run.toml" --out "$run" >"$here/log" 2>&1 || status=$?
[ "$status" = 1 ] || fail "a full disk: exit code $status"
grep -q "rank 0 on $(hostname): .*File too large" "$here/log" || fail "nothing names rank 0, its host and the reason"
ranks 2 "$KERPLE" train --config "$here/run.toml" --out "$run" >"$here/log" 2>&1 || fail "going on after a full disk"
same_run "$here/alone" "$run"

echo "== ranks that differ are refused"
status=0
ranks 2 bash -c 'exec "$0" train --config "$1" --set train.clip=0.$((5 + OMPI_COMM_WORLD_RANK)) --out "$2"' \
    "$KERPLE" "$here/run.toml" "$here/differing" >"$here/log" 2>&1 || status=$?
[ "$status" = 1 ] && grep -q "rank 1 on $(hostname): plan" "$here/log" || fail "other settings on rank 1: exit code $status"

echo "== 3 ranks share the runs of a comparison"
compare=(compare --config "$here/run.toml" --encodings alibi,rotary --seeds 2 --lengths 64,256 --segments 5 --span 256)
one "${compare[@]}" --out "$here/compare-alone" >/dev/null 2>&1
ranks 3 "$KERPLE" "${compare[@]}" --out "$here/compare-ranks" >"$here/log" 2>&1 || fail "compare on 3 ranks"
for label in alibi rotary; do
    for seed in 5 6; do
        same_run "$here/compare-alone/runs/$label/seed-$seed" "$here/compare-ranks/runs/$label/seed-$seed"
    done
done
[ -f "$here/compare-ranks/report/index.html" ] || fail "there is no page"

bash scripts/check_mpi_network.sh "$here"
echo "ranks of Open MPI: all is well"
