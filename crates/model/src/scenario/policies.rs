//! Resolves `[policy.NAME]` tables to policies.

use std::collections::BTreeMap;

use vcoop_credit1::Patches;
use vcoop_policy::config::{
    Budget, DynamicConfig, MIN_BOOST_NS, Means, RATELIMIT_CEILING_NS, RATELIMIT_FLOOR_NS,
    RatelimitConfig, WakeBoostConfig,
};

use super::credit1::policy_patches;
use super::keys::PolicyKeys;
use super::keys::sched::ClassKind;
use super::keys::texts::SLICES;
use super::keys::virt::VirtKeys;
use super::misfit::PolicyMisfit;
use super::pinning::Pinning;
use crate::diagnostic::{Collector, Span, nearest};
use crate::plan::PolicyPlan;
use crate::toml_read::Placed;
use crate::toml_read::table::{NamedTables, table};
use crate::toml_read::units::{Time, show};

/// The built-in policies and their parameters, in the format of scenario files.
pub(crate) const BUILTIN: &str = include_str!("policies.toml");
/// Names of the built-in policies, in the order lists show them.
pub const NAMES: [&str; 12] = [
    "vanilla",
    "wake-boost",
    "dynamic",
    "static",
    "pinned",
    "isolated",
    "ratelimit-auto",
    "step",
    "proportional",
    "entitlement",
    "host-hint",
    "hotplug",
];
/// Longest chain of `base`; a longer one is a circle.
const MAX_BASES: usize = 16;

table! {
    /// A file of policies only.
    pub(crate) struct PolicyFile {
        /// Policies.
        policy: NamedTables<PolicyKeys>,
    }
}

/// A policy under a name.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) plan: PolicyPlan,
    /// Virtualisation keys of the policy.
    pub(crate) virt: VirtKeys,
    /// Pins of the policy.
    pub(crate) pinning: Pinning,
}

/// Every policy of a scenario by name: built-in ones and the user's own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies {
    /// Name to policy.
    pub(crate) plans: BTreeMap<String, Named>,
    /// Patches of credit1 that replace the host's, by policy.
    pub(crate) patches: BTreeMap<String, Patches>,
    /// Places where the user set a means to an EEVDF slice.
    pub(crate) slices: Vec<Span>,
    /// Place where a means was set to a reservation, by policy.
    pub(crate) deadlines: BTreeMap<String, Span>,
    /// Places where a means was set to `ext`.
    pub(crate) exts: Vec<Span>,
}

impl Policies {
    /// Resolves all policies, for a host with so many pCPUs; `builtin` is the parsed [`BUILTIN`].
    pub(crate) fn resolve(
        user: &NamedTables<PolicyKeys>,
        builtin: &NamedTables<PolicyKeys>,
        pcpus: u32,
        errors: &Collector,
    ) -> Self {
        let mut all = Self::default();
        let names = user.0.iter().chain(&builtin.0).map(|(name, _)| name);
        for name in names {
            if all.plans.contains_key(&name.value) {
                continue;
            }
            let Some((kind, keys)) = chain(&name.value, name.span, user, builtin, 0, errors) else {
                continue;
            };
            if let Some(means) = &keys.means {
                match means.value {
                    Means::Slice(_) => all.slices.push(means.span),
                    Means::Deadline { .. } => {
                        all.deadlines.insert(name.value.clone(), means.span);
                    }
                    Means::Ext => all.exts.push(means.span),
                    Means::Fifo(_) | Means::Rr(_) | Means::Nice(_) => {}
                }
            }
            if let Some(slice) = keys.rest_slice.as_ref().filter(|slice| slice.value.0 > 0) {
                all.slices.push(slice.span);
                if !SLICES.contains(&slice.value.0) {
                    let message = format!("`rest_slice` cannot be {}", show(slice.value.0));
                    errors.error_help(slice.span, message, "0us (none), or 100us to 100ms");
                }
            }
            if let Some(longest) = &keys.longest_boost
                && (1..MIN_BOOST_NS).contains(&longest.value.0)
            {
                let message = format!("`longest_boost` cannot be {}", show(longest.value.0));
                let help =
                    format!("0us (as the budget allows), or {} and more", show(MIN_BOOST_NS));
                errors.error_help(longest.span, message, help);
            }
            if let Some(patches) = policy_patches(&keys, errors) {
                all.patches.insert(name.value.clone(), patches);
            }
            if let Some(plan) = plan(&kind, &keys, name.span, errors) {
                let pinning = Pinning::of(&keys);
                pinning.check(pcpus, errors);
                all.plans.insert(name.value.clone(), Named { plan, virt: keys.virt.0, pinning });
            }
        }
        all
    }

    /// Why a policy cannot run on this host, and which can; `None` if it can, or does not exist.
    pub(crate) fn unfit(&self, name: &str, class: ClassKind) -> Option<PolicyMisfit> {
        let Named { plan, virt, pinning } = self.plans.get(name)?;
        let governs = virt.governor.is_some();
        let boosts = !matches!(plan, PolicyPlan::Vanilla | PolicyPlan::RatelimitAuto(_));
        let credit1 = class == ClassKind::Credit1;
        let whose = if class == ClassKind::PowerVm { "PowerVM's" } else { "Linux's" };
        let needs = "it needs class = \"credit1\" in [host.sched]";
        if let Some(unfit) = pinning.unfit(name, class) {
            return Some(unfit);
        }
        let (message, help) = if class == ClassKind::PowerVm && boosts {
            let help = "under class = \"powervm\" there are vanilla and the governors";
            (format!("`{name}` boosts Linux threads: there are none"), help)
        } else if credit1 && boosts {
            let help = "under class = \"credit1\" there are vanilla, pinned, ratelimit-auto, and \
                        policies with `patches`";
            (format!("`{name}` boosts Linux threads: there are none"), help)
        } else if credit1 && governs {
            let message = format!("`{name}` goes by the steal of a Linux host");
            (message, "it needs class = \"linux\" in [host.sched], which is the default")
        } else if credit1 {
            return None;
        } else if matches!(plan, PolicyPlan::RatelimitAuto(_)) {
            (format!("`{name}` sets ratelimits: {whose} scheduler has none"), needs)
        } else if self.patches.contains_key(name) {
            (format!("`{name}` patches Xen's scheduler, and this host has {whose}"), needs)
        } else {
            return None;
        };
        Some(PolicyMisfit { message, help: help.to_owned() })
    }
}

/// The built-in policy at the end of the chain of bases, and all keys set along it.
fn chain(
    name: &str,
    span: Span,
    user: &NamedTables<PolicyKeys>,
    builtin: &NamedTables<PolicyKeys>,
    depth: usize,
    errors: &Collector,
) -> Option<(String, PolicyKeys)> {
    if depth > MAX_BASES {
        errors.error(span, format!("the base of policy `{name}` leads back to itself"));
        return None;
    }
    let find = |all: &NamedTables<PolicyKeys>| {
        all.0.iter().find(|(n, _)| n.value == name).map(|(n, keys)| (n.span, keys.clone()))
    };
    let own = find(user);
    if let Some((_, defaults)) = find(builtin) {
        let Some((_, keys)) = own else { return Some((name.to_owned(), defaults)) };
        if let Some(base) = &keys.base {
            let message = format!("`{name}` is a built-in policy: it has no base");
            errors.error_help(base.span, message, "give the variant a name of its own");
        }
        return Some((name.to_owned(), keys.over(defaults)));
    }
    let names: Vec<&str> =
        NAMES.iter().copied().chain(user.0.iter().map(|(n, _)| n.value.as_str())).collect();
    let Some((at, keys)) = own else {
        let message = format!("there is no policy `{name}`");
        errors.error_help(span, message, nearest(name, "policies", &names));
        return None;
    };
    let Some(base) = &keys.base else {
        let help = nearest(name, "add `base = ...`, one of", &NAMES);
        errors.error_help(at, format!("policy `{name}` is not built in and has no base"), help);
        return None;
    };
    let (kind, inherited) = chain(&base.value, base.span, user, builtin, depth + 1, errors)?;
    keys.refuse_foreign(&kind, errors);
    Some((kind, keys.over(inherited)))
}

fn plan(kind: &str, keys: &PolicyKeys, span: Span, errors: &Collector) -> Option<PolicyPlan> {
    keys.refuse_foreign(kind, errors);
    let budget = |burst: &Option<Placed<_>>, refill_ppm: Option<u32>| {
        let burst: &Option<Placed<crate::toml_read::units::Span1>> = burst;
        Some(Budget { burst_ns: burst.as_ref()?.value.0, refill_ppm: refill_ppm? })
    };
    let means = keys.means.as_ref().map(|m| m.value);
    let vcpu = budget(&keys.vcpu_burst, keys.vcpu_refill.as_ref().map(|k| k.value.ppm));
    let vm = budget(&keys.vm_burst, keys.vm_refill.as_ref().map(|k| k.value.ppm));
    let flag = |key: &Option<Placed<bool>>| key.as_ref().map(|k| k.value);
    let unless_0 = |key: &Option<Placed<Time>>| Some(key.as_ref()?.value.0).filter(|&ns| ns > 0);
    let complete = || -> Option<PolicyPlan> {
        Some(match kind {
            "static" => PolicyPlan::Static { means: means? },
            "dynamic" => PolicyPlan::Dynamic(DynamicConfig {
                means: means?,
                vcpu_budget: vcpu?,
                vm_budget: vm?,
                longest_boost_ns: unless_0(&keys.longest_boost),
                max_preempt_off_ns: keys.max_preempt_off.as_ref()?.value.0,
                boost_on_injection: flag(&keys.boost_on_injection)?,
                boost_receiver: flag(&keys.boost_receiver)?,
                boost_on_request: flag(&keys.boost_on_request)?,
                boost_across_idle: flag(&keys.boost_across_idle)?,
                repay: flag(&keys.repay)?,
                rest_slice_ns: unless_0(&keys.rest_slice),
            }),
            "wake-boost" => PolicyPlan::WakeBoost(WakeBoostConfig {
                means: means?,
                run_ns: keys.run.as_ref()?.value.0,
                vcpu_budget: vcpu?,
                vm_budget: vm?,
                boost_on_injection: flag(&keys.boost_on_injection)?,
                repay: flag(&keys.repay)?,
                rest_slice_ns: unless_0(&keys.rest_slice),
            }),
            "ratelimit-auto" => PolicyPlan::RatelimitAuto(RatelimitConfig {
                interval_ns: keys.interval.as_ref()?.value.0,
                min_ns: keys.min_ratelimit.as_ref()?.value.0,
                max_ns: keys.max_ratelimit.as_ref()?.value.0,
                brief_ns: keys.brief.as_ref()?.value.0,
                busy_ns: keys.busy.as_ref()?.value.0,
                pressed_per_s: keys.pressed.as_ref()?.value.get32(),
                calm_per_s: keys.calm.as_ref()?.value.get32(),
                confirm: keys.confirm.as_ref()?.value.get32(),
            }),
            _ => PolicyPlan::Vanilla,
        })
    };
    let plan = complete();
    if let Some(PolicyPlan::RatelimitAuto(config)) = &plan {
        check_ratelimits(config, keys, span, errors);
    }
    if plan.is_none() {
        // Only if the built-in defaults lack a key, which their test excludes.
        errors.error(span, format!("policy `{kind}` lacks a parameter"));
    }
    plan
}

/// Ratelimits that Xen accepts, and thresholds in their order.
fn check_ratelimits(config: &RatelimitConfig, keys: &PolicyKeys, span: Span, errors: &Collector) {
    let (floor, ceiling) = (show(RATELIMIT_FLOOR_NS), show(RATELIMIT_CEILING_NS));
    let range = RATELIMIT_FLOOR_NS..=RATELIMIT_CEILING_NS;
    let bound = |name: &str, key: &Option<Placed<Time>>, off: &str| {
        if let Some(Placed { value, span }) = key
            && !range.contains(&value.0)
            && (off.is_empty() || value.0 != 0)
        {
            let message = format!("`{name}` cannot be {}", show(value.0));
            errors.error_help(*span, message, format!("{off}{floor} to {ceiling}"));
        }
    };
    bound("min_ratelimit", &keys.min_ratelimit, "0us (off), or ");
    bound("max_ratelimit", &keys.max_ratelimit, "");
    // One of the two may be a default, so the error points to the policy.
    let order = |least: &str, most: &str, wrong: bool| {
        if wrong {
            let help = format!("`{least}` is at most `{most}`");
            errors.error_help(span, format!("`{least}` is above `{most}`"), help);
        }
    };
    let c = config;
    order("min_ratelimit", "max_ratelimit", c.min_ns > c.max_ns);
    order("brief", "busy", c.brief_ns > c.busy_ns);
    order("calm", "pressed", c.calm_per_s > c.pressed_per_s);
}
