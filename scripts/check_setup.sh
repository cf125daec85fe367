# What checks of ranks and of Slurm share; sourced by them. Makes $here, a folder that is away in the end, with prepared text and a
# run file, and names $KERPLE, the program: what is given, or what `build` makes.

here=$(mktemp -d)
# what is undone in the end, last first
undo=("rm -rf $here")
trap 'for ((at = ${#undo[@]} - 1; at >= 0; at--)); do ${undo[at]}; done' EXIT

# Packages, where one of these commands is missing: install COMMANDS PACKAGES
install() {
    local command
    for command in $1; do
        command -v "$command" >/dev/null && continue
        apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $2
        return
    done
}

# The program with these features. The whole workspace at once, so that dependencies are built as they are everywhere else.
build() {
    [ -n "${KERPLE:-}" ] && return
    cargo build --release --locked --workspace --bins "$@"
    KERPLE=${CARGO_TARGET_DIR:-$PWD/target}/release/kerple
    export KERPLE
}

say() { printf '   %s\n' "$*"; }
logs=("$here/log")
fail() { printf 'FAILED: %s\n' "$*" >&2; tail -n 30 "${logs[@]}" >&2 || true; exit 1; }

# A command whose output is only seen when it fails.
quiet() { "$@" >"$here/log" 2>&1 || fail "exit code $?: $*"; }

# Waits until a command succeeds, at most so many seconds.
within() {
    local limit=$1 _; shift
    for _ in $(seq $((limit * 10))); do if "$@"; then return; fi; sleep 0.1; done
    fail "not within $limit s: $*"
}

# Waits for a job in the background and leaves its exit code in $status, or `hangs` after so many seconds.
ended() {
    local limit=$1 job=$2 _
    status=0
    for _ in $(seq $((limit * 10))); do
        if ! kill -0 "$job" 2>/dev/null; then wait "$job" || status=$?; return; fi
        sleep 0.1
    done
    status=hangs
}

# One process of one thread, of which others are to have the files.
one() { quiet env -u KERPLE_THREADS "$KERPLE" "$@" --threads 1; }

# Two runs have the same files to the byte, all but times, a checksum of these, TensorBoard's files, and who trained.
same_run() {
    local file
    [ "$(files "$1")" = "$(files "$2")" ] || fail "not the same files: $(diff <(files "$1") <(files "$2"))"
    while read -r file; do
        cmp <(timeless "$1/$file") <(timeless "$2/$file") || fail "$2/$file differs"
    done < <(files "$1")
}
files() { (cd "$1" && find . -type f ! -path './events/*' ! -name sessions.jsonl ! -name .lock | sort); }
timeless() {
    case $1 in
        *.json | *.jsonl) sed -E 's/"(seconds|step_seconds|comm_wait_fraction|threads|sha256)": ?[^,}]*,?//g' "$1" ;;
        *) cat "$1" ;;
    esac
}

# Text and a run file, of an update every few milliseconds. 12 sequences are shared by 1, 2, 3 and 4 ranks.
make_run() {
    quiet "$KERPLE" prepare --input docs/*.md --out "$here/data"
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
batch_size = 12
micro_batch_size = 1
steps = 24
learning_rate = 3e-3
log_every = 3
eval_interval = 6
eval_sequences = 300
save_interval = 6
TOML
}
# for a run that is met while it works
slow=(--set train.train_len=512 --set train.save_interval=2)

# Open MPI, and what the program needs to be built with it.
install_mpi() {
    install 'mpirun mpicc' 'openmpi-bin libopenmpi-dev'
    # libclang-cpp, which drivers of graphics bring, is another library
    ls /usr/lib/llvm-*/lib/libclang.so* >/dev/null 2>&1 || install - libclang-dev
    # containers run as root, and laptops have fewer cores than ranks
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
}
ranks() { local n=$1; shift; mpirun -n "$n" --bind-to none "$@"; }

# The process of a rank among these processes.
rank_among() {
    local rank=$1 pid; shift
    for pid in "$@"; do
        if tr '\0' '\n' 2>/dev/null <"/proc/$pid/environ" | grep -qx "OMPI_COMM_WORLD_RANK=$rank"; then echo "$pid"; return; fi
    done
}
# The newest checkpoint of a run, and whether there is another one than this.
newest() { { ls "$1/checkpoints" 2>/dev/null || true; } | tail -n 1; }
has_newer() { [ "$(newest "$1")" != "$2" ]; }
# The share of an update that the first of several ranks waited, by the last row of a run.
waiting() { grep -o '"comm_wait_fraction":[0-9.]*' "$1/metrics.jsonl" | tail -n 1 | cut -d: -f2; }

# Two networks of this machine, $near and $far, with a slow link between them; a machine that makes none says why, and it fails.
two_networks() {
    local rate=$1 name link address
    near=kerple-near-$$ far=kerple-far-$$
    install 'ip tc' iproute2 >&2
    ip netns add "$near" || return
    undo+=("ip netns del $near")
    ip netns add "$far"
    undo+=("ip netns del $far")
    ip link add "kn$$" netns "$near" type veth peer name "kf$$" netns "$far"
    for name in "$near kn$$ 10.77.0.1" "$far kf$$ 10.77.0.2"; do
        read -r name link address <<<"$name"
        ip -n "$name" addr add "$address/24" dev "$link"
        ip -n "$name" link set "$link" up
        ip -n "$name" link set lo up
    done
    # stands in for ssh: the second machine is the far network, with a name of its own
    cat >"$here/far" <<'SH'
#!/usr/bin/env bash
shift
exec ip netns exec "$KERPLE_FAR" unshare --uts bash -c 'hostname far-machine; exec bash -c "$*"' bash "$@"
SH
    chmod +x "$here/far"
    export KERPLE_FAR=$far
    slow_link "$rate"
}
slow_link() {
    ip netns exec "$near" tc qdisc replace dev "kn$$" root tbf rate "$1" burst 64kbit latency 100ms &&
        ip netns exec "$far" tc qdisc replace dev "kf$$" root tbf rate "$1" burst 64kbit latency 100ms
}
# The bytes that the near one has sent.
sent() { ip netns exec "$near" cat "/sys/class/net/kn$$/statistics/tx_bytes"; }
# A rank in each.
near_and_far() {
    ip netns exec "$near" mpirun -n 2 --host 10.77.0.1:1,10.77.0.2:1 --bind-to none \
        --mca plm_rsh_agent "$here/far" --mca btl tcp,self --mca pml ob1 --mca btl_tcp_if_include 10.77.0.0/24 \
        --mca oob_tcp_if_include 10.77.0.0/24 -x KERPLE_FAR "$@"
}
