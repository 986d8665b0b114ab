"""Reads a trace with Perfetto's own schema: exit 77 where that is not installed."""
import sys

try:
    from google.protobuf.unknown_fields import UnknownFieldSet
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as pb
except ImportError as why:
    print(why)
    sys.exit(77)

trace = pb.Trace()
with open(sys.argv[1], "rb") as file:
    trace.ParseFromString(file.read())

# tracefs tells of the host's scheduler and the lab of boosts: there are no arrows into guests.
live = sys.argv[2:] == ["live"]
names, tracks, open_slices, last, boosts = {}, {}, {}, {}, 0
switches, flows, ended, slices, threads = {}, set(), 0, 0, set()
for packet in trace.packet:
    assert packet.trusted_packet_sequence_id == 1
    for name in packet.interned_data.event_names:
        names[name.iid] = name.name
    kind = packet.WhichOneof("data")
    if kind == "track_descriptor":
        track = packet.track_descriptor
        assert track.uuid not in tracks
        assert not track.parent_uuid or track.parent_uuid in tracks, "a parent comes first"
        tracks[track.uuid] = track
    elif kind == "process_tree":
        threads |= {t.tid for t in packet.process_tree.threads}
    elif kind == "track_event":
        event, uuid = packet.track_event, packet.track_event.track_uuid
        assert uuid in tracks
        assert packet.timestamp >= last.get(uuid, 0), "time goes back"
        last[uuid] = packet.timestamp
        assert not event.name_iid or event.name_iid in names
        flows |= set(event.flow_ids)
        assert set(event.terminating_flow_ids) <= flows
        ended += len(event.terminating_flow_ids)
        if event.type == event.TYPE_SLICE_BEGIN:
            slices += 1
            boosts += (event.name or names.get(event.name_iid)) == "boosted"
            open_slices[uuid] = open_slices.get(uuid, 0) + 1
        elif event.type == event.TYPE_SLICE_END:
            open_slices[uuid] -= 1
            assert open_slices[uuid] >= 0, "a slice ends that did not begin"
    elif kind == "ftrace_events":
        for event in packet.ftrace_events.event:
            if event.WhichOneof("event") == "sched_switch":
                switch = event.sched_switch
                switches.setdefault(packet.ftrace_events.cpu, []).append(
                    (event.timestamp, switch.prev_pid, switch.next_pid)
                )
                assert switch.next_pid == 0 or switch.next_pid in threads
            else:
                assert event.WhichOneof("event") == "sched_waking"
    else:
        raise AssertionError(f"unknown packet {kind}")
    assert len(UnknownFieldSet(packet)) == 0, "a field that the public schema does not have"
assert all(n == 0 for n in open_slices.values())
for cpu, list_ in switches.items():
    for one, next_ in zip(list_, list_[1:]):
        assert one[0] <= next_[0] and one[2] == next_[1], (cpu, one, next_)
assert slices and switches
assert boosts if live else ended
print(
    f"{len(trace.packet)} packets, {slices} slices, {boosts} boosts, {ended} arrows, {len(switches)} CPUs"
)
