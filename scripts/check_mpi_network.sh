#!/usr/bin/env bash
# Two ranks in two networks of this machine, joined by a link of 100 Mbit/s, train a run as one process does; a rank that is killed
# on the far side ends all. Needs the right to make network namespaces; where there is none it says so and checks nothing.
# KERPLE=PROGRAM tries a program that was built with `--features mpi`.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/check_setup.sh
if ! two_networks 100mbit; then
    echo "== two networks: SKIPPED, this machine makes no such networks"
    exit 0
fi
install_mpi
build --features kerple/mpi
make_run
two() { near_and_far "$KERPLE" train --config "$here/run.toml" "$@"; }

echo "== two networks with 100 Mbit/s between them"
one train --config "$here/run.toml" --out "$here/alone"
before=$(sent)
quiet two --out "$here/far-run"
sent=$(($(sent) - before))
same_run "$here/alone" "$here/far-run"
[ "$sent" -gt 1000000 ] || fail "only $sent bytes went over the link"
say "the files of one process; $((sent / 24)) bytes an update from one to the other, $(waiting "$here/far-run") of it waiting"

echo "== a rank that is killed on the far machine"
two "${slow[@]}" --out "$here/far-killed" >"$here/log" 2>&1 &
job=$!
within 60 has_newer "$here/far-killed" ''
kill -KILL "$(rank_among 1 $(ip netns pids "$far"))"
ended 15 "$job"
[ "$status" != hangs ] && [ "$status" != 0 ] || fail "the near rank: $status"
named=$(grep -Eo "process rank 1 .*on node (far-machine|10.77.0.2)" "$here/log" | head -n 1) || fail "nothing names rank 1 and its machine"
say "ended with $status: $named"
echo "two networks: all is well"
