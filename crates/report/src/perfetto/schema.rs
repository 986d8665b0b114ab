//! The part of Perfetto's trace format that is used: fields and numbers as in its public schema
//! (`protos/perfetto/trace/perfetto_trace.proto` in Perfetto's repository).

use prost::{Enumeration, Message, Oneof};

/// Declares messages as a file of the schema does: each field by its kind and number.
macro_rules! messages {
    ($(
        $(#[$about:meta])*
        $name:ident { $( $(#[$doc:meta])* [$($kind:tt)+] $field:ident: $type:ty ),+ $(,)? }
    )+) => {$(
        $(#[$about])*
        #[derive(Clone, PartialEq, Eq, Hash, Message)]
        pub(super) struct $name { $( $(#[$doc])* #[prost($($kind)+)] pub(super) $field: $type, )+ }
    )+};
}

messages! {
    /// A file: packets, one after the other. The writer never holds all of it.
    #[cfg(test)]
    Trace {
        [message, repeated, tag = "1"] packet: Vec<TracePacket>,
    }

    /// One packet.
    TracePacket {
        /// Nanoseconds.
        [uint64, optional, tag = "8"] timestamp: Option<u64>,
        /// The writer: interned names belong to one sequence.
        [uint32, optional, tag = "10"] trusted_packet_sequence_id: Option<u32>,
        [message, optional, tag = "12"] interned_data: Option<InternedData>,
        /// 1: interned names start again, 2: needs interned names.
        [uint32, optional, tag = "13"] sequence_flags: Option<u32>,
        [oneof = "Data", tags = "1, 2, 11, 60"] data: Option<Data>,
    }

    /// Kernel events of one CPU, in order.
    FtraceEventBundle {
        [uint32, optional, tag = "1"] cpu: Option<u32>,
        [message, repeated, tag = "2"] event: Vec<FtraceEvent>,
    }

    /// A kernel event.
    FtraceEvent {
        /// Nanoseconds.
        [uint64, optional, tag = "1"] timestamp: Option<u64>,
        /// Thread that it happened in.
        [uint32, optional, tag = "2"] pid: Option<u32>,
        [oneof = "KernelEvent", tags = "4, 20"] event: Option<KernelEvent>,
    }

    /// A CPU changes threads.
    SchedSwitch {
        [string, optional, tag = "1"] prev_comm: Option<String>,
        [int32, optional, tag = "2"] prev_pid: Option<i32>,
        [int32, optional, tag = "3"] prev_prio: Option<i32>,
        /// 0: can still run, 1: sleeps, 32: gone.
        [int64, optional, tag = "4"] prev_state: Option<i64>,
        [string, optional, tag = "5"] next_comm: Option<String>,
        [int32, optional, tag = "6"] next_pid: Option<i32>,
        [int32, optional, tag = "7"] next_prio: Option<i32>,
    }

    /// A thread is woken.
    SchedWaking {
        [string, optional, tag = "1"] comm: Option<String>,
        [int32, optional, tag = "2"] pid: Option<i32>,
        [int32, optional, tag = "3"] prio: Option<i32>,
        [int32, optional, tag = "4"] success: Option<i32>,
        [int32, optional, tag = "5"] target_cpu: Option<i32>,
    }

    /// Processes and threads by name.
    ProcessTree {
        [message, repeated, tag = "1"] processes: Vec<Process>,
        [message, repeated, tag = "2"] threads: Vec<Thread>,
    }

    /// A thread.
    Thread {
        [int32, optional, tag = "1"] tid: Option<i32>,
        [string, optional, tag = "2"] name: Option<String>,
        [int32, optional, tag = "3"] tgid: Option<i32>,
    }

    /// A process.
    Process {
        [int32, optional, tag = "1"] pid: Option<i32>,
        [int32, optional, tag = "2"] ppid: Option<i32>,
        [string, repeated, tag = "3"] cmdline: Vec<String>,
    }

    /// A row of the timeline.
    TrackDescriptor {
        [uint64, optional, tag = "1"] uuid: Option<u64>,
        [string, optional, tag = "2"] name: Option<String>,
        [message, optional, tag = "3"] process: Option<ProcessDescriptor>,
        [message, optional, tag = "4"] thread: Option<ThreadDescriptor>,
        [uint64, optional, tag = "5"] parent_uuid: Option<u64>,
        [message, optional, tag = "8"] counter: Option<CounterDescriptor>,
    }

    /// The row of a process.
    ProcessDescriptor {
        [int32, optional, tag = "1"] pid: Option<i32>,
        [string, optional, tag = "6"] process_name: Option<String>,
    }

    /// The row of a thread.
    ThreadDescriptor {
        [int32, optional, tag = "1"] pid: Option<i32>,
        [int32, optional, tag = "2"] tid: Option<i32>,
        [string, optional, tag = "5"] thread_name: Option<String>,
    }

    /// The row of a counter.
    #[derive(Copy)]
    CounterDescriptor {
        [enumeration = "Unit", optional, tag = "3"] unit: Option<i32>,
    }

    /// A slice begins or ends, something happens, or a counter has a value.
    TrackEvent {
        [uint64, repeated, packed = "false", tag = "3"] category_iids: Vec<u64>,
        [message, repeated, tag = "4"] debug_annotations: Vec<DebugAnnotation>,
        [enumeration = "Type", optional, tag = "9"] r#type: Option<i32>,
        [uint64, optional, tag = "10"] name_iid: Option<u64>,
        [uint64, optional, tag = "11"] track_uuid: Option<u64>,
        [string, optional, tag = "23"] name: Option<String>,
        [int64, optional, tag = "30"] counter_value: Option<i64>,
        [fixed64, repeated, packed = "false", tag = "47"] flow_ids: Vec<u64>,
        [fixed64, repeated, packed = "false", tag = "48"] terminating_flow_ids: Vec<u64>,
    }

    /// A fact about an event.
    DebugAnnotation {
        [uint64, optional, tag = "3"] uint_value: Option<u64>,
        [string, optional, tag = "6"] string_value: Option<String>,
        [string, optional, tag = "10"] name: Option<String>,
    }

    /// Names by number.
    InternedData {
        [message, repeated, tag = "1"] event_categories: Vec<InternedName>,
        [message, repeated, tag = "2"] event_names: Vec<InternedName>,
    }

    /// A name and its number.
    InternedName {
        [uint64, optional, tag = "1"] iid: Option<u64>,
        [string, optional, tag = "2"] name: Option<String>,
    }
}

/// Content of a packet.
#[derive(Clone, PartialEq, Eq, Hash, Oneof)]
pub(super) enum Data {
    #[prost(message, tag = "1")]
    FtraceEvents(FtraceEventBundle),
    #[prost(message, tag = "2")]
    ProcessTree(ProcessTree),
    #[prost(message, tag = "11")]
    TrackEvent(TrackEvent),
    #[prost(message, tag = "60")]
    TrackDescriptor(TrackDescriptor),
}

/// Kind of a kernel event.
#[derive(Clone, PartialEq, Eq, Hash, Oneof)]
pub(super) enum KernelEvent {
    #[prost(message, tag = "4")]
    SchedSwitch(SchedSwitch),
    #[prost(message, tag = "20")]
    SchedWaking(SchedWaking),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Enumeration)]
#[repr(i32)]
pub(super) enum Unit {
    Unspecified = 0,
    TimeNs = 1,
    Count = 2,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Enumeration)]
#[repr(i32)]
pub(super) enum Type {
    Unspecified = 0,
    SliceBegin = 1,
    SliceEnd = 2,
    Instant = 3,
    Counter = 4,
}
