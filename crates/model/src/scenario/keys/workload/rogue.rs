//! Hostile guests: the modes that have a name, and programs of one's own.

use crate::plan::{Claim, Ns, Registers, RogueStep};
use crate::toml_read::table::table;
use crate::toml_read::units::{Period, time_pattern};
use crate::toml_read::value::choice;
use crate::toml_read::{Placed, Text};

choice! {
    /// How a rogue guest abuses the boost protocol.
    pub(crate) enum Abuse {
        /// Asks for a boost all the time.
        Forever = "forever",
        /// Begins one preempt-disabled section after the other, so that each is short enough for a boost.
        Toggle = "toggle",
        /// Writes nonsense into the page of another vCPU of its VM, while the host reads it.
        Scribble = "scribble",
        /// Writes the notify and the registration MSR in a loop.
        MsrFlood = "msr-flood",
        /// Registers pages that must be refused and its own page, in a loop.
        HostileGpa = "hostile-gpa",
        /// Ends its VM by a triple fault, and with it the run, which fails.
        TripleFault = "triple-fault",
        /// Follows `steps` in a loop.
        Program = "program",
    }
}

table! {
    /// A guest task that uses the CPU without end and abuses the boost protocol (guests only).
    pub(crate) struct Rogue {
        /// How.
        mode: Placed<Abuse> = "forever",
        /// Time between toggles; with `triple-fault`, from the task's start to the fault.
        period: Placed<Period> = "1ms",
        /// What a `program` does in a loop: "ask" for a boost, "end" the request; "claim" to be in a "section" with
        /// preemption off, a "softirq", an "nmi", to run an "urgent" task, to be "idle", or "nothing" of these;
        /// "acknowledge" the last interrupt, "notify", ring the lab's "doorbell"; "register own" area, "nothing",
        /// "refused" addresses or "odd" ones; "scribble T" over the next vCPU's words; program a "deadline T" ahead;
        /// "halt T"; "work T"; "fault".
        steps: Option<Placed<Vec<Placed<RogueStep>>>>,
    }
}

impl Text for RogueStep {
    const WHAT: &'static str = "a step like \"ask\", \"end\", \"claim section\", \"register own\", \"deadline 50us\", \"halt 1ms\" or \"work 300us\"";
    const PATTERN: &'static str = concat!(
        r"^\s*(ask|end|acknowledge|notify|doorbell|fault|",
        r"claim\s+(nothing|section|softirq|nmi|urgent|idle)|register\s+(own|nothing|refused|odd)|",
        r"(scribble|deadline|halt|work)\s+",
        time_pattern!(),
        r")\s*$"
    );

    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let (word, rest) = text.split_once(char::is_whitespace).unwrap_or((text, ""));
        let time = || Period::parse(rest).map(|time| time.0);
        Ok(match (word, rest.trim()) {
            ("ask", "") => Self::Ask,
            ("end", "") => Self::End,
            ("acknowledge", "") => Self::Acknowledge,
            ("notify", "") => Self::Notify,
            ("doorbell", "") => Self::Doorbell,
            ("fault", "") => Self::Fault,
            ("claim", what) => match Claim::ALL.into_iter().find(|claim| claim.name() == what) {
                Some(claim) => Self::Claim(claim),
                None => return Err(format!("a rogue cannot claim `{what}`")),
            },
            ("register", what) => match Registers::ALL.into_iter().find(|r| r.name() == what) {
                Some(registers) => Self::Register(registers),
                None => return Err(format!("a rogue cannot register `{what}`")),
            },
            ("scribble", _) => Self::Scribble(time()?),
            ("deadline", _) => Self::Deadline(time()?),
            ("halt", _) => Self::Halt(time()?),
            ("work", _) => Self::Work(time()?),
            _ => return Err(format!("`{text}` is no step of a rogue")),
        })
    }
}

/// The program of a mode that has a name; none for [`Abuse::Program`].
pub(crate) fn named(mode: Abuse, period: Ns) -> Vec<RogueStep> {
    use RogueStep::{
        Ask, Claim as Says, Doorbell, End, Fault, Halt, Notify, Register, Scribble, Work,
    };
    // Work between two steps that abuse the protocol.
    const PAUSE: RogueStep = Work(1_000);
    match mode {
        // It also claims to halt, because halted time is not charged.
        Abuse::Forever => vec![Says(Claim::Idle), Ask, Work(100_000)],
        Abuse::Toggle => vec![Says(Claim::Section), Work(period)],
        Abuse::Scribble => vec![Scribble(200_000)],
        // One exit after the other, asking for a boost and giving it back by turns.
        Abuse::MsrFlood => {
            let exits = [[Notify, PAUSE]; 16].concat();
            let turn = |word| {
                let [first, second] = [Register(Registers::Own), Doorbell];
                [&[word, first], &exits[..], &[second], &exits[..]].concat()
            };
            [turn(Ask), turn(End)].concat()
        }
        // Every address that must be refused, some that are legal and odd, the end of its registration and
        // the own area again; a boost is requested all the time, to see whether the budget is reset.
        Abuse::HostileGpa => {
            let tries = [
                &[Registers::Refused; 9][..],
                &[Registers::Odd; 3],
                &[Registers::Nothing, Registers::Own],
            ];
            let steps = tries.concat().into_iter().flat_map(|what| [Register(what), PAUSE]);
            [Ask].into_iter().chain(steps).collect()
        }
        Abuse::TripleFault => vec![Halt(period), Fault],
        Abuse::Program => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_is_read_as_it_is_shown() {
        let (mut steps, period) = (Vec::new(), 1_500_000);
        for mode in Abuse::ALL {
            steps.extend(named(mode, period));
        }
        steps.extend(Claim::ALL.map(RogueStep::Claim));
        steps.extend([RogueStep::Acknowledge, RogueStep::Deadline(1_000), RogueStep::Halt(9_001)]);
        for step in steps {
            assert_eq!(RogueStep::parse(&step.to_string()), Ok(step));
        }
        for bad in ["", "ask 1ms", "work", "work 1ns", "halt soon", "claim", "claim fame", "end it"]
        {
            assert!(RogueStep::parse(bad).is_err(), "{bad}");
        }
    }
}
