#!/usr/bin/env bash
# Ranks of a real Open MPI on this machine: with 2, 3 and 4 of them training, evaluation, comparison and reproduction have the files
# of one process to the byte; a rank that is killed, stopped, on a full disk or unlike the others ends all of them, and the same
# command goes on. KERPLE=PROGRAM tries a program that was built with `--features mpi`.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/check_setup.sh
install_mpi
source scripts/gpu_features.sh
# With MPI, and without what the command has by default. The two that are left out enable that; the features for GPUs are those that
# the whole is checked with, so that little is checked again.
[ -n "${KERPLE:-}" ] || cargo clippy --release --locked --workspace --exclude kerple-conformance --exclude kerple-py --no-default-features \
    --features "kerple/mpi,${gpu_features%,kerple-conformance*}" -- -D warnings
build --features kerple/mpi
make_run
train() { local n=$1; shift; ranks "$n" "$KERPLE" train --config "$here/run.toml" "$@"; }
rank_of() { local rank=$1; shift; rank_among "$rank" $(pgrep -f -- "^$KERPLE train .*$*"); }
evaluate=(--lengths 64,128,1024 --n-segments 7 --segment-len 1024 --per-position)

echo "== one process"
one train --config "$here/run.toml" --out "$here/alone"
one train --config "$here/run.toml" "${slow[@]}" --out "$here/alone-slow"
cp -r "$here/alone" "$here/alone-evaluated"
one eval "$here/alone-evaluated" "${evaluate[@]}"

echo "== 2, 3 and 4 ranks train and evaluate as one does"
for n in 2 3 4; do
    run=$here/ranks-$n
    quiet train "$n" --out "$run"
    same_run "$here/alone" "$run"
    quiet ranks "$n" "$KERPLE" eval "$run" "${evaluate[@]}"
    same_run "$here/alone-evaluated" "$run"
    grep -q "\"world_size\":$n" "$run/sessions.jsonl" || fail "the session does not say $n ranks"
    quiet "$KERPLE" report "$run" --out "$run/report"
    grep -q "was trained by several ranks; the first waited" "$run/report/index.html" || fail "the page says nothing of waiting"
    say "$n ranks: the first waits for $(waiting "$run") of an update"
done

# Trains in $run in the background, as $job, until there is a checkpoint that was not there before.
begin() {
    local n=$1 before
    before=$(newest "$run")
    train "$n" "${slow[@]}" --out "$run" >"$here/log" 2>&1 &
    job=$!
    within 60 has_newer "$run" "$before"
}
is_stopped() {
    ended 15 "$job"
    [ "$status" = 130 ] && grep -q "the run is saved" "$here/log" || fail "$1: exit code $status"
    say "stopped after $(newest "$run")"
}

echo "== a signal to one rank, or to mpirun, ends all, saved, and another number of ranks goes on"
run=$here/stopped
for n in 2 3; do
    begin "$n"
    kill -TERM "$(rank_of $((n - 1)) "$run")"
    is_stopped "TERM to rank $((n - 1)) of $n"
done
begin 3
kill -USR1 "$(pgrep -P "$job" -x mpirun)"
is_stopped "USR1 to mpirun"
quiet train 4 "${slow[@]}" --out "$run"
same_run "$here/alone-slow" "$run"

echo "== a rank that is killed ends all within seconds, and the same command goes on"
run=$here/killed
for rank in 1 0; do
    begin 3
    kill -KILL "$(rank_of "$rank" "$run")"
    began=$SECONDS
    ended 15 "$job"
    [ "$status" != hangs ] && [ "$status" != 0 ] || fail "rank $rank was killed: $status"
    named=$(grep -Eo "process rank $rank .*on node $(hostname)" "$here/log" | head -n 1) || fail "nothing names rank $rank and its host"
    say "ended after $((SECONDS - began)) s with $status: $named"
done
quiet train 3 "${slow[@]}" --out "$run"
same_run "$here/alone-slow" "$run"

echo "== a full disk on one rank ends all with its message, and the same command goes on"
run=$here/full
# files of the rank may not grow beyond so many kilobytes
full() {
    local rank=$1 blocks=$2; shift 2
    ranks 2 bash -c 'if [ "$OMPI_COMM_WORLD_RANK" = "$0" ]; then trap "" XFSZ; ulimit -f "$1"; fi; shift; exec "$@"' \
        "$rank" "$blocks" "$KERPLE" train --config "$here/run.toml" --out "$run" "$@"
}
status=0
full 0 60 >"$here/log" 2>&1 || status=$?
[ "$status" = 1 ] || fail "a full disk: exit code $status"
grep -q "rank 0 on $(hostname): .*File too large" "$here/log" || fail "nothing names rank 0, its host and the reason"
quiet train 2 --out "$run"
same_run "$here/alone" "$run"

echo "== ranks that differ are refused"
status=0
ranks 2 bash -c 'exec "$0" train --config "$1" --set train.grad_clip=0.$((5 + OMPI_COMM_WORLD_RANK)) --out "$2"' \
    "$KERPLE" "$here/run.toml" "$here/differing" >"$here/log" 2>&1 || status=$?
[ "$status" = 1 ] && grep -q "rank 1 on $(hostname): plan" "$here/log" || fail "other settings on rank 1: exit code $status"

echo "== a command that ranks do not share is refused, once"
status=0
ranks 3 "$KERPLE" verify "$here/alone" >"$here/log" 2>&1 || status=$?
[ "$status" = 2 ] && [ "$(grep -c '^error: ' "$here/log")" = 1 ] || fail "verify on 3 ranks: exit code $status"

echo "== 3 ranks share the runs of a comparison, and of a reproduction"
compare=(compare --config "$here/run.toml" --encodings alibi,rotary --seeds 2 --lengths 64,256 --n-segments 5 --segment-len 256)
reproduce=(reproduce kerple --scale smoke --only figure5)
for work in compare reproduce; do
    declare -n command=$work
    out=$here/$work
    one "${command[@]}" --out "$out"
    mv "$out" "$out-alone"
    quiet ranks 3 "$KERPLE" "${command[@]}" --out "$out"
    runs=$(cd "$out-alone" && find . -name plan.json -printf '%h\n')
    [ -n "$runs" ] || fail "$work: there are no runs"
    for run in $runs; do same_run "$out-alone/$run" "$out/$run"; done
    [ "$(cd "$out" && find . -name '*.html' | sort)" = "$(cd "$out-alone" && find . -name '*.html' | sort)" ] || fail "$work: other pages"
    say "$work: $(wc -w <<<"$runs") runs"
done
echo "ranks of Open MPI: all is well"
