#!/usr/bin/env bash
# A real Slurm on this machine. A comparison as a job array: shards run side by side, one is told to stop and goes into the queue
# again, the dependent job makes the page, and every run has the files of a single process to the byte. Then a job of two ranks of
# Open MPI, which is stopped and submitted again. KERPLE=PROGRAM tries a program that was built with `--features mpi`.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/check_setup.sh
install_mpi
build --features kerple/mpi
make_run
undo+=("scripts/slurm_here.sh stop $here/slurm")
variables=$(scripts/slurm_here.sh start "$here/slurm")
eval "$variables"
out=$here/out
compare=(compare --config "$here/run.toml" "${slow[@]}" --encodings alibi,rotary --seeds 2 --lengths 64,256 --n-segments 5 --segment-len 256)
state() { squeue --noheader --jobs "$1" --format=%T 2>/dev/null; }
is() { [ "$(state "$1")" = "$2" ]; }
is_over() { is "$1" ''; }

echo "== one process"
one "${compare[@]}" --out "$here/alone"

echo "== two shards under Slurm, one of them stopped by TERM"
quiet "$KERPLE" "${compare[@]}" --out "$out" --slurm 2%2
quiet bash "$out/slurm/submit.sh" --cpus-per-task=1 --time=30
read -r shards pages < <(sed -E 's/.*shards: job ([0-9]+), pages: job ([0-9]+).*/\1 \2/' "$here/log")
say "shards: job $shards, pages: job $pages"
logs=("$here"/slurm/slurm*.log "$out"/slurm/{shard-0,shard-1,pages}.log)
within 60 has_newer "$out/runs/alibi/seed-5" ''
# what Slurm sends before the time of a job is over: TERM to its script alone (the last shard has the number of the whole array)
scancel --signal=TERM --batch "${shards}_0"
within 60 is "${shards}_0" PENDING
grep -q "finished work is saved" "$out/slurm/shard-0.log" || fail "the shard does not say that it has saved"
is "$pages" PENDING && [ ! -e "$out/report" ] || fail "the page is made before all shards are done"
# a job that goes into the queue again waits for two minutes there; seconds are enough for what ended it to be over
sleep 5
scontrol update JobId="${shards}_0" StartTime=now
within 120 is_over "$shards"
within 60 is_over "$pages"
for label in alibi rotary; do
    for seed in 5 6; do same_run "$here/alone/runs/$label/seed-$seed" "$out/runs/$label/seed-$seed"; done
done
[ "$(wc -l <"$out/runs/alibi/seed-5/sessions.jsonl")" = 2 ] || fail "the stopped run was not gone on with"
[ -f "$out/report/index.html" ] || fail "the dependent job has made no page"
say "the stopped run went on after $(tail -n 1 "$out/runs/alibi/seed-5/sessions.jsonl" | grep -o '"first_step":[0-9]*')"

echo "== a job of two ranks, stopped by USR1 before its time is over"
one train --config "$here/run.toml" "${slow[@]}" --out "$here/one"
submit() {
    sbatch --parsable --ntasks=2 --cpus-per-task=1 --signal=B:USR1@120 --output="$here/ranks.log" --open-mode=append --wrap \
        "exec mpirun --bind-to none $KERPLE train --config $here/run.toml ${slow[*]} --out $here/two"
}
logs+=("$here/ranks.log")
job=$(submit)
within 60 has_newer "$here/two" ''
scancel --signal=USR1 --batch "$job"
within 30 is_over "$job"
grep -q "the run is saved" "$here/ranks.log" || fail "nothing says that the run is saved"
job=$(submit)
within 120 is_over "$job"
same_run "$here/one" "$here/two"
[ "$(grep -c '"world_size":2' "$here/two/sessions.jsonl")" = 2 ] || fail "not two sessions of two ranks"
echo "a real Slurm: all is well"
