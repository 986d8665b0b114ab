//! Keys of idle vCPUs.

use super::{set, shared_keys};
use crate::plan::virt::{GuestIdle, Virt};
use crate::toml_read::units::Time;
use crate::toml_read::value::Int;

shared_keys! {
    /// Idle vCPUs.
    pub(crate) struct IdleKeys {
        /// What a vCPU without work does: `hlt`, `poll` (for ever, `idle=poll`), `haltpoll` (for a
        /// while, then HLT: Linux's governor) or `mwait` (needs disable_exits = ["mwait"]).
        /// Default: hlt.
        guest_idle: GuestIdle,
        /// haltpoll: longest poll (`guest_halt_poll_ns`). Default: 200us.
        guest_halt_poll: Time,
        /// haltpoll: factor by which it grows. Default: 2.
        guest_halt_poll_grow: Int<0, 1000>,
        /// haltpoll: shortest poll, from which it grows. Default: 50us.
        guest_halt_poll_grow_start: Time,
        /// haltpoll: divisor by which it shrinks, 0: to nothing. Default: 2.
        guest_halt_poll_shrink: Int<0, 1000>,
        /// haltpoll: whether it shrinks. Default: true.
        guest_halt_poll_allow_shrink: bool,
        /// Longest time that the host polls for a halted vCPU (`KVM_CAP_HALT_POLL`, else
        /// `halt_poll_ns`; Linux has 200us on x86). 0us is never. Guests with guest_idle = "haltpoll" switch it off.
        /// Default: never in the simulator; on real vCPUs, and in simulations beside them, as this host's KVM does.
        halt_poll: Time,
        /// Host polling: for the whole of `halt_poll` at every halt, as until Linux 4.2, instead of a time that
        /// adapts to how long halts are. Simulated only. Default: false.
        halt_poll_fixed: bool,
        /// Host polling: factor by which a vCPU's poll grows. Default: 2.
        halt_poll_grow: Int<0, 1000>,
        /// Host polling: poll from which a vCPU's poll grows, and below which it shrinks to nothing. Default: 10us.
        halt_poll_grow_start: Time,
        /// Host polling: divisor by which it shrinks, 0: to nothing. Default: 2.
        halt_poll_shrink: Int<0, 1000>,
    }
}

impl IdleKeys {
    pub(super) fn apply(&self, virt: &mut Virt) {
        let idle = &mut virt.idle;
        set(&self.guest_idle, &mut idle.guest, |idle| *idle);
        let guest = &mut idle.guest_poll;
        set(&self.guest_halt_poll, &mut guest.max_ns, |time| time.0);
        set(&self.guest_halt_poll_grow, &mut guest.grow, |n| n.get32());
        set(&self.guest_halt_poll_grow_start, &mut guest.grow_start_ns, |time| time.0);
        set(&self.guest_halt_poll_shrink, &mut guest.shrink, |n| n.get32());
        set(&self.guest_halt_poll_allow_shrink, &mut guest.allow_shrink, |on| *on);
        let mut host = idle.host_polls();
        set(&self.halt_poll, &mut host.max_ns, |time| time.0);
        set(&self.halt_poll_fixed, &mut host.fixed, |on| *on);
        set(&self.halt_poll_grow, &mut host.grow, |n| n.get32());
        set(&self.halt_poll_grow_start, &mut host.grow_start_ns, |time| time.0);
        set(&self.halt_poll_shrink, &mut host.shrink, |n| n.get32());
        if self.halt_poll.is_some() || host != idle.host_polls() {
            idle.host_poll = Some(host);
        }
    }
}
