//! Hardware threads of a core slow each other's work down.
//!
//! A pCPU is busy unless it is idle or on its way out of an idle state, or its vCPU rests in guest mode. When one of a core
//! becomes busy or idle, the work of the others is stopped and goes on at its new speed, so that the speed of a segment of
//! work is the same from its begin to its end. Only work has a speed: what the kernel and KVM do takes what it costs.

use vcoop_model::plan::HostPlan;

use crate::attribution::track::NONE;
use crate::guest::spin::Spin;
use crate::machine::{GuestSegment, Segment};
use crate::queue::Ns;
use crate::world::World;

/// Full speed.
const FULL: u128 = 1_000_000;

/// How siblings slow each other down.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Smt {
    /// Speed of work beside a busy sibling, in millionths; 0: siblings do not matter.
    ppm: u32,
    threads_per_core: u32,
}

impl Smt {
    pub(crate) fn new(host: &HostPlan) -> Self {
        let threads_per_core = host.sched.topology().threads_per_core;
        Self { ppm: host.smt_ppm.unwrap_or(0), threads_per_core }
    }

    /// Whether siblings matter.
    #[inline]
    pub(crate) fn is_on(self) -> bool {
        self.ppm != 0
    }

    /// The other pCPUs of a core.
    fn siblings(self, p: u32) -> impl Iterator<Item = u32> {
        let first = p - p % self.threads_per_core;
        (first..first + self.threads_per_core).filter(move |q| *q != p)
    }

    /// How long so much work takes beside a busy sibling.
    fn takes(self, ns: Ns) -> Ns {
        let takes = (u128::from(ns) * FULL).div_ceil(u128::from(self.ppm));
        Ns::try_from(takes).unwrap_or(Ns::MAX / 2)
    }

    /// How much work was done in so long a time beside a busy sibling.
    fn done(self, ran: Ns) -> Ns {
        (u128::from(ran) * u128::from(self.ppm) / FULL) as Ns
    }
}

impl World<'_> {
    fn is_busy(&self, p: u32) -> bool {
        let pc = &self.pcpus[p as usize];
        match pc.segment {
            Segment::Idle | Segment::CState => false,
            Segment::Guest => {
                pc.vcpu == NONE || self.vcpus[pc.vcpu as usize].segment != GuestSegment::Rest
            }
            _ => true,
        }
    }

    /// How long so much work takes on a pCPU from now on.
    #[inline]
    pub(crate) fn work_takes(&mut self, p: u32, ns: Ns) -> Ns {
        if self.smt.is_on() { self.slowed_takes(p, ns) } else { ns }
    }

    #[cold]
    fn slowed_takes(&mut self, p: u32, ns: Ns) -> Ns {
        let slowed = self.smt.siblings(p).any(|q| self.is_busy(q));
        self.pcpus[p as usize].slowed = slowed;
        if slowed { self.smt.takes(ns) } else { ns }
    }

    /// How much work was done in a segment of work that ran for so long.
    #[inline]
    pub(crate) fn work_done(&mut self, p: u32, ran: Ns) -> Ns {
        if self.pcpus[p as usize].slowed { self.slowed_done(p, ran) } else { ran }
    }

    #[cold]
    fn slowed_done(&mut self, p: u32, ran: Ns) -> Ns {
        let pc = &mut self.pcpus[p as usize];
        pc.slowed = false;
        pc.slowed_ns += ran;
        self.smt.done(ran)
    }

    /// A pCPU has become busy or idle: its siblings' work goes on at another speed.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_beside_a_busy_sibling_is_slower_and_none_of_it_is_lost() {
        let smt = Smt { ppm: 600_000, threads_per_core: 2 };
        assert_eq!(smt.siblings(5).collect::<Vec<_>>(), [4]);
        assert_eq!(Smt { threads_per_core: 4, ..smt }.siblings(5).collect::<Vec<_>>(), [4, 6, 7]);
        assert_eq!((smt.takes(600), smt.done(1_000)), (1_000, 600));
        for ns in [0, 1, 7, 999, 123_456_789] {
            assert_eq!(smt.done(smt.takes(ns)), ns);
        }
    }
}
