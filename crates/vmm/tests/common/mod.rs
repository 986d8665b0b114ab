//! Trees of files like `/proc`, out of one text file each (`fixtures/NAME.tree`).
//!
//! A line is `PATH = CONTENT` with `\n`, `\0`, `\\` and `\xNN` for bytes, or `PATH -> TARGET` for a
//! link, or `PATH <<END` and the lines of a file up to `END`. Lines with `#` are comments.
#![allow(dead_code)] // Each test uses what it needs.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// A tree, written out in a folder of its own until it is dropped.
pub(crate) struct Tree(vcoop_testing::Tree);

impl Tree {
    /// Writes `fixtures/{fixture}.tree` out.
    pub(crate) fn new(fixture: &str) -> Self {
        // The command's tests use this module, too.
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../vmm/tests/fixtures");
        let text = fs::read_to_string(fixtures.join(format!("{fixture}.tree"))).unwrap();
        let tree = vcoop_testing::Tree::default();
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            if line.starts_with('#') {
                continue;
            }
            if let Some((path, target)) = line.split_once(" -> ") {
                let path = tree.path(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                symlink(OsStr::from_bytes(&bytes(target)), path).unwrap();
            } else if let Some((path, content)) = line.split_once(" = ") {
                tree.write(path, bytes(content));
            } else {
                let path = line.strip_suffix(" <<END").unwrap_or_else(|| panic!("{line:?}"));
                let content: Vec<_> = lines.by_ref().take_while(|line| *line != "END").collect();
                tree.write(path, content.join("\n"));
            }
        }
        Self(tree)
    }

    /// What reads this tree, debugfs and libvirt's files in it too.
    pub(crate) fn proc(&self) -> crate::Proc {
        self.proc_alone().debugfs(self.path("debugfs")).libvirt(self.path("libvirt"))
    }

    /// What reads this tree's processes and nothing else.
    pub(crate) fn proc_alone(&self) -> crate::Proc {
        crate::Proc::at(self.path("proc"))
    }

    /// A path in this tree.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        self.0.path(path)
    }

    /// Changes a file.
    pub(crate) fn replace(&self, path: &str, from: &str, to: &str) {
        let path = self.path(path);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(from));
        fs::write(path, text.replace(from, to)).unwrap();
    }

    /// Removes a folder.
    pub(crate) fn remove(&self, path: &str) {
        fs::remove_dir_all(self.path(path)).unwrap();
    }
}

fn bytes(text: &str) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), text.as_bytes());
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first != b'\\' {
            out.push(*first);
            continue;
        }
        let (byte, used) = match rest {
            [b'n', ..] => (b'\n', 1),
            [b'0', ..] => (0, 1),
            [b'\\', ..] => (b'\\', 1),
            [b'x', digits @ ..] => {
                let digits = std::str::from_utf8(&digits[..2]).unwrap();
                (u8::from_str_radix(digits, 16).unwrap(), 3)
            }
            _ => panic!("{text:?}"),
        };
        out.push(byte);
        rest = &rest[used..];
    }
    out
}
