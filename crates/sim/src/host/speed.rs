//! Hardware threads of a core slow each other's work down.
//!
//! A pCPU is busy unless it is idle, is leaving an idle state, or its vCPU rests in guest mode. When a hardware
//! thread of a core becomes busy or idle, the work of the others is stopped and continues at its new speed, so that
//! a segment of work has one speed from its begin to its end. Only work has a speed: what the kernel and KVM do
//! takes what it costs.

use crate::attribution::track::NONE;
use crate::guest::spin_vcpu::Spin;
use crate::host::smt::Speed;
use crate::machine::{GuestSegment, Segment};
use crate::queue::Ns;
use crate::world::World;

impl World<'_> {
    pub(crate) fn is_busy(&self, p: u32) -> bool {
        let pc = &self.pcpus[p as usize];
        match pc.segment {
            Segment::Idle | Segment::CState => false,
            Segment::Guest => {
                pc.vcpu == NONE || self.vcpus[pc.vcpu as usize].segment != GuestSegment::Rest
            }
            _ => true,
        }
    }

    /// Duration of this much work on a pCPU from now on.
    #[inline]
    pub(crate) fn work_takes(&mut self, p: u32, ns: Ns) -> Ns {
        if self.smt.is_on() { self.slowed_takes(p, ns) } else { ns }
    }

    #[cold]
    fn slowed_takes(&mut self, p: u32, ns: Ns) -> Ns {
        let speed = self.speed_of(p);
        self.pcpus[p as usize].speed = speed;
        speed.takes(ns)
    }

    /// Speed of work on a pCPU, by how many of its siblings are busy.
    fn speed_of(&self, p: u32) -> Speed {
        self.smt.beside(self.smt.siblings(p).filter(|q| self.is_busy(*q)).count())
    }

    /// Work done so far in a segment of work that began at `since` and goes on.
    pub(crate) fn work_so_far(&self, p: u32, since: Ns) -> Ns {
        self.pcpus[p as usize].speed.done(self.clock.now() - since)
    }

    /// Work done in a segment of work that ran for this long.
    #[inline]
    pub(crate) fn work_done(&mut self, p: u32, ran: Ns) -> Ns {
        if self.pcpus[p as usize].speed == Speed::FULL { ran } else { self.slowed_done(p, ran) }
    }

    #[cold]
    fn slowed_done(&mut self, p: u32, ran: Ns) -> Ns {
        let pc = &mut self.pcpus[p as usize];
        pc.slowed_ns += ran;
        std::mem::replace(&mut pc.speed, Speed::FULL).done(ran)
    }

    /// A pCPU has become busy or idle: its siblings' work continues at another speed.
    #[inline]
    pub(crate) fn sibling_turns(&mut self, p: u32) {
        if self.smt.is_on() {
            self.respeed(p);
        }
    }

    #[cold]
    fn respeed(&mut self, p: u32) {
        for q in self.smt.siblings(p) {
            let pc = &self.pcpus[q as usize];
            if pc.speed == self.speed_of(q) {
                continue;
            }
            match pc.segment {
                Segment::User => {
                    let thread = pc.current;
                    self.stop_user(q);
                    self.run_user(q, thread);
                }
                Segment::Guest => {
                    let v = pc.vcpu;
                    let vcpu = &self.vcpus[v as usize];
                    if vcpu.segment != GuestSegment::User {
                        continue;
                    }
                    let (vm, t) = (vcpu.vm as usize, vcpu.current as usize);
                    if self.vms[vm].tasks[t].spin == Spin::No {
                        self.stop_guest(q);
                        let ns = self.vms[vm].tasks[t].needs();
                        self.guest_begin(v, GuestSegment::User, ns);
                    }
                }
                _ => {}
            }
        }
    }
}
