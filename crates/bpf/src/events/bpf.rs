//! Loads and serves the programs of `bpf/events.bpf.c`.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::{
    Link, MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder, RingBuffer, RingBufferBuilder,
};
use vcoop_policy::Injection;
use vcoop_threads::Ns;

use super::{Event, EventKind, WatchedVcpu};
use crate::Unsupported;
use crate::object::{know_threads, map, may_read};

/// The programs, compiled by the build script.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/events.bpf.o"));

/// Ways to get interrupts, the best first: name, and the programs that it needs.
const WAYS: [(&str, &[&str]); 2] = [
    ("fentry of KVM", &["timer_expired", "accept_irq", "entered"]),
    ("kvm_apic_accept_irq", &["accepted"]),
];

/// The program that reports sleeps.
const SWITCHED: &str = "switched";

/// The program for sleeps has the arguments that its tracepoint has since 5.18.
const REMEDY: &str = "run as root on Linux 5.18 or later with BTF, after kvm is loaded";

/// Flags of the map of threads, as in the programs.
const SLEEPS: u32 = 1;
const INTERRUPTS: u32 = 2;

/// Bytes of an event.
const EVENT: usize = 32;
/// Bytes of `struct state`, whose first member says whether the thread sleeps.
const STATE: usize = 16;
/// Maximum number of events taken at once, so that the caller can do other work.
const MOST_TAKEN: usize = 256;

/// A watched thread.
#[derive(Debug, Default)]
struct WatchedThread {
    wants: u32,
    /// Its key in the map of vCPUs.
    apic: Option<[u8; 8]>,
}

/// Events of threads, reported by BPF.
pub struct Events {
    /// How interrupts are reported.
    interrupts: Result<(&'static str, &'static [&'static str]), Unsupported>,
    watched: BTreeMap<i32, WatchedThread>,
    object: Object,
    threads: MapHandle,
    states: MapHandle,
    apics: MapHandle,
    untaken: MapHandle,
    events: MapHandle,
    ring: RingBuffer<'static>,
    heard: Arc<Mutex<Vec<Event>>>,
    /// The attached programs: none while no thread is watched, because they run for the whole host.
    links: Vec<Link>,
}

impl fmt::Debug for Events {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (interrupts, watched) = (&self.interrupts, &self.watched);
        f.debug_struct("Events")
            .field("interrupts", interrupts)
            .field("watched", watched)
            .finish_non_exhaustive()
    }
}

impl Events {
    /// Loads the programs, with the best way to report interrupts that this kernel has.
    ///
    /// # Errors
    ///
    /// The kernel cannot even report sleeps, this process lacks permission, or it is in its own PID namespace.
    pub fn open() -> Result<Self, Unsupported> {
        libbpf_rs::set_print(None);
        know_threads()?;
        may_read()?;
        let mut why = Vec::new();
        for way in WAYS {
            match Self::load(Ok(way)) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => why.push(format!("{}: {error}", way.0)),
            }
        }
        let without = Unsupported {
            what: format!("BPF cannot report KVM's events: {}", why.join("; ")),
            remedy: REMEDY,
        };
        // Every way reports sleeps, too: this is why they failed.
        Self::load(Err(without)).map_err(|error| Unsupported {
            what: format!("BPF cannot report sleeps of threads: {error}"),
            remedy: REMEDY,
        })
    }

    fn load(
        interrupts: Result<(&'static str, &'static [&'static str]), Unsupported>,
    ) -> Result<Self, libbpf_rs::Error> {
        let mut loaded = Self::with(interrupts)?;
        // Attached now as a test: a way that cannot be attached does not count.
        let programs = loaded.interrupts.as_ref().map_or(&[][..], |way| way.1);
        loaded.attach(&[&[SWITCHED], programs].concat())?;
        loaded.links.clear();
        Ok(loaded)
    }

    /// As [`open`](Self::open), without the test.
    fn with(
        interrupts: Result<(&'static str, &'static [&'static str]), Unsupported>,
    ) -> Result<Self, libbpf_rs::Error> {
        let mut object = ObjectBuilder::default().open_memory(OBJECT)?;
        let programs = interrupts.as_ref().map_or(&[][..], |way| way.1);
        for mut program in object.progs_mut() {
            let name = program.name();
            let wanted = name == SWITCHED || programs.iter().any(|wanted| name == *wanted);
            program.set_autoload(wanted);
        }
        let object = object.load()?;
        let heard = Arc::new(Mutex::new(Vec::new()));
        let mut builder = RingBufferBuilder::new();
        let into = heard.clone();
        let events = map(&object, "ring")?;
        builder.add(&events, move |bytes| {
            into.lock().unwrap_or_else(PoisonError::into_inner).extend(event(bytes));
            0
        })?;
        let ring = builder.build()?;
        let [threads, states, apics, untaken] =
            ["threads", "states", "apics", "untaken"].map(|name| map(&object, name));
        Ok(Self {
            interrupts,
            watched: BTreeMap::new(),
            object,
            threads: threads?,
            states: states?,
            apics: apics?,
            untaken: untaken?,
            events,
            ring,
            heard,
            links: Vec::new(),
        })
    }

    /// Attaches all of some programs, or none.
    fn attach(&mut self, programs: &[&str]) -> Result<(), libbpf_rs::Error> {
        let wanted =
            self.object.progs_mut().filter(|p| programs.iter().any(|name| p.name() == *name));
        let links = wanted.map(|program| program.attach()).collect::<Result<Vec<_>, _>>()?;
        self.links.extend(links);
        Ok(())
    }

    /// The way in which interrupts are reported.
    ///
    /// # Errors
    ///
    /// Why they are not reported.
    pub fn interrupts(&self) -> Result<&'static str, &Unsupported> {
        self.interrupts.as_ref().map(|way| way.0)
    }

    /// The file descriptor that becomes readable when there is something to [`take`](Self::take).
    pub fn ready(&self) -> BorrowedFd<'_> {
        // Not libbpf's epoll descriptor, because then each event would have to go through libbpf as well.
        self.events.as_fd()
    }

    /// Watches a thread, to know whether it sleeps. `asleep` returns whether it sleeps, and is called after the watch
    /// has begun.
    ///
    /// # Errors
    ///
    /// There are too many watched threads.
    pub fn watch(&mut self, tid: i32, asleep: impl FnOnce() -> bool) -> Result<(), Unsupported> {
        let failed = |error| Unsupported {
            what: format!("thread {tid} is not watched: {error}"),
            remedy: "apply policies to fewer vCPUs at a time",
        };
        if self.links.is_empty() {
            self.attach(&[SWITCHED]).map_err(failed)?;
        }
        self.watched.insert(tid, WatchedThread::default());
        // A state of an earlier thread with this id may remain, from a switch while that was being forgotten.
        self.delete(tid);
        self.say(tid).map_err(failed)?;
        let mut state = [0; STATE];
        state[0] = u8::from(asleep());
        // A state that the program has stored since is newer.
        match self.states.update(&tid.to_ne_bytes(), &state, MapFlags::NO_EXIST) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::AlreadyExists => Err(failed(error)),
            _ => Ok(()),
        }
    }

    /// Updates the program's flags of a thread.
    fn say(&self, tid: i32) -> Result<(), libbpf_rs::Error> {
        let Some(watched) = self.watched.get(&tid) else { return Ok(()) };
        self.threads.update(&tid.to_ne_bytes(), &watched.wants.to_ne_bytes(), MapFlags::ANY)
    }

    /// Reports a vCPU's interrupts from now on. Its thread is watched.
    ///
    /// # Errors
    ///
    /// Interrupts are not reported here, or there are too many vCPUs.
    pub fn hear_interrupts(&mut self, vcpu: WatchedVcpu) -> Result<&'static str, Unsupported> {
        let (name, programs) = self.interrupts.clone()?;
        let failed = |error| Unsupported {
            what: format!("BPF cannot report interrupts of thread {}: {error}", vcpu.tid),
            remedy: "apply policies to fewer vCPUs at a time",
        };
        // Only the program for sleeps is attached.
        if self.links.len() == 1 {
            self.attach(programs).map_err(failed)?;
        }
        self.name(vcpu).map_err(failed)?;
        Ok(name)
    }

    /// Adds a vCPU whose interrupts the programs report.
    fn name(&mut self, vcpu: WatchedVcpu) -> Result<(), libbpf_rs::Error> {
        let mut apic = [0; 8];
        apic[..4].copy_from_slice(&vcpu.process.to_ne_bytes());
        apic[4..].copy_from_slice(&vcpu.apic.to_ne_bytes());
        self.apics.update(&apic, &vcpu.tid.to_ne_bytes(), MapFlags::ANY)?;
        let watched = self.watched.entry(vcpu.tid).or_default();
        watched.wants |= INTERRUPTS;
        watched.apic = Some(apic);
        self.say(vcpu.tid)
    }

    /// Stops watching a thread.
    pub fn forget(&mut self, tid: i32) {
        let Some(watched) = self.watched.remove(&tid) else { return };
        // A missing entry is no error.
        let _ = self.threads.delete(&tid.to_ne_bytes());
        self.delete(tid);
        let _ = watched.apic.map(|apic| self.apics.delete(&apic));
        if self.watched.is_empty() {
            self.links.clear();
        }
    }

    /// Deletes what the programs have noted of a thread.
    fn delete(&self, tid: i32) {
        for map in [&self.states, &self.untaken] {
            let _ = map.delete(&tid.to_ne_bytes());
        }
    }

    /// Whether a watched thread sleeps.
    pub fn is_asleep(&self, tid: i32) -> bool {
        let known = self.states.lookup(&tid.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        known.is_some_and(|state| state[0] != 0)
    }

    /// Starts or stops reporting a watched thread's sleeps.
    pub fn hear_sleeps(&mut self, tid: i32, wanted: bool) {
        let Some(watched) = self.watched.get_mut(&tid) else { return };
        let wants = watched.wants & !SLEEPS | if wanted { SLEEPS } else { 0 };
        if std::mem::replace(&mut watched.wants, wants) != wants {
            // Its entry exists, so there is room.
            let _ = self.say(tid);
        }
    }

    /// The watched threads.
    pub fn watched(&self) -> impl Iterator<Item = i32> {
        self.watched.keys().copied()
    }

    /// The events since the last call, in order, up to a maximum number, and whether there may be more. Later events
    /// make [`ready`](Self::ready) readable again; events left over do not.
    pub fn take(&mut self) -> (Vec<Event>, bool) {
        let mut left = MOST_TAKEN;
        // The kernel wakes the reader for a record only if it sees that all earlier ones were taken. A record written
        // while the one before is taken is missed by both sides, unless the reader sees it before its last look at the
        // ring. `left` is negative if the kernel's values make no sense, which `event` checks itself.
        while left > 0
            && let Ok(taken @ 1..) = usize::try_from(self.ring.consume_raw_n(left))
        {
            left = left.saturating_sub(taken);
            fence(Ordering::SeqCst);
        }
        let mut heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut heard), left == 0)
    }
}

/// An event of the ring: time, thread, kind, coalesced and lost events.
fn event(bytes: &[u8]) -> Option<Event> {
    let bytes: &[u8; EVENT] = bytes.first_chunk()?;
    let word =
        |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let lost = u64::from_ne_bytes(*bytes.last_chunk()?);
    let coalesced = u64::from_ne_bytes(*bytes[16..].first_chunk()?);
    let interrupt = |kind| EventKind::Interrupt { kind, coalesced };
    let what = match word(12) {
        0 => interrupt(Injection::Timer),
        1 => interrupt(Injection::Device),
        2 => interrupt(Injection::Ipi),
        3 => interrupt(Injection::Nmi),
        4 => EventKind::Sleeps,
        _ => return None,
    };
    let at = Ns::from_ne_bytes(*bytes.first_chunk()?);
    Some(Event { at, tid: word(8) as i32, kind: what, lost })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use libbpf_rs::{MapCore as _, MapFlags, ProgramInput};
    use vcoop_testing::Skip;

    use super::{Events, MOST_TAKEN, STATE, WAYS, map};
    use crate::events::{EventKind, WatchedVcpu};

    /// The constant of the program.
    const APART_NS: u64 = 100_000;

    /// An id that no thread has.
    const TID: i32 = i32::MAX;

    /// Programs with a vCPU that has no thread, so that no KVM reports an interrupt for it.
    fn deaf() -> Result<Events, Skip> {
        let mut events = Events::with(Ok(WAYS[1])).map_err(Skip::because)?;
        let vcpu = WatchedVcpu { process: std::process::id(), tid: TID, apic: 7 };
        events.name(vcpu).unwrap();
        has_run(&events);
        Ok(events)
    }

    /// Simulates that the vCPU has run.
    fn has_run(events: &Events) {
        events.states.update(&TID.to_ne_bytes(), &[0; STATE], MapFlags::ANY).unwrap();
    }

    /// Simulates an interrupt for the vCPU.
    fn send(events: &mut Events) {
        let mut args: Vec<u8> = [7_u64, 0].iter().flat_map(|arg| arg.to_ne_bytes()).collect();
        let input = ProgramInput { context_in: Some(&mut args), ..ProgramInput::default() };
        let mut programs = events.object.progs_mut();
        programs.find(|p| p.name() == "accepted").unwrap().test_run(input).unwrap();
    }

    #[test]
    fn a_flood_of_interrupts_is_told_now_and_then_and_counted() {
        let Ok(mut events) = deaf().inspect_err(Skip::tell) else { return };
        let (began, mut sent) = (Instant::now(), 0_u64);
        while began.elapsed() < Duration::from_millis(20) {
            send(&mut events);
            sent += 1;
        }
        let most = began.elapsed().as_nanos() as u64 / APART_NS + 1;
        // The next event has the number of those that were not reported.
        std::thread::sleep(Duration::from_millis(1));
        send(&mut events);
        let (heard, _) = events.take();
        let coalesced = |what| match what {
            EventKind::Interrupt { coalesced, .. } => coalesced,
            EventKind::Sleeps => 0,
        };
        let told = heard.len() as u64;
        assert!((2..=most + 1).contains(&told), "{told} of {sent} told");
        assert_eq!(told + heard.iter().map(|e| coalesced(e.kind)).sum::<u64>(), sent + 1);
        assert!(heard.windows(2).all(|two| two[1].at - two[0].at >= APART_NS));
    }

    #[test]
    fn an_interrupt_that_a_vcpu_has_not_taken_is_forgotten_with_it() {
        let Ok(mut events) = deaf().inspect_err(Skip::tell) else { return };
        let untaken = map(&events.object, "untaken").unwrap();
        let given = || untaken.update(&TID.to_ne_bytes(), &[0; 4], MapFlags::ANY).unwrap();
        let is_there = || untaken.lookup(&TID.to_ne_bytes(), MapFlags::ANY).unwrap().is_some();
        given();
        events.forget(TID);
        assert!(!is_there(), "its place is not given back");
        // One that came while it was being forgotten.
        given();
        events.watch(TID, || false).unwrap();
        assert!(!is_there(), "it would be told of another thread with this number");
    }

    #[test]
    fn no_more_is_taken_at_once_than_is_promised() {
        let Ok(mut events) = deaf().inspect_err(Skip::tell) else { return };
        for _ in 0..=MOST_TAKEN {
            has_run(&events);
            send(&mut events);
        }
        let (first, more) = events.take();
        assert_eq!((first.len(), more), (MOST_TAKEN, true));
        let (last, more) = events.take();
        assert_eq!((last.len(), more), (1, false));
    }
}
