//! The HTML report: whole, self-contained, and deaf to what people call their things.

use crate::support::measured;
use vcoop_experiment::result::Document;
use vcoop_report::chart::{Chart, Layer, Scale, Slot, colours};
use vcoop_report::{charts_of, pictures, render_html, render_validation_html};

/// Fails unless every element that is opened is closed, in order.
fn assert_balanced(text: &str) {
    const VOID: [&str; 4] = ["meta", "link", "br", "hr"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        if rest.starts_with('!') {
            continue;
        }
        let end = rest.find('>').expect("a tag ends");
        let tag = &rest[..end];
        assert!(!tag.contains('<'), "an unescaped <: {tag}");
        assert!(tag.matches('"').count().is_multiple_of(2), "an unescaped quote: {tag}");
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "closed in disorder");
        } else if !tag.ends_with('/') && !VOID.contains(&name) {
            open.push(name);
            if matches!(name, "script" | "style") {
                let close = rest.find(&format!("</{name}>")).expect("it is closed");
                rest = &rest[close..];
            }
        }
    }
    assert_eq!(open, Vec::<&str>::new());
}

fn page(document: &Document) -> String {
    let page = render_html(document);
    assert_balanced(&page);
    page
}

/// The charts whose id begins so.
fn of<'c>(charts: &'c [Chart], id: &str) -> Vec<&'c Chart> {
    charts.iter().filter(|chart| chart.id.starts_with(id)).collect()
}

#[test]
fn everything_is_there_and_nothing_comes_from_elsewhere() {
    let document = measured("");
    let page = page(&document);
    for id in [
        "verdict",
        "slower",
        "cost",
        "parts",
        "quantiles",
        "histograms",
        "storm",
        "samples",
        "intervals",
        "time",
        "events",
        "latency",
        "costs",
        "worst",
        "environment",
    ] {
        assert!(page.contains(&format!("<section id=\"{id}\"")), "no section {id}");
        assert!(page.contains(&format!("href=\"#{id}\"")), "no link to {id}");
    }
    for chart in charts_of(&document) {
        assert!(page.contains(&format!(
            "<figure class=\"figure{}\" id=\"{}\">",
            if chart.wide { " wide" } else { "" },
            chart.id
        )));
        assert!(!chart.table.rows.is_empty(), "{} has no numbers", chart.id);
        assert!(!chart.title.is_empty() && !chart.caption.is_empty());
    }
    assert!(page.contains("vcoop run small"));
    let words = page.replace('\u{a0}', " ").replace('\u{2192}', "-&gt;");
    assert!(words.contains(&document.verdicts[0].text.replace('>', "&gt;").replace('\'', "&#39;")));
    for foreign in page.match_indices("http") {
        let what = &page[foreign.0..(foreign.0 + 45).min(page.len())];
        let known =
            ["http://www.w3.org/2000/svg", "https://github.com/leeoniya/uPlot", "http-equiv"];
        assert!(known.iter().any(|k| what.starts_with(k)), "{what}");
    }
    assert!(!page.contains(" src="));
}

#[test]
fn a_result_read_back_gives_the_same_page() {
    let document = measured("");
    let again: Document = serde_json::from_str(&document.to_json()).unwrap();
    assert_eq!(again, document);
    assert_eq!(render_html(&again), render_html(&document));
}

#[test]
fn names_that_are_alike_stay_apart() {
    let json = measured("").to_json().replace("host.probe", "guest-rt");
    let alike: Document = serde_json::from_str(&json).unwrap();
    let mut ids: Vec<String> = charts_of(&alike).into_iter().map(|chart| chart.id).collect();
    assert!(ids.iter().any(|id| id.ends_with("-again")), "{ids:?}");
    let count = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), count);
}

/// A policy's colour in the first chart that has it, by the legend.
fn colour(document: &Document, policy: &str) -> Option<Slot> {
    let charts = charts_of(document);
    let mut keys = charts.iter().flat_map(|chart| &chart.legend);
    keys.find(|key| key.label == policy).map(|key| key.slot)
}

#[test]
fn a_policy_has_the_same_colour_whatever_it_is_compared_with() {
    let renamed = |from: &[&str; 2], to: &[&str; 2]| {
        let mut text = serde_json::to_string(&measured("")).unwrap();
        for (from, to) in from.iter().zip(to) {
            text = text.replace(&format!("\"{from}\""), &format!("\"{to}\""));
        }
        serde_json::from_str::<Document>(&text).unwrap()
    };
    let usual = measured("");
    assert_eq!(colour(&usual, "vanilla"), Some(Slot::Series(0)));
    assert_eq!(colour(&usual, "dynamic"), Some(Slot::Series(2)));
    let fixed = renamed(&["vanilla", "dynamic"], &["vanilla", "static"]);
    assert_eq!(colour(&fixed, "static"), Some(Slot::Series(3)));
    // Beside one of the usual ones another policy has none of their colours.
    let own = renamed(&["vanilla", "dynamic"], &["gentle", "dynamic"]);
    assert_eq!(own.baseline, "gentle");
    assert_eq!(colour(&own, "gentle"), Some(Slot::Series(0)));
    assert_eq!(colour(&own, "dynamic"), Some(Slot::Series(2)));
    let alone = renamed(&["vanilla", "dynamic"], &["halt", "poll"]);
    assert_eq!(colour(&alone, "poll"), Some(Slot::Series(1)));
    // As a user asks who draws with other tools.
    let named = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
    let page = render_html(&usual);
    let asked = colours(&named(&["vanilla", "dynamic"]), "vanilla");
    for (slot, colour) in ["s0", "s2"].iter().zip(&asked) {
        assert!(page.contains(&format!("--{slot}:{colour};")), "{slot} {colour}");
    }
    let many: Vec<String> = (0..20).map(|n| format!("p{n}")).collect();
    assert!(colours(&many, "p0").iter().all(|c| c.len() == 7 && *c != "#000000"));
}

/// A result on two backends: what was measured is four times what was simulated.
fn on_two_backends() -> Document {
    use vcoop_experiment::result::Series;
    let mut document = measured("");
    let mut live = document.series.clone();
    for series in &mut live {
        match series {
            Series::Latency(s) => {
                s.key.backend = "kvm".to_owned();
                s.mean = s.mean.map(|mean| mean * 4.0);
            }
            Series::Scalar(s) => s.key.backend = "kvm".to_owned(),
        }
    }
    document.series.extend(live);
    document.backends.push("kvm".to_owned());
    document
}

#[test]
fn simulated_lies_beside_measured_in_the_same_chart() {
    let charts = charts_of(&on_two_backends());
    let labels = ["vanilla, kvm", "vanilla, sim", "dynamic, kvm", "dynamic, sim"];
    let slots = [Slot::Series(0), Slot::Simulated(0), Slot::Series(2), Slot::Simulated(2)];
    for (kind, from) in [("slower-guest-rt", 0), ("quantiles-guest-rt", 0), ("cost", 2)] {
        let own = of(&charts, kind);
        assert_eq!(own.len(), 1, "{kind}");
        let keys = own[0].legend.iter();
        let (found, colours): (Vec<&str>, Vec<Slot>) =
            keys.map(|key| (key.label.as_str(), key.slot)).unzip();
        assert_eq!((&found[..], &colours[..]), (&labels[from..], &slots[from..]), "{kind}");
    }
    // The measured time of both has nothing to do with each other.
    assert_eq!(of(&charts, "time-guest-rt").len(), 2);
    let page = page(&on_two_backends());
    assert!(page.contains("pale or hollow is simulated") && page.contains("class=\"dt hole\""));
    assert!(!render_html(&measured("")).contains("or hollow is simulated"));
}

#[test]
fn hostile_names_stay_text() {
    let document = measured("");
    let evil = r#"\"><img src=x onerror=alert(1)></script><script>alert('x')</script>&amp;"#;
    let json = document.to_json();
    for name in ["dynamic", "guest.rt", "small", "desktop", "hog", "Everything"] {
        let hostile: Document = serde_json::from_str(&json.replace(name, evil)).unwrap();
        let page = page(&hostile);
        assert!(!page.contains("<img") && !page.contains("<script>alert"), "{name}");
        let scripts = page.matches("<script").count();
        assert_eq!(scripts, page.matches("class=\"zoom-data\"").count() + 2, "{name}");
        for (file, picture) in pictures(&hostile) {
            assert!(file.chars().all(|c| c.is_ascii_alphanumeric() || "-.".contains(c)), "{file}");
            assert_balanced(&picture);
            assert!(!picture.contains("<img") && !picture.contains("<script"), "{name}");
        }
    }
}

#[test]
fn a_matrix_gets_a_heat_map_and_charts_that_can_be_compared() {
    let document = measured("[matrix]\n\"load.hog.count\" = [1, 2, 3]\n");
    let page = page(&document);
    assert!(page.contains("<section id=\"matrix\""));
    let charts = charts_of(&document);
    let cells = of(&charts, "slower-guest-rt");
    assert_eq!(cells.len(), 3);
    for chart in &cells {
        assert_eq!((chart.x.min, chart.x.max), (cells[0].x.min, cells[0].x.max));
        assert_eq!((chart.y.min, chart.y.max), (cells[0].y.min, cells[0].y.max));
    }
    // With one policy, it is the cells that are compared.
    let one = measured("[matrix]\n\"host.pcpus\" = [2, 3]\n");
    let only = |series: &vcoop_experiment::result::Series| series.key().policy == "vanilla";
    let one = Document {
        policies: vec!["vanilla".to_owned()],
        series: one.series.iter().filter(|s| only(s)).cloned().collect(),
        ..one
    };
    let charts = charts_of(&one);
    let cells = of(&charts, "slower-guest-rt");
    assert_eq!(cells.len(), 1);
    let labels: Vec<&str> = cells[0].legend.iter().map(|key| key.label.as_str()).collect();
    assert_eq!(labels, ["pcpus 2", "pcpus 3"]);
}

#[test]
fn tails_fall_from_all_samples_and_pass_through_the_quantiles() {
    let document = measured("");
    for chart in of(&charts_of(&document), "slower-") {
        let (mut lines, mut dots) = (Vec::new(), Vec::new());
        for layer in &chart.layers {
            match layer {
                Layer::Line { points, faint, .. } => {
                    assert!(points.windows(2).all(|w| w[0].0 <= w[1].0 && w[0].1 >= w[1].1));
                    assert!(*faint || points[0].1 == 1.0);
                    lines.extend((!faint).then_some(points));
                }
                Layer::Dots { points, .. } => dots.push(points),
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((lines.len(), dots.len()), (2, 2));
        for (line, dots) in lines.into_iter().zip(dots) {
            assert!(!dots.is_empty());
            for (us, share) in dots {
                // Where the line falls to the share; a bucket is a sixteenth wide.
                let passes = line.iter().find(|(_, s)| s <= share).or(line.last()).unwrap().0;
                assert!((passes / us - 1.0).abs() < 0.07, "{}: {us} {share} {passes}", chart.id);
            }
        }
    }
}

#[test]
fn the_parts_of_every_bar_add_up() {
    let document = measured("");
    let charts = charts_of(&document);
    let stacks = of(&charts, "parts-");
    assert_eq!(stacks.len(), 2);
    for chart in stacks {
        assert!(chart.caption.contains('%'), "{}", chart.caption);
        let mut bars: Vec<(f64, f64)> = Vec::new();
        for layer in &chart.layers {
            let Layer::Boxes { slot: Slot::Part(_), boxes } = layer else { continue };
            for rect in boxes {
                match bars.iter_mut().find(|(x, _)| *x == rect.x.0) {
                    Some((_, sum)) => *sum += rect.y.1 - rect.y.0,
                    None => bars.push((rect.x.0, rect.y.1 - rect.y.0)),
                }
            }
        }
        assert!(!bars.is_empty());
        assert!(bars.iter().all(|(_, sum)| (sum - 1.0).abs() < 1e-9), "{bars:?}");
    }
}

#[test]
fn what_is_drawn_lies_on_the_axes() {
    for chart in charts_of(&measured("")) {
        let within = |axis: &vcoop_report::chart::Axis, v: f64| {
            let place = axis.place(v);
            let fits = (-0.001..=1.001).contains(&place);
            assert!(fits || !v.is_finite(), "{}: {v} on {axis:?}", chart.id);
        };
        for layer in &chart.layers {
            if let Layer::Line { points, .. } | Layer::Dots { points, .. } = layer {
                points.iter().for_each(|(x, y)| {
                    within(&chart.x, *x);
                    within(&chart.y, *y);
                });
            }
        }
        assert!(chart.x.scale == Scale::Linear || chart.x.min > 0.0);
    }
}

#[test]
fn an_old_result_without_detail_still_gives_a_page() {
    let mut document = measured("");
    for series in &mut document.series {
        if let vcoop_experiment::result::Series::Latency(series) = series {
            series.detail = None;
        }
    }
    let page = page(&document);
    assert!(page.contains("<section id=\"quantiles\"") && page.contains("<section id=\"latency\""));
}

#[test]
fn vcpus_in_use_are_drawn_by_time() {
    let document = measured(
        "[[vm]]\nname = \"wide\"\nvcpus = 4\n[[vm.task]]\nname = \"work\"\nkind = \"hog\"\n\
         [[at]]\ntime = \"60ms\"\nvm = \"wide\"\nprefer = \"0\"\n",
    );
    let wide: Vec<_> = document.in_use.iter().filter(|s| s.vm == "wide").collect();
    assert_eq!(wide.len(), document.policies.len());
    for series in wide {
        // The warm-up takes 5 ms, and a slice 12 ms: half of the time with four, the rest with one.
        assert_eq!((series.vcpus, series.width_us), (4, 12_000.0));
        assert_eq!((series.used[0], series.used[9]), (4.0, 1.0));
        let sum: f64 = series.used.iter().sum();
        assert!((sum * 12.0 - (55.0 * 4.0 + 65.0)).abs() < 0.01, "{:?}", series.used);
        assert_eq!(series.changes.iter().sum::<f64>(), 1.0);
    }
    let page = page(&document);
    assert!(page.contains("wide: vCPUs in use") && page.contains("wide prefers 1 vCPUs"));
    assert!(measured("").in_use.is_empty(), "nobody keeps off any");
}

#[test]
fn a_validation_has_a_picture_a_series() {
    let mut document = on_two_backends();
    document.scenario = "<b>small</b>".to_owned();
    let validation = vcoop_experiment::validate::validation(&[document]);
    let page = render_validation_html(&validation);
    assert_balanced(&page);
    assert!(page.contains("&lt;b&gt;small") && !page.contains("<b>small"), "names stay text");
    let series = |metric: &str| {
        let of = validation.scenarios[0].series.iter().filter(|s| s.metric == metric);
        of.map(|s| s.probe.clone()).collect::<std::collections::BTreeSet<_>>().len()
    };
    assert_eq!(page.matches("<figure").count(), series("latency") + series("throughput"));
    assert!(page.contains("means are off by a factor of 4.00"), "{}", &page[..2000]);
    let again = serde_json::to_value(&validation).and_then(serde_json::from_value).unwrap();
    assert_eq!(render_validation_html(&again), page, "read back, it is drawn the same");
}
