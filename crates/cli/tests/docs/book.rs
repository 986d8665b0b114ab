//! The guide as mdBook renders it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use mdbook_driver::MDBook;

use super::root;

/// Values of an attribute in a rendered page.
fn values<'p>(page: &'p str, attribute: &str) -> Vec<&'p str> {
    let mark = format!(" {attribute}=\"");
    let value = |rest: &'p str| rest.split('"').next().filter(|value| !value.is_empty());
    page.split(&mark).skip(1).filter_map(value).collect()
}

/// The pages of a book, by their names. They are in one folder, as their sources are.
fn rendered(folder: &Path) -> BTreeMap<String, String> {
    let page = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().unwrap();
        name.ends_with(".html").then(|| (name, fs::read_to_string(entry.path()).unwrap()))
    };
    fs::read_dir(folder).unwrap().map(Result::unwrap).filter_map(page).collect()
}

/// The guide is built, and each link of a page leads to a file of the book and to a part of it.
#[test]
fn the_book_is_built_and_its_links_lead_somewhere() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("book");
    let mut book = MDBook::load(root().join("docs")).unwrap();
    book.config.build.build_dir.clone_from(&folder);
    book.build().unwrap();
    let pages = rendered(&folder);
    assert!(pages.len() > 40, "only {} pages", pages.len());
    let ids: BTreeMap<&str, BTreeSet<&str>> = pages
        .iter()
        .map(|(name, page)| (name.as_str(), values(page, "id").into_iter().collect()))
        .collect();
    let (mut inside, mut broken) = (0, BTreeSet::new());
    for (name, page) in &pages {
        // Made by mdBook for any address that there is not, with links from the top of a site.
        if name == "404.html" {
            continue;
        }
        for link in values(page, "href").into_iter().chain(values(page, "src")) {
            let (target, part) = link.split_once('#').unwrap_or((link, ""));
            if target.contains(':') {
                continue;
            }
            let found = if target.is_empty() { name } else { target };
            let has_part = || ids.get(found).is_some_and(|ids| ids.contains(part));
            if !folder.join(found).exists() || !part.is_empty() && !has_part() {
                broken.insert((name, link));
            }
            inside += usize::from(!part.is_empty());
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(inside > 500, "only {inside} links to parts of pages were found");
}
