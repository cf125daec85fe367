#!/usr/bin/env bash
# Strong and weak scaling over ranks of one thread on this machine, which should do nothing else. Prints Markdown tables: seconds of
# an update, the share of it that rank 0 waits, and the efficiency, beside what docs/scale-out.md's model says of one machine.
#
#     scripts/measure_scaling.sh [MOST RANKS] [RUN FILE]      KERPLE=PROGRAM built with `--features mpi`
#
# The run file is one over prepared data; when absent, a decoder of 4 layers and 256 features over this repository's documents.
set -euo pipefail
cd "$(dirname "$0")/.."
most=${1:-$(nproc)}
config=${2:-}
: "${KERPLE:=$PWD/target/release/kerple}"
here=$(mktemp -d)
trap 'rm -rf "$here"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 KERPLE_THREADS=1
steps=${STEPS:-12}
each=${EACH:-4}

if [ -z "$config" ]; then
    "$KERPLE" prepare --input docs/*.md --out "$here/data" >/dev/null 2>&1
    config=$here/run.toml
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

counts=()
for ((n = 1; n <= most; n *= 2)); do counts+=("$n"); done
# the least common batch of all counts, `each` sequences for the most ranks
strong=$((counts[-1] * each))

# Seconds of an update, median of the medians of the rows after the first, and the share that waits.
measure() { # RANKS BATCH MICRO_BATCH
    local out=$here/$1-$2 first
    first=$(command -v mpirun >/dev/null && echo mpirun -n "$1" --bind-to core)
    [ "$1" -gt "$(nproc)" ] && first="mpirun -n $1 --bind-to none"
    $first "$KERPLE" train --config "$config" --set train.batch="$2" --set train.micro_batch="$3" --set train.steps="$steps" \
        --set train.log_every=2 --set train.checkpoint_every="$steps" --out "$out" >"$here/log" 2>&1 ||
        { cat "$here/log" >&2; exit 1; }
    of() { tail -n +2 "$out/metrics.jsonl" | grep -o "\"$1\":[0-9.e-]*" | cut -d: -f2 | sort -g | awk '{v[NR]=$1} END {if (NR) print v[int((NR+1)/2)]; else print 0}'; }
    echo "$(of step_seconds) $(of waiting)"
}

echo "$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) cores, $("$KERPLE" --version), $(mpirun --version | head -n 1)"
echo
echo "| ranks | batch | seconds an update | waiting | efficiency | |"
echo "|---|---|---|---|---|---|"
for kind in strong weak; do
    alone=
    for n in "${counts[@]}"; do
        batch=$strong
        [ "$kind" = weak ] && batch=$((n * each))
        read -r seconds waiting <<<"$(measure "$n" "$batch" "$each")"
        : "${alone:=$seconds}"
        share=1
        [ "$kind" = strong ] && share=$n
        awk -v kind="$kind" -v n="$n" -v batch="$batch" -v s="$seconds" -v w="$waiting" -v a="$alone" -v share="$share" \
            'BEGIN { printf "| %d | %d | %.3f | %.1f %% | %.1f %% | %s |\n", n, batch, s, 100 * w, 100 * a / (s * share), kind }'
    done
done
