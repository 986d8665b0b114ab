use super::*;
use crate::diagnostic::Diagnostics;

const ZERO: &str = "zero";

fn refused(text: &str) -> Diagnostics {
    Profile::parse("p.toml", text).expect_err("refused")
}

fn zero() -> String {
    Profile::builtin_text(ZERO).unwrap().to_owned()
}

#[test]
fn built_ins_parse_and_round_trip() {
    for name in Profile::builtin_names() {
        let profile = Profile::load(name).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(profile.name, name);
        let costs = profile.costs.entries().len() + profile.costs.cstates.len();
        let sourced = costs + usize::from(profile.cpu.is_some()) + profile.noise.len();
        assert_eq!(profile.sources.len(), sourced);
        let again = Profile::parse("again", &profile.to_toml()).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(again, profile);
    }
}

#[test]
fn a_cpu_is_described_in_full_or_not_at_all() {
    let text = zero();
    let without = text.replace("[cpu]\n", "[cpu_]\n");
    assert!(Profile::parse("zero", &without).unwrap_err().to_string().contains("cpu_"));
    let odd = text.replace("signature = \"0\"", "signature = \"Haswell\"");
    assert!(Profile::parse("zero", &odd).unwrap_err().to_string().contains("is no signature"));
    let unsourced = text.replace("tsc_khz = 1000000\n", "");
    assert!(Profile::parse("zero", &unsourced).unwrap_err().to_string().contains("tsc_khz"));
    let haswell = Profile::load("haswell-ep").unwrap();
    let cpu = haswell.cpu.expect("the machine of hv-timer is known");
    assert_eq!((cpu.signature, cpu.preemption_timer_shift), (0x306f2, Some(5)));
    assert!(!cpu.avoids_preemption_timer());
}

#[test]
fn machines_are_what_they_say() {
    assert_eq!(Profile::load("celeron-n4500").unwrap().topology.cpus(), 4);
    assert_eq!(Profile::load("xeon-server").unwrap().topology.cpus(), 48);
    let epyc = Profile::load("epyc-server").unwrap();
    assert_eq!((epyc.topology.cpus(), epyc.topology.llc(16)), (192, 1), "16 threads in a CCX");
    let svm = |name: &str| Profile::load(name).unwrap().cpu.unwrap().has_svm();
    let all = ["epyc-server", "epyc-pvm", "xeon-server", "celeron-n4500"];
    assert_eq!(all.map(svm), [true, true, false, false]);
    assert!(epyc.cpu.unwrap().avoids_preemption_timer());
    let spins = |name| Profile::load(name).unwrap().costs.pv_spin_ns;
    assert!(10 * spins("haswell-ep") < spins("xeon-server"), "PAUSE takes longer since Skylake");
    let zero = Profile::load(ZERO).unwrap().costs;
    let times = ["voluntary_point", "pv_spin"];
    assert!(zero.entries().iter().all(|(key, ns)| *ns == 0 || times.contains(key)));
}

const SPREAD: &str =
    "{ min = 1, p10 = 2, p50 = 3, p90 = 4, p99 = 50, p999 = 600, p9999 = 7000, max = 80000 }";

/// The profile `zero` whose exits and idle state vary.
fn varying(spread: &str) -> String {
    zero()
        .replace("\nexit = { ns = 0,", &format!("\nexit = {{ ns = 3, spread = {spread},"))
        .replace("residency = ", &format!("spread = {spread}\nresidency = "))
}

#[test]
fn costs_that_vary_round_trip() {
    let profile = Profile::parse("p.toml", &varying(SPREAD)).unwrap_or_else(|e| panic!("{e}"));
    let spread = &profile.costs.spread;
    assert_eq!(spread.keys().collect::<Vec<_>>(), ["cstate.C1", "exit"]);
    assert_eq!(spread["exit"].values(), [1, 2, 3, 4, 50, 600, 7_000, 80_000]);
    assert_eq!(profile.costs.exit_ns, 3);
    assert_eq!(Profile::parse("again", &profile.to_toml()).as_ref(), Ok(&profile));
    let text = serde_json::to_string(&profile.costs).unwrap();
    assert_eq!(serde_json::from_str::<Costs>(&text).unwrap(), profile.costs);
}

#[test]
fn quantiles_that_descend_or_are_missing_are_refused() {
    let found = refused(&varying(&SPREAD.replace("p90 = 4", "p90 = 2"))).to_string();
    assert!(found.contains("do not descend"), "{found}");
    let found = refused(&varying(&SPREAD.replace("p90 = 4, ", ""))).to_string();
    assert!(found.contains("missing key `p90`"), "{found}");
    let found = refused(&varying("7")).to_string();
    assert!(found.contains("expected quantiles"), "{found}");
}

fn noisy(period: &str, takes: &str) -> String {
    let noise = |by: &str| {
        format!(
            "\n[[noise]]\nname = \"{by}\"\nby = \"{by}\"\nperiod = \"{period}\"\n\
             takes = {takes}\nsource = \"assumed: x\"\n"
        )
    };
    zero() + &noise("interrupts") + &noise("threads")
}

#[test]
fn noise_round_trips() {
    let profile = Profile::parse("p.toml", &noisy("3ms", SPREAD)).unwrap_or_else(|e| panic!("{e}"));
    let found: Vec<_> = profile.noise.iter().map(|n| (n.by, n.period_ns, n.mean_ns)).collect();
    let mean = Quantiles::ascending([1, 2, 3, 4, 50, 600, 7_000, 80_000]).mean();
    assert_eq!(
        found,
        [(NoiseBy::Interrupts, 3_000_000, mean), (NoiseBy::Threads, 3_000_000, mean)]
    );
    assert_eq!(profile.sources["noise.threads"], "assumed: x");
    assert_eq!(Profile::parse("again", &profile.to_toml()).as_ref(), Ok(&profile));
}

#[test]
fn noise_may_have_the_mean_that_was_measured() {
    let with = |mean: &str| noisy("3ms", &format!("{SPREAD}\nmean = \"{mean}\""));
    let profile = Profile::parse("p.toml", &with("9ns")).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(profile.noise[0].mean_ns, 9);
    assert_eq!(Profile::parse("again", &profile.to_toml()).as_ref(), Ok(&profile));
    let found = refused(&with("1ms")).to_string();
    assert!(found.contains("no distribution with these quantiles has this mean"), "{found}");
}

#[test]
fn shipped_noise_has_the_mean_that_its_source_says() {
    let noises = Profile::builtin_names().flat_map(|name| {
        let Profile { noise, sources, .. } = Profile::load(name).unwrap();
        noise.into_iter().map(move |n| (n.mean_ns, sources[&format!("noise.{}", n.name)].clone()))
    });
    let wrong: Vec<_> =
        noises.filter(|(ns, text)| !text.contains(&format!("mean {ns} ns"))).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn noise_that_takes_the_whole_cpu_or_has_a_name_twice_is_refused() {
    let always = SPREAD.replace("p10 = 2", "p10 = 1").replace("max = 80000", "max = 90000000");
    let found = refused(&noisy("2us", &always)).to_string();
    assert!(found.contains("takes all of the CPU"), "{found}");
    let twice = noisy("3ms", SPREAD).replace("name = \"threads\"", "name = \"interrupts\"");
    assert!(refused(&twice).to_string().contains("two noises interrupts"));
}

#[test]
fn unknown_profile_names_the_nearest() {
    let text = Profile::load("celeron-n450").unwrap_err().to_string();
    assert!(text.contains("did you mean `celeron-n4500`?"), "{text}");
    assert!(Profile::load("no/such.toml").unwrap_err().to_string().contains("cannot read"));
    assert!(
        Profile::load("/dev/zero")
            .unwrap_err()
            .to_string()
            .contains("it is a device, not a regular file")
    );
}

#[test]
fn a_missing_cost_is_refused_at_costs() {
    let text = zero();
    let line = text.lines().position(|l| l.starts_with("wakeup =")).unwrap();
    let without: Vec<&str> =
        text.lines().enumerate().filter(|(i, _)| *i != line).map(|(_, l)| l).collect();
    let found = refused(&without.join("\n"));
    assert_eq!(found.0.len(), 1);
    assert_eq!(found.0[0].message, "missing key `wakeup`");
    assert_eq!(found.0[0].snippet, "[costs]");
}

#[test]
fn several_slips_are_reported_at_once() {
    let text = zero()
        .replace("\nwakeup = { ns = 0,", "\nwakeup = { ns = -1,")
        .replacen("\nexit = { ns", "\nexitt = { ns", 1)
        .replacen("setattr = { ns = 0, source = \"assumed: ", "setattr = { ns = 0, source = \"", 1);
    let found = refused(&text);
    let all = found.to_string();
    assert!(all.contains("-1 is out of range"), "{all}");
    assert!(all.contains("unknown key `exitt`") && all.contains("did you mean `exit`?"), "{all}");
    assert!(all.contains("missing key `exit`"), "{all}");
    assert!(all.contains("does not say where the number is from"), "{all}");
    assert_eq!(found.0.len(), 4);
}

#[test]
fn idle_states_must_deepen() {
    let deep = "\n[[cstate]]\nname = \"C9\"\nexit = \"9us\"\nresidency = \"9us\"\nsource = \"assumed: x\"\n";
    let shallow = deep.replace("C9", "C2").replace("9us", "2us");
    let found = refused(&format!("{}{deep}{shallow}", zero()));
    assert_eq!(found.0[0].message, "idle state C2 is shallower than C9");
}

#[test]
fn a_distance_of_zero_is_refused() {
    let found =
        refused(&zero().replace("voluntary_point = { ns = 50000", "voluntary_point = { ns = 0"));
    assert!(found.to_string().contains("it cannot be 0"), "{found}");
}
