//! Files of a system, made up by a test.

use std::fs;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

/// A folder of a test with files such as those of `/proc` and `/sys`. Dropping it removes it.
#[derive(Debug)]
pub struct Tree(TempDir);

impl Default for Tree {
    fn default() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Tree {
    /// A folder with these files: path and content.
    pub fn with<P: AsRef<str>, C: AsRef<[u8]>>(files: &[(P, C)]) -> Self {
        let tree = Self::default();
        files.iter().for_each(|(path, content)| tree.write(path.as_ref(), content));
        tree
    }

    /// Its path.
    pub fn root(&self) -> &Path {
        self.0.path()
    }

    /// The path of a file in it.
    pub fn path(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    /// Writes a file, and creates its parent folders.
    pub fn write(&self, path: &str, content: impl AsRef<[u8]>) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    /// Writes a file of lines, and adds the end of the last line.
    pub fn put(&self, path: &str, text: &str) {
        self.write(path, format!("{text}\n"));
    }

    /// The content of a file.
    pub fn get(&self, path: &str) -> String {
        fs::read_to_string(self.path(path)).unwrap()
    }
}
