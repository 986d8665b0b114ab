//! VMs come and go, and get the policies that rules give them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use vcoop_vmm::{Passed, Proc, Vm};

use crate::config::Config;
use crate::protocol::VmId;
use crate::service::{Service, Wants};

/// Time between two looks, if processes or threads have begun since the last one.
const LOOK: Duration = Duration::from_secs(2);
/// ... and if none has; also the time between two looks at all processes.
const REST: Duration = Duration::from_secs(10);
/// A VM that starts names the threads of its vCPUs after a while.
const STARTS: Duration = Duration::from_secs(5);

/// A VM that is followed.
#[derive(Debug)]
struct Followed {
    first_seen: Instant,
    vcpus: usize,
    /// What was said about it last, so that it is not said again and again.
    said: Option<String>,
}

/// Applies rules to the VMs of this host.
#[derive(Debug)]
pub struct Follower<'a> {
    service: &'a Service,
    config: Config,
    vms: BTreeMap<VmId, Followed>,
    looked: Option<Instant>,
    /// Last process or thread of this host, as of then.
    last: String,
    /// Who ran no VM since the last look at all processes, and when that was.
    passed: Passed,
    looked_at_all: Option<Instant>,
}

impl<'a> Follower<'a> {
    /// Has seen no VM yet.
    pub fn new(service: &'a Service, config: Config) -> Self {
        Self {
            service,
            config,
            vms: BTreeMap::new(),
            looked: None,
            last: String::new(),
            passed: Passed::default(),
            looked_at_all: None,
        }
    }

    /// Other rules from now on. VMs that somebody detached get theirs again.
    pub fn reload(&mut self, config: Config) {
        self.config = config;
        self.service.forget_detached();
        self.looked = None;
        self.vms.values_mut().for_each(|vm| vm.said = None);
    }

    /// Looks for VMs, if it is time to.
    pub fn look(&mut self) {
        let since = self.looked.map(|at| at.elapsed());
        // The number of the last thread is in the load's file: while it stays, no VM can have come.
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let last = load.split_whitespace().next_back().unwrap_or_default();
        let quiet = last == self.last && !self.vms.values().any(Followed::starts);
        if since.is_some_and(|since| since < if quiet { REST } else { LOOK }) {
            return;
        }
        last.clone_into(&mut self.last);
        self.looked = Some(Instant::now());
        if self.looked_at_all.is_none_or(|at| at.elapsed() >= REST) {
            self.looked_at_all = self.looked;
            self.passed = Passed::default();
        }
        match Proc::default().scan_again(&mut self.passed) {
            Ok(scan) => self.apply(&scan.vms),
            Err(why) => tracing::error!("/proc: {why}"),
        }
    }

    fn apply(&mut self, vms: &[Vm]) {
        let there: BTreeSet<VmId> = vms.iter().map(VmId::of).collect();
        self.vms.retain(|id, _| {
            let stays = there.contains(id);
            if !stays {
                tracing::info!("{}: it has ended", id.name);
                self.service.ended(id);
            }
            stays
        });
        for vm in vms {
            self.follow(vm);
        }
    }

    fn follow(&mut self, vm: &Vm) {
        let id = VmId::of(vm);
        let new = Followed { first_seen: Instant::now(), vcpus: 0, said: None };
        let followed = self.vms.entry(id.clone()).or_insert(new);
        let rule = self.config.rule(vm).filter(|(_, rule)| rule.acts());
        let wants = self.service.wants(&id);
        let Some((number, rule)) = rule else {
            if matches!(wants, Wants::Rule(_)) && self.service.take_back(&id) {
                tracing::info!("{}: no rule applies to it any more", id.name);
            }
            return;
        };
        let applied = (rule.policy.clone(), rule.sets.clone());
        let due = match wants {
            Wants::Nothing => true,
            Wants::Rule(now) => now != applied || followed.vcpus != vm.vcpus.len(),
            Wants::Person | Wants::LetBe => false,
        };
        // Some of its threads may not have a name yet.
        let whole = !vm.vcpus.is_empty() && vm.unplaced.unwrap_or(0) == 0;
        if !due || !whole && followed.starts() {
            return;
        }
        let said = match self.service.apply(vm, &rule.policy, &rule.sets) {
            Ok(status) => {
                followed.vcpus = vm.vcpus.len();
                let alone = status.vcpus.len() - status.driven().count();
                let (name, policy, vcpus) = (&id.name, &rule.policy, status.extent());
                let mut said = format!("{name}: {policy} on {vcpus}, by rule {number}");
                if alone > 0 {
                    said += &format!("; {alone} are left alone");
                }
                said
            }
            Err(why) => format!("{}: rule {number} cannot be applied: {why}", id.name),
        };
        if followed.said.as_ref() != Some(&said) {
            tracing::info!("{said}");
            followed.said = Some(said);
        }
    }
}

impl Followed {
    fn starts(&self) -> bool {
        self.first_seen.elapsed() < STARTS
    }
}
