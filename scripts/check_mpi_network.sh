#!/usr/bin/env bash
# Two ranks in two networks of this machine, joined by a link of 100 Mbit/s, train a run as one process does; a rank that is killed
# on the far side ends all. DIR holds run.toml, data/ and the run alone/, as scripts/check_mpi.sh makes them. Needs the right to
# make network namespaces; where there is none it says so and checks nothing.
set -euo pipefail
here=$1
near=kerple-near-$$ far=kerple-far-$$
if [ "$(id -u)" != 0 ] || ! command -v ip >/dev/null || ! ip netns add "$near" 2>/dev/null; then
    echo "== two networks: skipped, this machine may make no network namespaces"
    exit 0
fi
trap 'ip netns del "$near"; ip netns del "$far" 2>/dev/null || true' EXIT
ip netns add "$far"
ip link add "kn$$" netns "$near" type veth peer name "kf$$" netns "$far"
for side in "$near kn$$ 10.77.0.1" "$far kf$$ 10.77.0.2"; do
    read -r name link address <<<"$side"
    ip -n "$name" addr add "$address/24" dev "$link"
    ip -n "$name" link set "$link" up
    ip -n "$name" link set lo up
    # 2 MB take a sixth of a second
    ip netns exec "$name" tc qdisc add dev "$link" root tbf rate 100mbit burst 64kbit latency 100ms ||
        echo "   the link of $name is not slowed: this machine has no token bucket"
done

# stands in for ssh: the second machine is the far network, with a name of its own
cat >"$here/far" <<'SH'
#!/usr/bin/env bash
shift
exec ip netns exec "$KERPLE_FAR" unshare --uts bash -c 'hostname far-machine; exec bash -c "$*"' bash "$@"
SH
chmod +x "$here/far"
export KERPLE_FAR=$far
two() {
    ip netns exec "$near" mpirun -n 2 --host 10.77.0.1:1,10.77.0.2:1 --bind-to none \
        --mca plm_rsh_agent "$here/far" --mca btl tcp,self --mca pml ob1 --mca btl_tcp_if_include 10.77.0.0/24 \
        --mca oob_tcp_if_include 10.77.0.0/24 -x KERPLE_FAR "$@"
}

echo "== two networks with 100 Mbit/s between them"
before=$(ip netns exec "$near" cat "/sys/class/net/kn$$/statistics/tx_bytes")
two "$KERPLE" train --config "$here/run.toml" --out "$here/far-run" >"$here/log" 2>&1 || { tail "$here/log"; exit 1; }
sent=$(($(ip netns exec "$near" cat "/sys/class/net/kn$$/statistics/tx_bytes") - before))
for file in model optimizer; do
    cmp "$here"/{alone,far-run}"/checkpoints/step-00000024/$file.safetensors"
done
[ "$sent" -gt 1000000 ] || { echo "FAILED: only $sent bytes went over the link"; exit 1; }
waiting=$(grep -o '"waiting":[0-9.]*' "$here/far-run/metrics.jsonl" | tail -n 1)
echo "   the bits of one process; $((sent / 24)) bytes an update from one rank to the other, $waiting of a step"

echo "== a rank that is killed on the far machine"
two "$KERPLE" train --config "$here/run.toml" --set train.train_len=512 --out "$here/far-killed" >"$here/log" 2>&1 &
job=$!
for _ in $(seq 600); do
    if ls "$here"/far-killed/checkpoints/step-* >/dev/null 2>&1; then break; fi
    sleep 0.1
done
for pid in $(ip netns pids "$far"); do
    if tr '\0' '\n' <"/proc/$pid/environ" | grep -qx OMPI_COMM_WORLD_RANK=1; then kill -KILL "$pid"; fi
done
status=0
timeout 20 tail --pid="$job" -f /dev/null || { echo "FAILED: the near rank waits for the far one"; exit 1; }
wait "$job" || status=$?
grep -Eq "process rank 1 .*on node far-machine|process rank 1 .*on node 10.77.0.2" "$here/log" && [ "$status" != 0 ] ||
    { echo "FAILED: nothing names rank 1 on its machine, exit code $status"; tail "$here/log"; exit 1; }
echo "   ended with $status: $(grep -Eo "process rank 1 .*on node [^ ]*" "$here/log" | head -n 1)"
