#!/bin/sh
# Records the scheduler events that `vcoop` replays, as compressed text.
#
#   sudo captures/record.sh [-s SECONDS] [-m tracefs|perf] [-o FILE.gz] [-b KB]
#
# Start the workload first; this script only listens. It needs root (or CAP_PERFMON plus read and
# write access to tracefs) and changes nothing that outlives it: events are recorded in a tracefs
# instance of their own (or by perf), which is removed at the end, also on Ctrl-C.
#
#   -s  seconds to record (default 5)
#   -m  tracefs (default) or perf. Prefer tracefs: its text shows whether a wake-up came from
#       interrupt context, which `perf script` does not print.
#   -o  output (default capture.txt.gz)
#   -b  buffer per CPU in KiB (default 65536; raise it when lost events are reported)
#
# Names of threads and executables are in the file: look before you publish it.
set -eu

seconds=5 method=tracefs out=capture.txt.gz buffer_kb=65536
usage() { sed -n '2,18s/^# \{0,1\}//p' "$0"; }
while getopts s:m:o:b:h opt; do
    case $opt in
    s) seconds=$OPTARG ;;
    m) method=$OPTARG ;;
    o) out=$OPTARG ;;
    b) buffer_kb=$OPTARG ;;
    h) usage; exit 0 ;;
    *) usage >&2; exit 2 ;;
    esac
done

# sched_waking, not sched_wakeup: it fires on the waker's CPU, so it says who woke whom.
events="sched_switch sched_waking sched_wakeup_new sched_process_fork sched_process_exec
        sched_process_exit sched_pi_setprio"

fail() { echo "record.sh: $*" >&2; exit 1; }

case $seconds in
*[!0-9.]* | *.*.* | '' | .) fail "-s takes seconds, like 5 or 0.5, not '$seconds'" ;;
esac
case $buffer_kb in
*[!0-9]* | '') fail "-b takes a number of KiB, like 65536, not '$buffer_kb'" ;;
esac
[ ! -e "$out" ] || [ -f "$out" ] || fail "$out is no regular file"
(: >"$out.part") 2>/dev/null || fail "cannot write $out"
undo=:
trap '$undo; rm -f "$out.part"' EXIT
trap 'exit 130' INT TERM

# Drops padding, and the directories of executables, which are nobody's business.
tidy() { sed -e 's/^ *//' -e 's,filename=[^ ]*/,filename=,'; }

undo_tracefs() { echo 0 >"$inst/tracing_on"; rmdir "$inst"; }

record_tracefs() {
    tracefs=
    for dir in /sys/kernel/tracing /sys/kernel/debug/tracing; do
        [ -d "$dir/instances" ] && tracefs=$dir && break
    done
    [ -n "$tracefs" ] || [ "$(id -u)" = 0 ] || fail "tracefs cannot be read: run it as root"
    [ -n "$tracefs" ] || fail "tracefs is not mounted: mount -t tracefs tracefs /sys/kernel/tracing"
    inst=$tracefs/instances/vcoop.$$
    mkdir "$inst" || fail "cannot create $inst (root needed)"
    undo=undo_tracefs
    echo 0 >"$inst/tracing_on"
    echo "$buffer_kb" >"$inst/buffer_size_kb"
    echo mono >"$inst/trace_clock"
    # A full buffer must drop new events, which is reported, rather than old ones on some CPUs.
    echo 0 >"$inst/options/overwrite"
    for event in $events; do
        echo 1 >"$inst/events/sched/$event/enable" || fail "this kernel has no sched:$event"
    done
    echo 1 >"$inst/tracing_on"
    sleep "$seconds"
    echo 0 >"$inst/tracing_on"
    tidy <"$inst/trace" | gzip -9n >"$out.part"
    for stats in "$inst"/per_cpu/cpu*/stats; do
        if grep -Eq '^(overrun|dropped events): [1-9]' "$stats"; then
            echo "record.sh: events lost (raise -b): $(tr '\n' ' ' <"$stats")" >&2
        fi
    done
}

undo_perf() { rm -f "$data"; }

record_perf() {
    list=$(for event in $events; do printf ',sched:%s' "$event"; done)
    data=$(mktemp)
    undo=undo_perf
    perf record -q -a -k mono -m 4M -e "${list#,}" -o "$data" -- sleep "$seconds"
    perf script -i "$data" --ns --show-lost-events -F comm,tid,cpu,time,event,trace |
        tidy | gzip -9n >"$out.part"
}

case $method in
tracefs) record_tracefs ;;
perf) record_perf ;;
*) fail "-m takes tracefs or perf, not '$method'" ;;
esac
mv "$out.part" "$out"
echo "record.sh: $out: $(gzip -dc "$out" | grep -vc '^#') events, $(wc -c <"$out") bytes" >&2
