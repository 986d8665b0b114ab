//! From `[policy.NAME]` tables to policies.

use std::collections::BTreeMap;

use vcoop_policy::config::{Budget, DynamicConfig, Means, WakeBoostConfig};

use super::keys::PolicyKeys;
use crate::diagnostic::{Collector, Span, nearest};
use crate::plan::{GuestTimer, PolicyPlan};
use crate::toml_read::At;
use crate::toml_read::table::{Keyed, table};

/// The built-in policies and their parameters, in the format of scenario files.
pub(crate) const BUILTIN: &str = include_str!("policies.toml");
/// Names of the built-in policies, in the order lists show them.
pub(crate) const NAMES: [&str; 4] = ["vanilla", "wake-boost", "dynamic", "static"];
/// Longest chain of `base`; longer ones go in a circle.
const MAX_BASES: usize = 16;

table! {
    /// A file of policies only.
    pub(crate) struct PolicyFile {
        /// Policies.
        policy: Keyed<PolicyKeys>,
    }
}

/// A policy under a name.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    /// The policy.
    pub(crate) plan: PolicyPlan,
    /// Who fires the guests' deadlines under it, if it says so.
    pub(crate) timer: Option<GuestTimer>,
}

/// Every policy of a scenario by name: built-in ones and the user's own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Policies {
    /// Name to policy.
    pub(crate) plans: BTreeMap<String, Named>,
    /// Where a means was set to an EEVDF slice, if by the user.
    pub(crate) slices: Vec<Span>,
    /// Where a means was set to a reservation, by policy.
    pub(crate) deadlines: BTreeMap<String, Span>,
}

impl Policies {
    /// Resolves every policy there is; `builtin` is the parsed [`BUILTIN`].
    pub(crate) fn resolve(
        user: &Keyed<PolicyKeys>,
        builtin: &Keyed<PolicyKeys>,
        errors: &mut Collector<'_>,
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
                match means.value.0 {
                    Means::Slice(_) => all.slices.push(means.span),
                    Means::Deadline { .. } => {
                        all.deadlines.insert(name.value.clone(), means.span);
                    }
                    Means::Fifo(_) | Means::Rr(_) | Means::Nice(_) => {}
                }
            }
            if let Some(plan) = plan(&kind, &keys, name.span, errors) {
                let timer = keys.timer.as_ref().map(|timer| timer.value.resolve());
                all.plans.insert(name.value.clone(), Named { plan, timer });
            }
        }
        all
    }
}

/// The built-in policy at the end of the chain of bases, and all keys set along it.
fn chain(
    name: &str,
    span: Span,
    user: &Keyed<PolicyKeys>,
    builtin: &Keyed<PolicyKeys>,
    depth: usize,
    errors: &mut Collector<'_>,
) -> Option<(String, PolicyKeys)> {
    if depth > MAX_BASES {
        errors.error(span, format!("the base of policy `{name}` leads back to itself"));
        return None;
    }
    let find = |all: &Keyed<PolicyKeys>| {
        all.0.iter().find(|(n, _)| n.value == name).map(|(n, keys)| (n.span, keys.clone()))
    };
    let own = find(user);
    if let Some((_, defaults)) = find(builtin) {
        let Some((_, keys)) = own else { return Some((name.to_owned(), defaults)) };
        if let Some(base) = &keys.base {
            let message = format!("`{name}` is a built-in policy: it has no base");
            errors.error_help(base.span, message, "give the variant a name of its own");
        }
        return Some((name.to_owned(), over(keys, defaults)));
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
    let (kind, inherited) = chain(&base.value.0, base.span, user, builtin, depth + 1, errors)?;
    refuse_foreign(&kind, &keys, errors);
    Some((kind, over(keys, inherited)))
}

/// Every key and whether the built-in policies `vanilla`, `static`, `dynamic`, `wake-boost` have it;
/// the only list of keys besides the declaration.
macro_rules! each_key {
    ($run:ident) => {
        $run! {
            means: false, true, true, true;
            vcpu_burst: false, false, true, true;
            vcpu_refill: false, false, true, true;
            vm_burst: false, false, true, true;
            vm_refill: false, false, true, true;
            max_preempt_off: false, false, true, false;
            boost_on_injection: false, false, true, false;
            boost_on_request: false, false, true, false;
            boost_across_idle: false, false, true, false;
            run: false, false, false, true;
            timer: true, true, true, true;
        }
    };
}

/// `keys`, and what they lack from `under`.
fn over(keys: PolicyKeys, under: PolicyKeys) -> PolicyKeys {
    macro_rules! merge {
        ($( $key:ident: $v:literal, $a:literal, $b:literal, $c:literal; )+) => {
            PolicyKeys { base: None, $( $key: keys.$key.or(under.$key), )+ }
        };
    }
    each_key!(merge)
}

/// A key the policy does not have would silently do nothing.
fn refuse_foreign(kind: &str, keys: &PolicyKeys, errors: &mut Collector<'_>) {
    let mut allowed = Vec::new();
    let mut wrong = Vec::new();
    let column = |in_vanilla, in_static, in_dynamic, in_wake| match kind {
        "static" => in_static,
        "dynamic" => in_dynamic,
        "wake-boost" => in_wake,
        _ => in_vanilla,
    };
    macro_rules! sort {
        ($( $key:ident: $v:literal, $a:literal, $b:literal, $c:literal; )+) => {
            $( if column($v, $a, $b, $c) {
                allowed.push(stringify!($key));
            } else if let Some(key) = &keys.$key {
                wrong.push((stringify!($key), key.span));
            } )+
        };
    }
    each_key!(sort);
    for (key, span) in wrong {
        let message = format!("`{key}` means nothing to `{kind}`");
        let help = format!("parameters of `{kind}`: {}", allowed.join(", "));
        errors.error_help(span, message, help);
    }
}

fn plan(
    kind: &str,
    keys: &PolicyKeys,
    span: Span,
    errors: &mut Collector<'_>,
) -> Option<PolicyPlan> {
    refuse_foreign(kind, keys, errors);
    let budget = |burst: &Option<At<_>>, refill_ppm: Option<u32>| {
        let burst: &Option<At<crate::toml_read::units::Span1>> = burst;
        Some(Budget { burst_ns: burst.as_ref()?.value.0, refill_ppm: refill_ppm? })
    };
    let means = keys.means.as_ref().map(|m| m.value.0);
    let vcpu = budget(&keys.vcpu_burst, keys.vcpu_refill.as_ref().map(|k| k.value.ppm));
    let vm = budget(&keys.vm_burst, keys.vm_refill.as_ref().map(|k| k.value.ppm));
    let flag = |key: &Option<At<bool>>| key.as_ref().map(|k| k.value);
    let complete = || -> Option<PolicyPlan> {
        Some(match kind {
            "static" => PolicyPlan::Static { means: means? },
            "dynamic" => PolicyPlan::Dynamic(DynamicConfig {
                means: means?,
                vcpu_budget: vcpu?,
                vm_budget: vm?,
                max_preempt_off_ns: keys.max_preempt_off.as_ref()?.value.0,
                boost_on_injection: flag(&keys.boost_on_injection)?,
                boost_on_request: flag(&keys.boost_on_request)?,
                boost_across_idle: flag(&keys.boost_across_idle)?,
            }),
            "wake-boost" => PolicyPlan::WakeBoost(WakeBoostConfig {
                means: means?,
                run_ns: keys.run.as_ref()?.value.0,
                vcpu_budget: vcpu?,
                vm_budget: vm?,
            }),
            _ => PolicyPlan::Vanilla,
        })
    };
    let plan = complete();
    if plan.is_none() {
        // Only if the built-in defaults lack a key, which their test excludes.
        errors.error(span, format!("policy `{kind}` lacks a parameter"));
    }
    plan
}
