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
    let names: Vec<&str> = sweep.axes.iter().map(Axis::name).collect();
    assert_eq!(names, ["host.pcpus", "a.x", "vm.guest.count"]);
    assert_eq!(sweep.axes[1].paths, ["a.x", "b.y"]);
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
fn what_cannot_be_is_refused_with_its_place() {
    for (text, message) in [
        ("[axes]\n", "varies nothing"),
        ("[axes]\nx = 3\n", "not a list or a range"),
        ("[axes]\nx = [1, 1]\n", "there twice"),
        ("[axes]\n\"x, x\" = [1]\n", "varied twice"),
        ("[axes]\nrepeats = [1]\n", "cannot vary `repeats`"),
        ("[axes]\n\"a.b\" = { from = 1, to = 5 }\n", "how many values"),
        ("[axes]\n\"a.b\" = { from = 5, to = 1, points = 2 }\n", "above `from`"),
        ("[axes]\n\"a.b\" = { from = 0, to = 1, points = 2, scale = \"log\" }\n", "above 0"),
        ("[axes]\n\"a.b\" = { from = 0, to = 3, points = 9 }\n", "different integers"),
        ("[axes]\n\"a.b\" = { from = 1, to = \"3ms\", points = 2 }\n", "not of one kind"),
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
