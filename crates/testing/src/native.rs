//! C code that has to agree with Rust code.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A C program that reads 64-bit words and answers with such words.
#[derive(Debug)]
pub struct Native {
    folder: TempDir,
    program: PathBuf,
}

impl Native {
    /// Builds the program. `optimized`: `-O1` and the like.
    ///
    /// # Panics
    ///
    /// The compiler reports an error or a warning.
    pub fn build(optimized: &str, sources: &[&Path]) -> Self {
        let folder = tempfile::tempdir().expect("a folder for temporary files");
        let program = folder.path().join("program");
        let built = Command::new("cc")
            .args(["-std=gnu11", optimized, "-Wall", "-Wextra", "-Werror", "-o"])
            .arg(&program)
            .args(sources)
            .output()
            .expect("a C compiler");
        assert!(built.status.success(), "cc: {}", String::from_utf8_lossy(&built.stderr));
        Self { folder, program }
    }

    /// A command that runs it.
    pub fn command(&self) -> Command {
        Command::new(&self.program)
    }

    /// Its answers to these words.
    ///
    /// # Panics
    ///
    /// The program fails.
    pub fn answers(&self, words: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let (input, output) =
            (self.folder.path().join("words"), self.folder.path().join("answers"));
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        fs::write(&input, bytes).expect("the words are written");
        let open = File::open(&input).expect("they are there");
        let create = File::create(&output).expect("the answers have a file");
        let status = self.command().stdin(open).stdout(create).status();
        assert!(status.is_ok_and(|status| status.success()), "the C program fails");
        let answers = fs::read(&output).expect("the answers are there");
        let word = |bytes: &[u8]| bytes.first_chunk().map(|b| u64::from_le_bytes(*b));
        answers.chunks_exact(8).filter_map(word).collect()
    }
}
