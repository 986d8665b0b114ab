//! Any words in a guest area, at any time, with any exits: every word has a meaning that survives
//! its own encoding, the policy never panics, and no guest is boosted beyond its budget.

#![no_main]

use libfuzzer_sys::fuzz_target;
use vcoop_abi::{BoostRequest, CsState, GuestWords, Header, Intent, Status, Word};
use vcoop_policy::config::{Budget, DynamicConfig, Means};
use vcoop_policy::{Action, Event, HostPolicy, Injection, VmShared};

const BUDGET: Budget = Budget { burst_ns: 3_000_000, refill_ppm: 250_000 };

/// A vCPU, its clock and its timer, served in time.
struct Driver {
    policy: HostPolicy,
    vm: VmShared,
    now: u64,
    timer: Option<u64>,
}

impl Driver {
    fn feed(&mut self, event: Event, words: GuestWords) {
        for action in self.policy.on(self.now, event, &mut self.vm) {
            match action {
                Action::ArmTimer(at) => self.timer = Some(at),
                Action::CancelTimer => self.timer = None,
                Action::Recheck => self.feed(Event::Recheck(words), words),
                _ => {}
            }
        }
    }

    fn pass(&mut self, ns: u64, words: GuestWords) {
        let until = self.now + ns;
        while let Some(at) = self.timer.filter(|at| *at <= until) {
            self.now = self.now.max(at);
            self.timer = None;
            self.feed(Event::Timer, words);
        }
        self.now = until;
    }
}

fn round_trips<T: Word + PartialEq + std::fmt::Debug>(word: u64) {
    let meant = T::from_word(word);
    assert_eq!(T::from_word(meant.to_word()), meant);
}

fuzz_target!(|bytes: &[u8]| {
    // The first byte chooses what a policy can do besides.
    let Some((options, bytes)) = bytes.split_first() else { return };
    let option = |bit: u8| options & 1 << bit != 0;
    let config = DynamicConfig {
        means: Means::Rr(8),
        vcpu_budget: BUDGET,
        vm_budget: BUDGET,
        max_preempt_off_ns: 3_000_000,
        longest_boost_ns: option(0).then_some(300_000),
        boost_on_injection: true,
        boost_receiver: option(1),
        boost_on_request: true,
        boost_across_idle: true,
        repay: option(2),
        rest_slice_ns: option(3).then_some(700_000),
    };
    let mut driver = Driver {
        policy: HostPolicy::dynamic(config, 0),
        vm: VmShared::new(BUDGET, 0),
        now: 0,
        timer: None,
    };
    driver.feed(Event::Enable, GuestWords::SILENT);
    driver.feed(Event::Registered(true), GuestWords::SILENT);
    let mut halted = false;
    for step in bytes.chunks_exact(36) {
        let mut words = [0; 4];
        for (word, bytes) in words.iter_mut().zip(step[4..].chunks_exact(8)) {
            *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
            round_trips::<Intent>(*word);
            round_trips::<CsState>(*word);
            round_trips::<BoostRequest>(*word);
            round_trips::<Header>(*word);
            round_trips::<Status>(*word);
        }
        let [intent, cs, request, ack] = words;
        let words = GuestWords::from_raw(intent, cs, request, ack);
        driver.pass(u64::from(u16::from_le_bytes([step[1], step[2]])) * 100, words);
        let event = match step[0] % 8 {
            _ if halted => {
                halted = false;
                Event::Woken
            }
            0 => Event::Injected(Injection::Timer),
            1 => Event::Sampled(words),
            2 => Event::Notify(words),
            3 => {
                halted = true;
                Event::Halted(words)
            }
            4 => Event::Registered(step[3] % 2 == 0),
            5 => Event::Enable,
            _ => Event::Exit(words),
        };
        driver.feed(event, words);
        assert_eq!(driver.policy.is_boosted(), driver.policy.status() == Status::Boosted);
        let earned = u128::from(driver.now) * u128::from(BUDGET.refill_ppm) / 1_000_000;
        let boosted = u128::from(driver.policy.stats().boosted_ns);
        // A nanosecond of rounding for each of the two buckets.
        assert!(boosted <= u128::from(BUDGET.burst_ns) + earned + 2, "{boosted} ns");
    }
});
