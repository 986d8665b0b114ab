use super::*;

const HEAD: &str = "name = \"s\"\nscenario = \"busy-host-1\"\n";

fn of(rest: &str) -> Sweep {
    Sweep::parse("s.toml", &format!("{HEAD}{rest}")).unwrap_or_else(|e| panic!("{e}"))
}

fn refused(rest: &str) -> String {
    Sweep::parse("s.toml", &format!("{HEAD}{rest}")).unwrap_err().to_string()
}

#[test]
fn axes_are_lists_ranges_and_paths_that_nest() {
    let sweep = of("[axes]\nhost.pcpus = [1, 2]\n\"a.x, b.y\" = [\"1ms\"]\n\
                    [axes.vm.guest]\ncount = { from = 1, to = 64, points = 7, scale = \"log\" }\n");
    let names: Vec<&str> = sweep.axes.iter().map(|axis| &*axis.name).collect();
    assert_eq!(names, ["host.pcpus", "a.x", "vm.guest.count"]);
    assert_eq!(sweep.axes[1].paths(), ["a.x", "b.y"]);
    let Values::Range(range) = sweep.axes[2].values else { panic!("no range") };
    let values: Vec<String> = (0..7).map(|i| range.at(f64::from(i) / 6.0).text).collect();
    assert_eq!(values, ["1", "2", "4", "8", "16", "32", "64"]);
    let texts: Vec<String> = sweep.axes[1]
        .sets(&AxisValue { toml: "\"1ms\"".to_owned(), text: "1ms".to_owned() })
        .iter()
        .map(|set| set.text().to_owned())
        .collect();
    assert_eq!(texts, ["a.x=\"1ms\"", "b.y=\"1ms\""]);
}

#[test]
fn ranges_keep_units_and_ends() {
    let sweep =
        of("[axes]\n\"a.t\" = { from = \"100us\", to = \"10ms\", points = 3, scale = \"log\" }\n\
                    \"b.p\" = { from = \"0%\", to = \"50%\", points = 2 }\n\
                    \"c.f\" = { from = 0, to = 1.5, points = 2 }\n");
    let at = |axis: usize, share: f64| match &sweep.axes[axis].values {
        Values::Range(range) => range.at(share).toml,
        Values::List(_) => panic!("a list"),
    };
    assert_eq!([at(0, 0.0), at(0, 0.5), at(0, 1.0)], ["\"100us\"", "\"1ms\"", "\"10ms\""]);
    assert_eq!([at(1, 0.0), at(1, 0.3333)], ["\"0%\"", "\"16.7%\""]);
    assert_eq!([at(2, 0.0), at(2, 1.0)], ["0.0", "1.5"]);
}

#[test]
fn cases_vary_several_fields_together() {
    let sweep = of(
        "[axes]\nvms = [{ name = \"4\", set = { \"vm.guest.count\" = 4, duration = \"2s\" } },\n\
                    { name = 16, set.vm.guest.count = 16 }]\n",
    );
    let axis = &sweep.axes[0];
    let Values::List(names) = &axis.values else { panic!("no list") };
    let said = |value| axis.sets(value).iter().map(|s| s.text().to_owned()).collect::<Vec<_>>();
    assert_eq!(said(&names[0]), ["vm.guest.count=4", "duration=\"2s\""]);
    assert_eq!(said(&names[1]), ["vm.guest.count=16"]);
    assert_eq!((names[0].text.as_str(), names[1].text.as_str()), ("4", "16"));
    assert_eq!(axis.paths(), ["vm.guest.count", "duration"]);
}

#[test]
fn ratios_name_the_field_that_makes_them() {
    let of = |text: &str| of(&format!("[axes]\n{text}")).axes.remove(0);
    let plain = of("vcpus_per_pcpu = [0.5, 1, 2.0]\n");
    assert_eq!(plain.vary, Vary::Ratio("host.pcpus".to_owned()));
    let Values::List(values) = &plain.values else { panic!("no list") };
    assert_eq!(values.iter().map(|v| v.text.as_str()).collect::<Vec<_>>(), ["0.5", "1", "2"]);
    assert!(plain.sets(&values[0]).is_empty(), "the rest of the scenario decides");
    let by = of("vcpus_per_pcpu = { by = \"vm.a.count\", values = [1] }\n");
    assert_eq!(by.paths(), ["vm.a.count"]);
    let range = of("vcpus_per_pcpu = { from = 1, to = 4, points = 3 }\n");
    let Values::Range(range) = range.values else { panic!("no range") };
    assert_eq!(range.at(0.5).text, "2.5", "between whole ratios are others");
}

#[test]
fn what_is_kept_is_listed() {
    let sweep = of("[axes]\nx = [1]\n[keep]\nprobes = [\"a.b\"]\n");
    assert_eq!(sweep.keep, Some(Keep { probes: vec!["a.b".to_owned()], columns: Vec::new() }));
    assert_eq!(of("[axes]\nx = [1]\n").keep, None);
}

#[test]
fn what_cannot_be_is_refused_with_its_place() {
    for (text, message) in [
        ("[axes]\n", "varies nothing"),
        ("[axes]\nx = 3\n", "not a list or a range"),
        ("[axes]\nx = [1, 1]\n", "1 is there twice"),
        ("[axes]\nx = [\"1ms\", \"1000us\"]\n", "\"1000us\" is there twice, also as \"1ms\""),
        ("[axes]\nx = [\"5%\", \"6%\", \"5.0%\"]\n", "there twice"),
        ("[axes]\nx = [1, 1.0]\n", "there twice"),
        ("[axes]\n\"x, x\" = [1]\n", "varied twice"),
        ("[axes]\nrepeats = [1]\n", "cannot vary `repeats`"),
        ("[axes]\n\"a.b\" = { from = 1, to = 5 }\n", "how many values"),
        ("[axes]\n\"a.b\" = { from = 5, to = 1, points = 2 }\n", "above `from`"),
        ("[axes]\n\"a.b\" = { from = 0, to = 1, points = 2, scale = \"log\" }\n", "above 0"),
        ("[axes]\n\"a.b\" = { from = 0, to = 3, points = 9 }\n", "different integers"),
        ("[axes]\n\"a.b\" = { from = 1, to = \"3ms\", points = 2 }\n", "not of one kind"),
        ("[axes]\nx = [{ name = \"a\", set = 3 }]\n", "sets nothing"),
        ("[axes]\nx = [{ name = \"a\" }, { name = \"b\", set.a.b = 3 }]\n", "a name and a set"),
        ("[axes]\nx = [{ name = \"a\", to = 1, set.a.b = 3 }]\n", "a name and a set"),
        ("[axes]\n\"x.y\" = [{ name = \"a\", set.a.b = 3 }]\n", "a name of its own"),
        (
            "[axes]\nx = [{ name = \"a\", set.a.b = 3 }, { name = \"a\", set.a.b = 4 }]\n",
            "there twice",
        ),
        ("[axes]\nx = [{ name = \"a\", set.seed = 3 }]\n", "cannot vary `seed`"),
        ("[axes]\n\"a.b\" = [1]\nx = [{ name = \"a\", set.a.b = 3 }]\n", "varied twice"),
        ("[axes]\nvcpus_per_pcpu = [0]\n", "a number above 0"),
        ("[axes]\nvcpus_per_pcpu = [\"1ms\"]\n", "a number above 0"),
        ("[axes]\nvcpus_per_pcpu = []\n", "no ratio"),
        ("[axes]\nvcpus_per_pcpu = 2\n", "no list of ratios"),
        ("[axes]\nvcpus_per_pcpu = { by = \"host.pcpus\" }\n", "a list or a range"),
        ("[axes]\nvcpus_per_pcpu = { from = 1, to = 2 }\n", "how many values"),
        ("[axes]\nvcpus_per_pcpu = [1]\nhost.pcpus = [2]\n", "varied twice"),
        ("[axes]\nx = [1]\n[keep]\nprobe = [\"a.b\"]\n", "did you mean `probes`"),
        ("design = \"soboll\"\n[axes]\nx = [1]\n", "did you mean `sobol`"),
        ("design = \"sobol\"\n[axes]\nx = [1]\n", "needs a number of points"),
        ("points = 3\n[axes]\nx = [1]\n", "its own number of points"),
        ("[axes]\nx = [1]\n[repeats]\nmin = 5\nmax = 9\n", "enough repeats"),
        ("[axes]\nx = [1]\n[repeats]\nmin = 5\nmax = 3\n", "below `min`"),
        ("[axes]\nx = [1]\n[stop]\nstatistic = \"p99\"\n", "without `width`"),
        ("axis = 1\n[axes]\nx = [1]\n", "did you mean `axes`"),
    ] {
        let found = refused(text);
        assert!(found.contains(message), "{text}: {found}");
        let empty = message == "varies nothing";
        assert_eq!(found.contains("varies nothing"), empty, "{text}: {found}");
        assert!(found.starts_with("s.toml:"), "{found}");
    }
}

#[test]
fn later_errors_stand_at_their_place() {
    let sweep = of("[axes]\nhost.pcpu = [1, 2]\n");
    let shown = sweep.place(Place::Axis(0), "no such field".to_owned(), None).to_string();
    assert!(shown.starts_with("s.toml:4:"), "{shown}");
    assert!(sweep.place(Place::Scenario, String::new(), None).line == 2);
}
