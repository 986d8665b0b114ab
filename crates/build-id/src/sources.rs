//! What names a tree of sources: its commit, or a digest of the files.
//!
//! The build script computes it. A digest of the running executable would not do: in the Python
//! package that is the interpreter, and the command and the package would never agree.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Beside the crates: what is compiled in, and which dependencies are.
const BESIDE: [&str; 6] =
    ["Cargo.toml", "Cargo.lock", "captures", "profiles", "published", "scenarios"];
/// Of a crate: what no program is made of.
const APART: [&str; 3] = ["benches", "examples", "tests"];

/// The commit, with `-dirty` and a digest where the sources differ from it; without git, or
/// outside of a repository of its own, the digest alone.
///
/// # Errors
///
/// The sources cannot be read.
pub(crate) fn name(root: &Path) -> io::Result<String> {
    let digest = || Ok::<_, io::Error>(format!("sources {:016x}", digest(root)?));
    let commit = git(root, &["rev-parse", "--short=12", "HEAD"]);
    let changes = || {
        let mut status = vec!["--no-optional-locks", "status", "--porcelain", "--"];
        let paths = paths(root)?;
        status.extend(paths.iter().filter_map(|path| path.to_str()));
        Ok::<_, io::Error>(git(root, &status))
    };
    match commit {
        None => digest(),
        Some(commit) => match changes()? {
            Some(none) if none.is_empty() => Ok(commit),
            _ => Ok(format!("{commit}-dirty, {}", digest()?)),
        },
    }
}

/// What changes the name when it changes: the sources, and where git notes the commit.
///
/// # Errors
///
/// The sources cannot be read.
pub(crate) fn watched(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut watched: Vec<PathBuf> = paths(root)?.iter().map(|path| root.join(path)).collect();
    // A commit leaves HEAD as it is and adds to its log; a checkout changes both. A path that is
    // not there would run the build script each time.
    for file in ["HEAD", "logs/HEAD"] {
        let found = git(root, &["rev-parse", "--git-path", file]).map(|path| root.join(path));
        watched.extend(found.filter(|path| path.exists()));
    }
    Ok(watched)
}

/// The sources, relative to the root, in order.
fn paths(root: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths: Vec<PathBuf> = BESIDE.map(PathBuf::from).to_vec();
    paths.retain(|path| root.join(path).exists());
    for entry in fs::read_dir(root.join("crates"))? {
        let of = Path::new("crates").join(entry?.file_name());
        for entry in fs::read_dir(root.join(&of))? {
            let name = entry?.file_name();
            if !APART.iter().any(|apart| name == *apart) {
                paths.push(of.join(name));
            }
        }
    }
    paths.sort();
    Ok(paths)
}

/// Names and contents of all files. The hash is that of one release of the compiler's library,
/// which makes another compiler another build.
fn digest(root: &Path) -> io::Result<u64> {
    let mut hasher = DefaultHasher::new();
    let mut left = paths(root)?;
    left.reverse();
    while let Some(path) = left.pop() {
        let whole = root.join(&path);
        if whole.is_dir() {
            let entries = fs::read_dir(&whole)?.map(|entry| Ok(path.join(entry?.file_name())));
            let mut entries = entries.collect::<io::Result<Vec<_>>>()?;
            entries.sort();
            left.extend(entries.into_iter().rev());
        } else {
            (path.to_string_lossy(), fs::read(whole)?).hash(&mut hasher);
        }
    }
    Ok(hasher.finish())
}

/// What git says of the repository whose root this is; `None` without one, or without git.
fn git(root: &Path, args: &[&str]) -> Option<String> {
    // A repository further up, which the sources were unpacked in, is not theirs.
    if !root.join(".git").exists() {
        return None;
    }
    let output = Command::new("git").arg("-C").arg(root).args(args).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree like the workspace, with one crate.
    fn tree(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("vcoop-build-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        for dir in ["crates/sim/src", "crates/sim/tests", "docs"] {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        for dir in BESIDE.iter().filter(|name| !name.contains('.')) {
            fs::create_dir_all(root.join(dir)).unwrap();
        }
        for file in ["Cargo.toml", "Cargo.lock", "crates/sim/src/lib.rs", "profiles/zero.toml"] {
            fs::write(root.join(file), file).unwrap();
        }
        root
    }

    fn commit(root: &Path) -> String {
        let who = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
        for args in [&["init", "--quiet"][..], &["add", "."], &["commit", "-qm", "x"]] {
            git_or_fail(root, &[&who[..], args].concat());
        }
        git(root, &["rev-parse", "HEAD"]).unwrap()
    }

    fn git_or_fail(root: &Path, args: &[&str]) {
        assert!(Command::new("git").arg("-C").arg(root).args(args).status().unwrap().success());
    }

    #[test]
    fn a_commit_names_sources_as_long_as_they_are_its_own() {
        let root = tree("git");
        let hash = commit(&root);
        let clean = name(&root).unwrap();
        assert!(clean.len() == 12 && hash.starts_with(&clean), "{clean} of {hash}");
        // A file that is no part of a program does not change the name.
        fs::write(root.join("docs/page.md"), "x").unwrap();
        fs::write(root.join("crates/sim/tests/all.rs"), "x").unwrap();
        assert_eq!(name(&root).unwrap(), clean);
        let mut names = vec![clean];
        for (file, text) in [
            ("crates/sim/src/lib.rs", "one"),
            ("crates/sim/src/lib.rs", "another"),
            ("crates/sim/src/new.rs", ""),
            ("profiles/zero.toml", "other costs"),
        ] {
            fs::write(root.join(file), text).unwrap();
            let dirty = name(&root).unwrap();
            assert!(dirty.starts_with(&format!("{}-dirty, sources ", names[0])), "{dirty}");
            assert!(!names.contains(&dirty), "{dirty} twice");
            names.push(dirty);
        }
        let watched = watched(&root).unwrap();
        assert!(watched.iter().all(|path| path.exists()), "{watched:?}");
        assert!(watched.iter().any(|path| path.ends_with("logs/HEAD")), "{watched:?}");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn without_a_repository_of_their_own_a_digest_names_them() {
        let root = tree("none");
        let before = name(&root).unwrap();
        assert!(before.starts_with("sources ") && before.len() == 24, "{before}");
        assert_eq!(name(&root).unwrap(), before);
        fs::rename(root.join("crates/sim/src/lib.rs"), root.join("crates/sim/src/bil.rs")).unwrap();
        assert_ne!(name(&root).unwrap(), before);
        // Unpacked inside another repository, they are not of its commit.
        let inner = root.join("docs/inner");
        fs::rename(tree("inner"), &inner).unwrap();
        commit(&root);
        assert!(name(&inner).unwrap().starts_with("sources "));
        fs::remove_dir_all(&root).unwrap();
    }
}
