//! Packets of a trace on their way into a file. Buffers have a fixed size, however long the trace is.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::schema::{
    Data, DebugAnnotation, FtraceEvent, FtraceEventBundle, InternedData, InternedName, KernelEvent,
    TracePacket, TrackDescriptor, TrackEvent, Type,
};

/// The only sequence of packets in the file.
const SEQUENCE: u32 = 1;

/// `SEQ_INCREMENTAL_STATE_CLEARED` and `SEQ_NEEDS_INCREMENTAL_STATE`.
const CLEARED: u32 = 1;
const NEEDS_NAMES: u32 = 2;

/// Kernel events of one CPU that are written together.
const BUNDLE: usize = 256;

/// Writes packets. After the first error later packets are dropped, and [`finish`](Self::finish) returns the error.
#[derive(Debug)]
pub(super) struct Packets<W> {
    out: W,
    error: Option<io::Error>,
    started: bool,
    events: BTreeMap<String, u64>,
    categories: BTreeMap<&'static str, u64>,
    /// Kernel events by CPU that are not written yet.
    bundles: Vec<Vec<FtraceEvent>>,
    buffer: Vec<u8>,
    bytes: u64,
    packets: u64,
}

/// Properties of an event on a track, besides place and time.
#[derive(Debug, Default)]
pub(super) struct Facts<'a> {
    /// Category, in a few words.
    pub(super) category: &'static str,
    pub(super) name: &'a str,
    /// Arrows that go on from here.
    pub(super) flow: Option<u64>,
    /// Arrow that ends here.
    pub(super) flow_ends: Option<u64>,
    pub(super) notes: Vec<DebugAnnotation>,
    /// The name is unique: it is not interned.
    pub(super) single: bool,
}

impl<W: Write> Packets<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            error: None,
            started: false,
            events: BTreeMap::new(),
            categories: BTreeMap::new(),
            bundles: Vec::new(),
            buffer: Vec::new(),
            bytes: 0,
            packets: 0,
        }
    }

    /// Sets the number of CPUs with kernel events.
    pub(super) fn cpus(&mut self, cpus: usize) {
        self.bundles.resize_with(cpus, || Vec::with_capacity(BUNDLE));
    }

    pub(super) fn describe(&mut self, track: TrackDescriptor) {
        self.write(TracePacket { data: Some(Data::TrackDescriptor(track)), ..packet() });
    }

    /// Writes a packet that is not about a track.
    pub(super) fn data(&mut self, data: Data) {
        self.write(TracePacket { data: Some(data), ..packet() });
    }

    /// Writes the begin of a slice, or an instant event, on a track.
    pub(super) fn event(&mut self, track: u64, at: u64, r#type: Type, facts: Facts<'_>) {
        let mut new = InternedData::default();
        let mut event = TrackEvent {
            r#type: Some(r#type as i32),
            track_uuid: Some(track),
            flow_ids: facts.flow.into_iter().collect(),
            terminating_flow_ids: facts.flow_ends.into_iter().collect(),
            debug_annotations: facts.notes,
            ..TrackEvent::default()
        };
        let next = self.categories.len() as u64 + 1;
        let iid = *self.categories.entry(facts.category).or_insert_with(|| {
            let name = Some(facts.category.to_owned());
            new.event_categories.push(InternedName { iid: Some(next), name });
            next
        });
        event.category_iids.push(iid);
        if facts.single {
            event.name = Some(facts.name.to_owned());
        } else {
            event.name_iid = Some(self.name(facts.name, &mut new));
        }
        let news = !new.event_categories.is_empty() || !new.event_names.is_empty();
        self.write(TracePacket {
            timestamp: Some(at),
            data: Some(Data::TrackEvent(event)),
            interned_data: news.then_some(new),
            ..packet()
        });
    }

    /// The number of a name.
    fn name(&mut self, name: &str, new: &mut InternedData) -> u64 {
        if let Some(iid) = self.events.get(name) {
            return *iid;
        }
        let iid = self.events.len() as u64 + 1;
        self.events.insert(name.to_owned(), iid);
        new.event_names.push(InternedName { iid: Some(iid), name: Some(name.to_owned()) });
        iid
    }

    /// The innermost slice of a track ends.
    pub(super) fn end(&mut self, track: u64, at: u64) {
        self.plain(
            at,
            Type::SliceEnd,
            TrackEvent { track_uuid: Some(track), ..TrackEvent::default() },
        );
    }

    /// A counter has another value.
    pub(super) fn counter(&mut self, track: u64, at: u64, value: u64) {
        let counter_value = Some(value as i64);
        let event = TrackEvent { track_uuid: Some(track), counter_value, ..TrackEvent::default() };
        self.plain(at, Type::Counter, event);
    }

    fn plain(&mut self, at: u64, r#type: Type, event: TrackEvent) {
        let event = TrackEvent { r#type: Some(r#type as i32), ..event };
        self.write(TracePacket {
            timestamp: Some(at),
            data: Some(Data::TrackEvent(event)),
            ..packet()
        });
    }

    /// A kernel event of a CPU.
    pub(super) fn kernel(&mut self, cpu: u32, at: u64, tid: u32, event: KernelEvent) {
        let bundle = &mut self.bundles[cpu as usize];
        bundle.push(FtraceEvent { timestamp: Some(at), pid: Some(tid), event: Some(event) });
        if bundle.len() == BUNDLE {
            self.flush_bundle(cpu);
        }
    }

    fn flush_bundle(&mut self, cpu: u32) {
        let event = std::mem::take(&mut self.bundles[cpu as usize]);
        if event.is_empty() {
            return;
        }
        self.data(Data::FtraceEvents(FtraceEventBundle { cpu: Some(cpu), event }));
    }

    fn write(&mut self, mut packet: TracePacket) {
        if self.error.is_some() {
            return;
        }
        if !std::mem::replace(&mut self.started, true) {
            packet.sequence_flags = Some(CLEARED | NEEDS_NAMES);
        }
        // As field 1 of the trace: a file is one message, which is never held as a whole.
        self.buffer.clear();
        prost::encoding::message::encode(1, &packet, &mut self.buffer);
        self.bytes += self.buffer.len() as u64;
        self.packets += 1;
        self.error = self.out.write_all(&self.buffer).err();
    }

    /// Writes the buffers.
    ///
    /// # Errors
    ///
    /// The first error of the file.
    pub(super) fn finish(mut self) -> io::Result<(u64, u64, W)> {
        for cpu in 0..self.bundles.len() as u32 {
            self.flush_bundle(cpu);
        }
        if let Some(error) = self.error {
            return Err(error);
        }
        self.out.flush()?;
        Ok((self.packets, self.bytes, self.out))
    }
}

fn packet() -> TracePacket {
    TracePacket {
        trusted_packet_sequence_id: Some(SEQUENCE),
        sequence_flags: Some(NEEDS_NAMES),
        ..TracePacket::default()
    }
}

/// An annotation with a number.
pub(super) fn number(name: &str, value: u64) -> DebugAnnotation {
    let name = Some(name.to_owned());
    DebugAnnotation { name, uint_value: Some(value), ..DebugAnnotation::default() }
}

/// An annotation with text.
pub(super) fn text(name: &str, value: &str) -> DebugAnnotation {
    let (name, string_value) = (Some(name.to_owned()), Some(value.to_owned()));
    DebugAnnotation { name, string_value, ..DebugAnnotation::default() }
}
