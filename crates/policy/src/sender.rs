//! The sender of an IPI inside a guest: whether the host should hear of it, for the sake of the vCPU
//! that it is for.
//!
//! An IPI that exits (an ICR write, a hypercall) tells the host by itself. One that the hardware
//! delivers (IPI virtualisation) does not: if its receiver has lost its pCPU, the interrupt waits in
//! memory until the host happens to run that vCPU again, and a sender that waits for an answer spins
//! so long. The remedy costs one exit, so it is for the cases in which it helps:
//!
//! | receiver | IPI | why |
//! | --- | --- | --- |
//! | runs | by hardware | it takes the interrupt at once |
//! | idle | by hardware | the processor notifies the host, which has to wake it anyway |
//! | preempted, boosted | by hardware | it is urgent already |
//! | preempted, throttled | by hardware | a request would be denied |
//! | preempted, host does not boost | by hardware | nobody would do anything about it |
//! | preempted, normal | by the host | the request goes with it: [`Event::Asked`](crate::Event::Asked) |
//!
//! A sender that lies gains what it may have anyway: the boost is the receiver's, a vCPU of the same
//! VM, and is charged to the receiver's budget and to that VM's. What it reads may be old by the time
//! that the host looks; the host asks itself again whether the receiver runs.

use vcoop_abi::Status;

/// What a guest's kernel sees of another of its vCPUs without an exit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receiver {
    /// It is not on a pCPU: the `preempted` byte of KVM's steal time, or the like.
    pub preempted: bool,
    /// The guest's own idle loop has it.
    pub idle: bool,
    /// The status word of its page; disabled where the host does not hear senders.
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
