//! The programs of `bpf/injections.bpf.c` in the kernel.

use std::fmt;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::{
    Link, MapCore as _, MapFlags, MapHandle, ObjectBuilder, RingBuffer, RingBufferBuilder,
};
use vcoop_threads::Ns;

use super::{Injected, Kind, OfVcpu};
use crate::Missing;
use crate::object::map;

/// The programs, compiled by the build script.
const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/injections.bpf.o"));

/// Ways to hear, the best first: the programs that each takes.
const WAYS: [(&str, &[&str]); 2] = [
    ("fentry of KVM", &["timer_expired", "accept_irq", "entered", "switched"]),
    ("kvm_apic_accept_irq", &["accepted"]),
];

/// Bytes of an event.
const EVENT: usize = 16;

/// Interrupts for vCPUs by BPF.
pub struct Injections {
    name: &'static str,
    threads: MapHandle,
    apics: MapHandle,
    lost: MapHandle,
    events: MapHandle,
    ring: RingBuffer<'static>,
    heard: Arc<Mutex<Vec<Injected>>>,
    /// As long as they are there, the programs run.
    _links: Vec<Link>,
}

impl fmt::Debug for Injections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Injections").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Injections {
    /// Loads the programs, in the best way that this kernel has.
    ///
    /// # Errors
    ///
    /// It has none, or this process may not.
    pub fn open() -> Result<Self, Missing> {
        libbpf_rs::set_print(None);
        let mut why = Vec::new();
        for (name, programs) in WAYS {
            match Self::load(name, programs) {
                Ok(loaded) => return Ok(loaded),
                Err(error) => why.push(format!("{name}: {error}")),
            }
        }
        Err(Missing {
            what: format!("KVM's events cannot be heard by BPF: {}", why.join("; ")),
            remedy: "run as root on a kernel with BTF, after kvm is loaded",
        })
    }

    fn load(name: &'static str, programs: &[&str]) -> Result<Self, libbpf_rs::Error> {
        let mut object = ObjectBuilder::default().open_memory(OBJECT)?;
        for mut program in object.progs_mut() {
            let wanted = programs.iter().any(|wanted| program.name() == *wanted);
            program.set_autoload(wanted);
        }
        let object = object.load()?;
        let (threads, apics, lost) =
            (map(&object, "threads")?, map(&object, "apics")?, map(&object, ".bss")?);
        let heard = Arc::new(Mutex::new(Vec::new()));
        let mut builder = RingBufferBuilder::new();
        let into = heard.clone();
        let events = map(&object, "ring")?;
        builder.add(&events, move |bytes| {
            into.lock().unwrap_or_else(PoisonError::into_inner).extend(event(bytes));
            0
        })?;
        let ring = builder.build()?;
        let attached = object
            .progs_mut()
            .filter(|program| programs.iter().any(|wanted| program.name() == *wanted));
        let links = attached.map(|program| program.attach()).collect::<Result<Vec<_>, _>>()?;
        Ok(Self { name, threads, apics, lost, events, ring, heard, _links: links })
    }

    /// By what it hears.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// What becomes readable when there is something to [`take`](Self::take).
    pub fn ready(&self) -> BorrowedFd<'_> {
        // Not libbpf's epoll for it, through which each event would have to go as well.
        self.events.as_fd()
    }

    /// Hears of a vCPU from now on.
    ///
    /// # Errors
    ///
    /// There are too many.
    pub fn watch(&mut self, vcpu: OfVcpu) -> Result<(), Missing> {
        let (tid, apic) = keys(vcpu);
        let any = MapFlags::ANY;
        let added = self.threads.update(&tid, &[0; 4], any);
        added.and_then(|()| self.apics.update(&apic, &tid, any)).map_err(|error| Missing {
            what: format!("interrupts of thread {} are not heard: {error}", vcpu.tid),
            remedy: "apply policies to fewer vCPUs at a time",
        })
    }

    /// Hears of it no longer.
    pub fn forget(&mut self, vcpu: OfVcpu) {
        let (tid, apic) = keys(vcpu);
        // What is not there is as it should be.
        let _ = self.threads.delete(&tid);
        let _ = self.apics.delete(&apic);
    }

    /// What happened since the last call, in order.
    pub fn take(&mut self) -> Vec<Injected> {
        // Negative if the kernel's words make no sense, which `event` judges for itself.
        let _ = self.ring.consume_raw();
        std::mem::take(&mut self.heard.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Interrupts that could not be told, because too many were at once.
    pub fn lost(&self) -> u64 {
        let value = self.lost.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY).ok().flatten();
        value.and_then(|bytes| Some(u64::from_ne_bytes(*bytes.first_chunk()?))).unwrap_or(0)
    }
}

/// A vCPU's keys in the two maps.
fn keys(vcpu: OfVcpu) -> ([u8; 4], [u8; 8]) {
    let mut apic = [0; 8];
    apic[..4].copy_from_slice(&vcpu.process.to_ne_bytes());
    apic[4..].copy_from_slice(&vcpu.apic.to_ne_bytes());
    (vcpu.tid.to_ne_bytes(), apic)
}

/// An event of the ring: time, thread, kind.
fn event(bytes: &[u8]) -> Option<Injected> {
    let bytes: &[u8; EVENT] = bytes.first_chunk()?;
    let word =
        |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let kind = match word(12) {
        0 => Kind::Timer,
        1 => Kind::Device,
        2 => Kind::Ipi,
        3 => Kind::Nmi,
        _ => return None,
    };
    let at = Ns::from_ne_bytes(*bytes.first_chunk()?);
    Some(Injected { at, tid: word(8) as i32, kind })
}
