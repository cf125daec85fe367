#!/usr/bin/env bash
# A whole Slurm on this machine, to try a cluster without one: `eval "$(scripts/slurm_here.sh start DIR)"`, then sbatch, squeue and
# srun as ever, then `scripts/slurm_here.sh stop DIR`. Needs root, and nothing of systemd or control groups; DIR holds its state,
# logs and process ids.
set -euo pipefail
[ $# = 2 ] || { echo "usage: slurm_here.sh start|stop DIR" >&2; exit 2; }
what=$1
mkdir -p "$2"
dir=$(cd "$2" && pwd)

stop() {
    local name second
    export SLURM_CONF=$dir/slurm.conf
    for second in $(seq 10); do
        squeue --noheader --format=%A 2>/dev/null | xargs -r scancel --quiet && [ -n "$(squeue --noheader 2>/dev/null)" ] || break
        sleep 1
    done
    for name in slurmd slurmctld munged; do
        [ -f "$dir/$name.pid" ] || continue
        kill "$(cat "$dir/$name.pid")" 2>/dev/null || true
        timeout 10 tail --pid="$(cat "$dir/$name.pid")" -f /dev/null || true
        rm -f "$dir/$name.pid"
    done
}

start() {
    if ! command -v slurmctld >/dev/null || ! command -v slurmd >/dev/null || ! command -v sbatch >/dev/null; then
        (apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends slurmctld slurmd slurm-client munge) >&2
    fi
    mkdir -p "$dir/state" "$dir/spool" /run/munge
    chown munge /run/munge
    [ -s /etc/munge/munge.key ] || mungekey --create
    chown munge /etc/munge/munge.key
    if ! munge -n >/dev/null 2>&1; then
        runuser -u munge -- munged --foreground >"$dir/munged.log" 2>&1 &
        echo $! >"$dir/munged.pid"
    fi
    local machine cores
    machine=$(hostname -s)
    cores=$(nproc)
    cat >"$dir/slurm.conf" <<CONF
ClusterName=here
SlurmctldHost=$machine(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/state/slurmctld.pid
SlurmdPidFile=$dir/state/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=30
SchedulerParameters=sched_interval=2
NodeName=$machine NodeAddr=127.0.0.1 CPUs=$cores State=UNKNOWN
PartitionName=main Nodes=$machine Default=YES MaxTime=INFINITE State=UP
CONF
    export SLURM_CONF=$dir/slurm.conf
    slurmctld -D >"$dir/slurmctld.out" 2>&1 &
    echo $! >"$dir/slurmctld.pid"
    slurmd -D >"$dir/slurmd.out" 2>&1 &
    echo $! >"$dir/slurmd.pid"
    local second
    for second in $(seq 60); do
        if sinfo --noheader --format=%T 2>/dev/null | grep -q idle; then
            echo "export SLURM_CONF=$dir/slurm.conf"
            return
        fi
        sleep 1
    done
    echo "no node is idle after $second seconds" >&2
    tail -n 20 "$dir"/slurm*.log "$dir"/munged.log >&2 2>/dev/null || true
    stop
    exit 1
}

case $what in
    start) start ;;
    stop) stop ;;
    *) echo "usage: slurm_here.sh start|stop DIR" >&2; exit 2 ;;
esac
