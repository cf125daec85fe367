#!/usr/bin/env bash
# Strong and weak scaling over ranks of one thread on this machine, which should do nothing else, and over a slow link between two
# networks of it. Prints a Markdown table: seconds of an update, the share of it that rank 0 waits, and what the model of
# docs/scale-out.md says, given what as many processes as the most ranks take at once, each for itself, for one part and for four.
# Then how much of an exchange of gradients MPI hides behind work that does not call it.
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
build --features kerple/mpi
export KERPLE_THREADS=1
each=4 # sequences of a part
steps=${STEPS:-8}

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
eval_interval = 0
TOML
fi

# Seconds of an update, median over rows of the medians of their updates, and the share that waits. Without the first row.
measure() { # PARTS COMMAND...
    local parts=$1 out; shift
    out=$(mktemp -d "$here/XXXX")
    quiet "$@" "$KERPLE" train --config "$config" --set train.batch_size=$((parts * each)) --set train.micro_batch_size=$each \
        --set train.steps="$steps" --set train.log_every=2 --set train.save_interval="$steps" --out "$out"
    of() { tail -n +2 "$out/metrics.jsonl" | { grep -o "\"$1\":[0-9.e-]*" || echo :0; } | cut -d: -f2 | sort -g |
        awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }
    echo "$(of step_seconds) $(of comm_wait_fraction)"
    parameters=$(grep -Eo '"parameters": ?[0-9]+' "$out/plan.json" | grep -Eo '[0-9]+')
}

# A row of the table: RANKS PARTS BYTES-A-SECOND WHAT COMMAND...
row() {
    local n=$1 parts=$2 speed=$3 what=$4 seconds waiting; shift 4
    read -r seconds waiting < <(measure "$parts" "$@")
    awk -v n="$n" -v parts="$parts" -v speed="$speed" -v what="$what" -v s="$seconds" -v w="$waiting" -v one="$one" -v many="$many" \
        -v gradient=$((4 * parameters)) -v batch=$((parts * each)) 'BEGIN {
            part = (many - one) / 3; rest = one - part
            # strong: against all of the work by one process, divided; otherwise against the work of one rank
            whole = what == "strong" ? (parts * part + rest) / n : parts / n * part + rest
            network = speed ? (parts / n + 1) * (n - 1) / n * gradient / speed : 0
            model = parts / n * part + rest + network
            printf "| %s | %d | %d | %.3f | %.3f | %.1f %% | %.1f %% | %.1f %% | %.1f %% |\n",
                what, n, batch, s, model, 100 * w, 100 * network / model, 100 * whole / s, 100 * whole / model }'
}
local_ranks() { if [ "$1" -gt "$(nproc)" ]; then echo "mpirun -n $1 --bind-to none"; else echo "mpirun -n $1 --bind-to core"; fi; }

# What one of $most processes takes when all work at once: cores share memory, and some are halves of one.
at_once() {
    local other
    for ((other = 1; other < most; other++)); do measure "$1" >/dev/null & done
    measure "$1"
    wait
}
measure 1 >"$here/alone"
at_once 1 >"$here/one"
at_once 4 >"$here/many"
read -r alone _ <"$here/alone"
read -r one _ <"$here/one"
read -r many _ <"$here/many"
echo "$(grep -m1 'model name' /proc/cpuinfo | cut -d: -f2 | xargs), $(nproc) cores, $("$KERPLE" --version), $(mpirun --version | head -n 1)"
echo "$parameters parameters, parts of $each sequences, an update of one part: $alone s by a process that is alone"
echo "$most processes at once, each for itself: $one s an update of one part, $many s of four"
echo
echo "| | ranks | batch | seconds an update | model | waiting | model | efficiency | model |"
echo "|---|---|---|---|---|---|---|---|---|"
for ((n = 2; n <= most; n *= 2)); do row "$n" $((2 * most)) 0 strong $(local_ranks "$n"); done
for ((n = 2; n <= most; n *= 2)); do row "$n" "$n" 0 weak $(local_ranks "$n"); done

# Exchanges 16 MiB, then the same while it works for twice as long, without and with a call of MPI every millisecond.
cat >"$here/hidden.c" <<'C'
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
static double work(double seconds, MPI_Request *request) {
    double begin = MPI_Wtime(), now = begin, asked = begin;
    for (int done; (now = MPI_Wtime()) < begin + seconds;)
        if (request && now > asked + 1e-3) MPI_Test(request, &done, MPI_STATUS_IGNORE), asked = now;
    return begin;
}
int main(int count, char **words) {
    int rank, ranks, chunk;
    MPI_Init(&count, &words);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    chunk = (4 << 20) / ranks;
    float *own = calloc(chunk * ranks, 4), *all = calloc(chunk * ranks, 4);
    double alone = 0, took[2];
    for (int round = 0; round < 2; round++) { // the first opens the connections
        MPI_Barrier(MPI_COMM_WORLD);
        alone = MPI_Wtime();
        MPI_Alltoall(own, chunk, MPI_FLOAT, all, chunk, MPI_FLOAT, MPI_COMM_WORLD);
        alone = MPI_Wtime() - alone;
    }
    MPI_Bcast(&alone, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
    for (int asks = 0; asks < 2; asks++) {
        MPI_Request request;
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Ialltoall(own, chunk, MPI_FLOAT, all, chunk, MPI_FLOAT, MPI_COMM_WORLD, &request);
        double begin = work(2 * alone, asks ? &request : NULL);
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        took[asks] = MPI_Wtime() - begin;
    }
    if (rank == 0)
        printf("an exchange of 16 MiB: %.3f s; hidden behind %.3f s of work: %.0f %%, with a call every millisecond %.0f %%\n", alone,
            2 * alone, 100 * (3 * alone - took[0]) / alone, 100 * (3 * alone - took[1]) / alone);
    return MPI_Finalize();
}
C
mpicc -O2 -o "$here/hidden" "$here/hidden.c"
if two_networks 100mbit; then
    for rate in 100 1000; do
        slow_link "${rate}mbit"
        for parts in 2 8; do row 2 "$parts" $((rate * 1000000 / 8)) "$rate Mbit/s" near_and_far; done
    done
    echo
    for rate in 100 1000; do
        slow_link "${rate}mbit"
        echo "$rate Mbit/s: $(near_and_far "$here/hidden")"
    done
else
    echo "no networks of this machine: nothing was measured over a link" >&2
fi
