//! The sender of an IPI inside a guest: whether it asks the host to boost the vCPU that the IPI is for.
//!
//! An IPI that exits (an ICR write, a hypercall) tells the host by itself. One that the hardware delivers (IPI
//! virtualisation) does not: if its receiver has lost its pCPU, the interrupt waits in memory until the host runs that
//! vCPU again, and a sender that waits for an answer spins until then. Asking costs one exit, so a sender asks only
//! where it helps:
//!
//! | receiver | IPI | why |
//! | --- | --- | --- |
//! | runs | by hardware | it takes the interrupt at once |
//! | idle | by hardware | the processor notifies the host, which has to wake it anyway |
//! | preempted, boosted | by hardware | it is urgent already |
//! | preempted, throttled | by hardware | a request would be denied |
//! | preempted, host does not boost | by hardware | the host would not act on it |
//! | preempted, normal | by the host | the request goes with it: [`Event::Asked`](crate::Event::Asked) |
//!
//! A sender that lies gains nothing beyond its VM's budget: the boost goes to a vCPU of the same VM, and is charged to
//! that vCPU's budget and to the VM's. What the sender reads may be outdated when the host looks; the host checks
//! itself whether the receiver runs.

use vcoop_abi::Status;

/// What a guest's kernel sees of another of its vCPUs without an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// The vCPU is not on a pCPU: the `preempted` byte of KVM's steal time, or the like.
    pub preempted: bool,
    /// The vCPU is in the guest's own idle loop.
    pub idle: bool,
    /// Status word of the vCPU's page; disabled where the host does not hear senders.
    pub status: Status,
}

/// Whether to send an IPI through the host instead of by hardware.
pub const fn asks_host(receiver: Receiver) -> bool {
    receiver.preempted && !receiver.idle && matches!(receiver.status, Status::Normal)
}

#[cfg(test)]
mod tests {
    use vcoop_abi::Status;

    use super::{Receiver, asks_host};

    #[test]
    fn only_for_a_preempted_vcpu_that_the_host_could_boost() {
        let all = [Status::Disabled, Status::Normal, Status::Boosted, Status::Throttled];
        for (preempted, idle) in [(false, false), (false, true), (true, false), (true, true)] {
            for status in all {
                let asked = asks_host(Receiver { preempted, idle, status });
                assert_eq!(asked, preempted && !idle && status == Status::Normal);
            }
        }
    }
}
