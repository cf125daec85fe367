#!/usr/bin/env bash
# Strong and weak scaling over ranks of one thread on this machine, which should do nothing else, and over a slow link between two
# networks of it. Prints a Markdown table: seconds of an update, the share of it that rank 0 waits, and what the model of
# docs/scale-out.md says, given what one process takes for one part and for two.
#
#     scripts/measure_scaling.sh [MOST RANKS] [RUN FILE]      KERPLE=PROGRAM built with `--features mpi`
#
# The run file is one over prepared data; when absent, a decoder of 4 layers and 256 features over this repository's documents.
set -euo pipefail
cd "$(dirname "$0")/.."
source scripts/check_setup.sh
most=${1:-$(nproc)}
config=${2:-}
install_mpi
build --features kerple-cli/mpi
export KERPLE_THREADS=1
each=4 # sequences of a part
steps=${STEPS:-12}

if [ -z "$config" ]; then
    make_run
    config=$here/decoder.toml
    cat >"$config" <<TOML
data.path = "$here/data"
encoding.kind = "kerple_log"
[model]
n_layers = 4
n_heads = 4
head_dim = 64
[train]
train_len = 256
learning_rate = 1e-4
valid_every = 0
TOML
fi

# Seconds of an update, median over rows of the medians of their updates, and the share that waits. Without the first row.
measure() { # PARTS COMMAND...
    local parts=$1 out; shift
    out=$(mktemp -d "$here/XXXX")
    quiet "$@" "$KERPLE" train --config "$config" --set train.batch=$((parts * each)) --set train.micro_batch=$each \
        --set train.steps="$steps" --set train.log_every=2 --set train.checkpoint_every="$steps" --out "$out"
    of() { tail -n +2 "$out/metrics.jsonl" | { grep -o "\"$1\":[0-9.e-]*" || echo :0; } | cut -d: -f2 | sort -g |
        awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
    echo "$(of step_seconds) $(of waiting)"
    parameters=$(grep -Eo '"parameters": ?[0-9]+' "$out/plan.json" | grep -Eo '[0-9]+')
}

# A row of the table: RANKS PARTS BYTES-A-SECOND WHAT COMMAND...
row() {
    local n=$1 parts=$2 speed=$3 what=$4 seconds waiting; shift 4
    read -r seconds waiting < <(measure "$parts" "$@")
    awk -v n="$n" -v parts="$parts" -v speed="$speed" -v what="$what" -v s="$seconds" -v w="$waiting" -v one="$one" -v two="$two" \
        -v gradient=$((4 * parameters)) -v batch=$((parts * each)) 'BEGIN {
            part = two - one; rest = one - part
            # strong: against all of the work by one process, divided; weak: against the work of one rank
            whole = what == "strong" ? (parts * part + rest) / n : parts / n * part + rest
            network = speed ? (parts / n + 1) * (n - 1) / n * gradient / speed : 0
            model = parts / n * part + rest + network
            printf "| %s | %d | %d | %.3f | %.3f | %.1f %% | %.1f %% | %.1f %% | %.1f %% |\n",
                what, n, batch, s, model, 100 * w, 100 * network / model, 100 * whole / s, 100 * whole / model }'
}
local_ranks() { if [ "$1" -gt "$(nproc)" ]; then echo "mpirun -n $1 --bind-to none"; else echo "mpirun -n $1 --bind-to core"; fi; }

measure 1 >"$here/one"
measure 2 >"$here/two"
read -r one _ <"$here/one"
read -r two _ <"$here/two"
echo "$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) cores, $("$KERPLE" --version), $(mpirun --version | head -n 1)"
echo "$parameters parameters, parts of $each sequences; one process: $one s an update of one part, $two s of two"
echo
echo "| | ranks | batch | seconds an update | model | waiting | model | efficiency | model |"
echo "|---|---|---|---|---|---|---|---|---|"
for ((n = 2; n <= most; n *= 2)); do row "$n" "$most" 0 strong $(local_ranks "$n"); done
for ((n = 2; n <= most; n *= 2)); do row "$n" "$n" 0 weak $(local_ranks "$n"); done
if two_networks 100mbit; then
    for rate in 100 300 1000; do
        slow_link "${rate}mbit"
        for parts in 2 8; do row 2 "$parts" $((rate * 1000000 / 8)) "$rate Mbit/s" near_and_far; done
    done
else
    echo "no networks of this machine: nothing was measured over a link" >&2
fi
