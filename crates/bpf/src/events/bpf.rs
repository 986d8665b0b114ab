//! The programs of `bpf/events.bpf.c` in the kernel.

use std::collections::BTreeMap;
use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::atomic::{Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::{
    Link, MapCore as _, MapFlags, MapHandle, Object, ObjectBuilder, RingBuffer, RingBufferBuilder,
};
use vcoop_threads::Ns;

use super::{Event, Interrupt, OfVcpu, What};
use crate::Missing;
use crate::object::{know_threads, map, may_read};

/// The programs, compiled by the build script.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/events.bpf.o"));

/// Ways to hear interrupts, the best first: the programs that each takes.
const WAYS: [(&str, &[&str]); 2] = [
    ("fentry of KVM", &["timer_expired", "accept_irq", "entered"]),
    ("kvm_apic_accept_irq", &["accepted"]),
];

/// The program that tells of sleeps.
const SWITCHED: &str = "switched";

/// What is wanted of a thread, as in the programs.
const SLEEPS: u32 = 1;
const INTERRUPTS: u32 = 2;

/// Bytes of an event.
const EVENT: usize = 32;
/// Bytes of `struct state`, which begins with whether the thread sleeps.
const STATE: usize = 16;
/// Most events that are taken at once, so that whoever takes them comes to other things.
const MOST_TAKEN: usize = 256;

/// A thread that is watched.
#[derive(Debug, Default)]
struct Watched {
    wants: u32,
    /// Its key among vCPUs.
    apic: Option<[u8; 8]>,
}

/// What happens to threads, by BPF.
pub struct Events {
    /// By what interrupts are heard.
    interrupts: Result<(&'static str, &'static [&'static str]), Missing>,
    watched: BTreeMap<i32, Watched>,
    object: Object,
    threads: MapHandle,
    states: MapHandle,
    apics: MapHandle,
    events: MapHandle,
    ring: RingBuffer<'static>,
    heard: Arc<Mutex<Vec<Event>>>,
    /// As long as they are there, the programs run: none while nobody is watched, since they run for the whole host.
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
    /// Loads the programs, with the best way to hear interrupts that this kernel has.
    ///
    /// # Errors
    ///
    /// It has none for sleeps either, or this process may not, or is in a PID namespace of its own.
    pub fn open() -> Result<Self, Missing> {
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
        let without = Missing {
            what: format!("KVM's events cannot be heard by BPF: {}", why.join("; ")),
            remedy: "run as root on a kernel with BTF, after kvm is loaded",
        };
        Self::load(Err(without)).map_err(|error| Missing {
            what: format!("{}; {SWITCHED}: {error}", why.join("; ")),
            remedy: "run as root on a kernel with BTF, after kvm is loaded",
        })
    }

    fn load(
        interrupts: Result<(&'static str, &'static [&'static str]), Missing>,
    ) -> Result<Self, libbpf_rs::Error> {
        let mut loaded = Self::with(interrupts)?;
        // Tried now: what cannot be attached is no way to hear.
        let programs = loaded.interrupts.as_ref().map_or(&[][..], |way| way.1);
        loaded.attach(&[&[SWITCHED], programs].concat())?;
        loaded.links.clear();
        Ok(loaded)
    }

    /// The same without having tried to attach them.
    fn with(
        interrupts: Result<(&'static str, &'static [&'static str]), Missing>,
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
        let [threads, states, apics] =
            ["threads", "states", "apics"].map(|name| map(&object, name));
        Ok(Self {
            interrupts,
            watched: BTreeMap::new(),
            object,
            threads: threads?,
            states: states?,
            apics: apics?,
            events,
            ring,
            heard,
            links: Vec::new(),
        })
    }

    /// Attaches some programs, or none of them.
    fn attach(&mut self, programs: &[&str]) -> Result<(), libbpf_rs::Error> {
        let wanted =
            self.object.progs_mut().filter(|p| programs.iter().any(|name| p.name() == *name));
        let links = wanted.map(|program| program.attach()).collect::<Result<Vec<_>, _>>()?;
        self.links.extend(links);
        Ok(())
    }

    /// By what it hears interrupts.
    ///
    /// # Errors
    ///
    /// It hears none, because of this.
    pub fn interrupts(&self) -> Result<&'static str, &Missing> {
        self.interrupts.as_ref().map(|way| way.0)
    }

    /// What becomes readable when there is something to [`take`](Self::take).
    pub fn ready(&self) -> BorrowedFd<'_> {
        // Not libbpf's epoll for it, through which each event would have to go as well.
        self.events.as_fd()
    }

    /// Looks at a thread from now on, and knows whether it sleeps. `asleep`: whether it does, as of after this was called.
    ///
    /// # Errors
    ///
    /// There are too many.
    pub fn watch(&mut self, tid: i32, asleep: impl FnOnce() -> bool) -> Result<(), Missing> {
        let failed = |error| Missing {
            what: format!("thread {tid} is not watched: {error}"),
            remedy: "apply policies to fewer vCPUs at a time",
        };
        if self.links.is_empty() {
            self.attach(&[SWITCHED]).map_err(failed)?;
        }
        self.watched.insert(tid, Watched::default());
        // Of an earlier thread of this number, from a switch while that was forgotten.
        let _ = self.states.delete(&tid.to_ne_bytes());
        self.say(tid).map_err(failed)?;
        let mut state = [0; STATE];
        state[0] = u8::from(asleep());
        // What the program has said since is newer.
        match self.states.update(&tid.to_ne_bytes(), &state, MapFlags::NO_EXIST) {
            Err(error) if error.kind() != libbpf_rs::ErrorKind::AlreadyExists => Err(failed(error)),
            _ => Ok(()),
        }
    }

    /// Tells the programs what is wanted of a thread.
    fn say(&self, tid: i32) -> Result<(), libbpf_rs::Error> {
        let Some(watched) = self.watched.get(&tid) else { return Ok(()) };
        self.threads.update(&tid.to_ne_bytes(), &watched.wants.to_ne_bytes(), MapFlags::ANY)
    }

    /// Hears of a vCPU's interrupts from now on. Its thread is watched.
    ///
    /// # Errors
    ///
    /// They are not heard here, or there are too many.
    pub fn hear_interrupts(&mut self, vcpu: OfVcpu) -> Result<&'static str, Missing> {
        let (name, programs) = self.interrupts.clone()?;
        let failed = |error| Missing {
            what: format!("interrupts of thread {} are not heard: {error}", vcpu.tid),
            remedy: "apply policies to fewer vCPUs at a time",
        };
        // Beside that for sleeps.
        if self.links.len() == 1 {
            self.attach(programs).map_err(failed)?;
        }
        self.name(vcpu).map_err(failed)?;
        Ok(name)
    }

    /// Tells the programs whose interrupts are wanted.
    fn name(&mut self, vcpu: OfVcpu) -> Result<(), libbpf_rs::Error> {
        let mut apic = [0; 8];
        apic[..4].copy_from_slice(&vcpu.process.to_ne_bytes());
        apic[4..].copy_from_slice(&vcpu.apic.to_ne_bytes());
        self.apics.update(&apic, &vcpu.tid.to_ne_bytes(), MapFlags::ANY)?;
        let watched = self.watched.entry(vcpu.tid).or_default();
        watched.wants |= INTERRUPTS;
        watched.apic = Some(apic);
        self.say(vcpu.tid)
    }

    /// Looks at a thread no longer.
    pub fn forget(&mut self, tid: i32) {
        let Some(watched) = self.watched.remove(&tid) else { return };
        // What is not there is as it should be.
        let _ = self.threads.delete(&tid.to_ne_bytes());
        let _ = self.states.delete(&tid.to_ne_bytes());
        let _ = watched.apic.map(|apic| self.apics.delete(&apic));
        if self.watched.is_empty() {
            self.links.clear();
        }
    }

    /// Whether a watched thread sleeps.
    pub fn is_asleep(&self, tid: i32) -> bool {
        let known = self.states.lookup(&tid.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        known.is_some_and(|state| state[0] != 0)
    }

    /// Hears of a watched thread's sleeps from now on, or does so no longer.
    pub fn hear_sleeps(&mut self, tid: i32, wanted: bool) {
        let Some(watched) = self.watched.get_mut(&tid) else { return };
        let wants = watched.wants & !SLEEPS | if wanted { SLEEPS } else { 0 };
        if std::mem::replace(&mut watched.wants, wants) != wants {
            // Its entry is there, so there is room for it.
            let _ = self.say(tid);
        }
    }

    /// Threads that are watched.
    pub fn watched(&self) -> impl Iterator<Item = i32> {
        self.watched.keys().copied()
    }

    /// What happened since the last call, in order, and whether there may be more: so many are taken at once. What is not
    /// there yet makes [`ready`](Self::ready) readable anew; what is left does not.
    pub fn take(&mut self) -> (Vec<Event>, bool) {
        let mut left = MOST_TAKEN;
        // The kernel wakes for a record only if it sees that all before it are taken. One that was written while this
        // took the one before is missed by both, unless that is seen before the ring is looked at for the last time.
        // Negative if the kernel's words make no sense, which `event` judges for itself.
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

/// An event of the ring: time, thread, what, coalesced ones, lost ones.
fn event(bytes: &[u8]) -> Option<Event> {
    let bytes: &[u8; EVENT] = bytes.first_chunk()?;
    let word =
        |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let lost = u64::from_ne_bytes(*bytes.last_chunk()?);
    let coalesced = u64::from_ne_bytes(*bytes[16..].first_chunk()?);
    let interrupt = |kind| What::Interrupt { kind, coalesced };
    let what = match word(12) {
        0 => interrupt(Interrupt::Timer),
        1 => interrupt(Interrupt::Device),
        2 => interrupt(Interrupt::Ipi),
        3 => interrupt(Interrupt::Nmi),
        4 => What::Sleeps,
        _ => return None,
    };
    let at = Ns::from_ne_bytes(*bytes.first_chunk()?);
    Some(Event { at, tid: word(8) as i32, what, lost })
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use libbpf_rs::{MapCore as _, MapFlags, ProgramInput};
    use vcoop_testing::Skip;

    use super::{Events, MOST_TAKEN, STATE, WAYS};
    use crate::events::{OfVcpu, What};

    /// As in the program.
    const APART_NS: u64 = 100_000;

    /// The thread of no vCPU.
    const TID: i32 = i32::MAX;

    /// Programs that hear interrupts of a vCPU without a thread, where no KVM tells of any.
    fn deaf() -> Result<Events, Skip> {
        let mut events = Events::with(Ok(WAYS[1])).map_err(Skip::because)?;
        let vcpu = OfVcpu { process: std::process::id(), tid: TID, apic: 7 };
        events.name(vcpu).unwrap();
        has_run(&events);
        Ok(events)
    }

    /// The vCPU has run.
    fn has_run(events: &Events) {
        events.states.update(&TID.to_ne_bytes(), &[0; STATE], MapFlags::ANY).unwrap();
    }

    /// The vCPU is sent an interrupt.
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
        // The last one says what was not told before it.
        std::thread::sleep(Duration::from_millis(1));
        send(&mut events);
        let (heard, _) = events.take();
        let coalesced = |what| match what {
            What::Interrupt { coalesced, .. } => coalesced,
            What::Sleeps => 0,
        };
        let told = heard.len() as u64;
        assert!((2..=most + 1).contains(&told), "{told} of {sent} told");
        assert_eq!(told + heard.iter().map(|e| coalesced(e.what)).sum::<u64>(), sent + 1);
        assert!(heard.windows(2).all(|two| two[1].at - two[0].at >= APART_NS));
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
