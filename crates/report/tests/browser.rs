//! The report as people see it: in a browser, narrow and wide, light and dark.
//!
//! It takes Chromium (Debian's package `chromium`), so it stands apart: `cargo xtask test` runs it
//! where Chromium is, and says so where it is not. Screenshots go to `target/screenshots`.

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use support::measured;
use vcoop_report::render_html;

/// Listens from the first script on.
const LISTEN: &str = "<script>window.problems = [];
addEventListener('error', (e) => problems.push('error: ' + e.message));
addEventListener('securitypolicyviolation', (e) => problems.push('forbidden: ' + e.blockedURI));
for (const level of ['error', 'warn']) console[level] = (...words) => problems.push(level + ': ' + words.join(' '));
</script>";

/// Looks at what is laid out, tries every button, and writes down what is wrong.
const LOOK: &str = r#"<script>
(async () => {
const say = (what) => problems.push(what);
const root = document.documentElement;
if (root.scrollWidth > innerWidth) say(`the page is ${root.scrollWidth} wide on a screen of ${innerWidth}`);
const visible = (e) => e.getBoundingClientRect().width > 0;
const texts = (svg) => [...svg.querySelectorAll('text')].filter((t) => t.textContent);
for (const figure of document.querySelectorAll('figure')) {
  const charts = [...figure.querySelectorAll('svg.chart')].filter(visible);
  if (charts.length !== 1) { say(`${figure.id} shows ${charts.length} charts`); continue; }
  const box = charts[0].getBoundingClientRect(), room = figure.getBoundingClientRect();
  if (box.right > room.right + 0.5) say(`${figure.id} is ${box.width} wide in ${room.width}`);
  const boxes = texts(charts[0]).map((t) => [t.textContent, t.getBoundingClientRect()]);
  for (const [text, r] of boxes) {
    if (r.left < box.left - 1 || r.right > box.right + 1 || r.top < box.top - 1 || r.bottom > box.bottom + 1)
      say(`${figure.id}: "${text}" is cut off`);
  }
  boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
    const across = Math.min(p.right, q.right) - Math.max(p.left, q.left);
    const down = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (across > 2 && down > 4) say(`${figure.id}: "${a}" lies on "${b}"`);
  }));
  const drawn = charts[0].querySelectorAll('path.ln, path.dt, g.bx rect, g.wk path').length;
  if (!drawn) say(`${figure.id} is empty`);
}
for (const grid of document.querySelectorAll('.grid')) {
  if (!grid.querySelector('.wide')) continue;
  const empty = grid.getBoundingClientRect().right - Math.max(...[...grid.children].map((f) => f.getBoundingClientRect().right));
  if (empty > 2) say(`${grid.children[0].id} and its like leave ${empty} px empty`);
}
for (const table of document.querySelectorAll('.scroll')) {
  if (getComputedStyle(table).backgroundImage === 'none') say('nothing shows that a table goes on beside the screen');
}
const buttons = [...document.querySelectorAll('button.zoom')];
if (!buttons.length) say('nothing can be looked at closely');
for (const button of buttons) {
  const figure = button.closest('figure');
  const drawn = Math.max(...[...figure.querySelectorAll('svg.chart')].map((svg) => svg.getBoundingClientRect().height));
  button.click();
  // It is laid out in a task of its own.
  await new Promise((done) => setTimeout(done));
  const canvas = figure.querySelector('canvas');
  if (!canvas || canvas.width < 100) say(`${figure.id} has no canvas`);
  else if (canvas.getBoundingClientRect().height <= drawn) say(`${figure.id} is not larger when looked at closely`);
  if (root.scrollWidth > innerWidth) say(`${figure.id} is too wide when looked at closely`);
  button.click();
  if (figure.querySelector('canvas')) say(`${figure.id} does not go back`);
}
const skip = document.querySelector('a');
skip.focus();
if (skip.getBoundingClientRect().left < 0) say('the link to the results does not show when it has the focus');
skip.blur();
parent.postMessage(JSON.stringify({ dark: matchMedia('(prefers-color-scheme: dark)').matches,
  ground: getComputedStyle(root).backgroundColor, figures: document.querySelectorAll('figure').length,
  width: innerWidth, problems }), '*');
})();
</script></body>"#;

/// A screen of any width: a window has a least width, a frame has none.
fn screen(page: &str, width: u32) -> String {
    format!(
        "<!DOCTYPE html><meta name=\"color-scheme\" content=\"light dark\"><pre id=\"problems\"></pre>
<script>onmessage = (e) => {{ document.querySelector('pre').textContent = e.data; }};</script>
<iframe src=\"{page}\" style=\"border:0;width:{width}px;height:5000px\"></iframe>"
    )
}

fn browser() -> &'static str {
    let found = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        Command::new(name).arg("--version").output().is_ok_and(|o| o.status.success())
    });
    found.expect("Chromium is needed: apt-get install chromium")
}

fn chromium(page: &Path, width: u32, dark: bool, what: &str) -> String {
    let profile = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("chromium");
    let output = Command::new(browser())
        .args([
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-first-run",
        ])
        .args(["--disable-background-networking", "--virtual-time-budget=2000"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)))
        .arg(format!("--window-size={width},{}", if width < 600 { 9000 } else { 5000 }))
        .arg(what)
        .arg(format!("file://{}", page.display()))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What is wrong with a page on a screen.
fn problems(page: &Path, width: u32, dark: bool) -> serde_json::Value {
    let dir = page.parent().unwrap();
    let framed = dir.join("framed.html");
    fs::write(&framed, screen(page.file_name().unwrap().to_str().unwrap(), width)).unwrap();
    let dom = chromium(&framed, width.max(800), dark, "--dump-dom");
    let from = dom.find("<pre id=\"problems\">").expect("the frame is there") + 19;
    let json = &dom[from..from + dom[from..].find("</pre>").unwrap()];
    assert!(!json.is_empty(), "the script did not come to its end");
    let json = json.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&");
    serde_json::from_str(&json).unwrap()
}

#[test]
#[ignore = "needs Chromium: `cargo xtask test` runs it where that is"]
fn every_chart_shows_on_every_screen() {
    let page = render_html(&measured(""));
    let figures = page.matches("<figure").count();
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../screenshots");
    fs::create_dir_all(&dir).unwrap();
    let dir = dir.canonicalize().unwrap();
    let path = dir.join("report.html");
    fs::write(&path, &page).unwrap();
    let looked_at = dir.join("looked-at.html");
    let looking =
        page.replacen("<head>", &format!("<head>{LISTEN}"), 1).replacen("</body>", LOOK, 1);
    fs::write(&looked_at, looking).unwrap();
    let mut wrong = Vec::new();
    for width in [360, 800, 1400, 1600] {
        for dark in [false, true] {
            let scheme = if dark { "dark" } else { "light" };
            let seen = problems(&looked_at, width, dark);
            let place = format!("{width} px, {scheme}");
            assert_eq!((&seen["dark"], &seen["width"]), (&dark.into(), &width.into()), "{place}");
            assert_eq!(seen["figures"], figures, "{place}");
            let ground = if dark { "rgb(20, 23, 27)" } else { "rgb(255, 255, 255)" };
            assert_eq!(seen["ground"], ground, "{place}");
            let list = seen["problems"].as_array().unwrap();
            wrong.extend(list.iter().map(|p| format!("{place}: {}", p.as_str().unwrap())));
            let shot = dir.join(format!("report-{width}-{scheme}.png"));
            chromium(&path, width, dark, &format!("--screenshot={}", shot.display()));
            assert!(fs::metadata(&shot).unwrap().len() > 20_000, "{place}: an empty picture");
        }
    }
    assert!(wrong.is_empty(), "{} problems:\n{}", wrong.len(), wrong.join("\n"));
}
