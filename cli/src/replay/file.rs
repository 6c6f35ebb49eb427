//! Where the picture goes: a file that is there whole or not at all.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::Error;

/// A path that a picture can be written to.
#[derive(Debug)]
pub struct PictureFile {
    target: PathBuf,
    /// Beside the target, so that a rename puts it there in one step.
    temporary: PathBuf,
}

impl PictureFile {
    /// Checks `path` before anything runs for it.
    pub fn new(path: &Path) -> Result<Self, Error> {
        let refused =
            |problem: &str, fix| Error::bad_input("--svg", format!("{}: {problem}", path.display()), fix);
        if path == "-" {
            return Err(refused("standard output is for the answer", "give a file"));
        }
        let target = match fs::metadata(path) {
            Ok(found) if !found.is_file() => return Err(refused("no regular file", "give another path")),
            // A link stays a link.
            Ok(_) => fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()),
            Err(_) => path.to_owned(),
        };
        let Some(name) = target.file_name() else {
            return Err(refused("no name of a file", "give one"));
        };
        let temporary = format!(".{}.{}.part", name.to_string_lossy(), std::process::id());
        let file = Self { temporary: target.with_file_name(temporary), target };
        let tried = File::create_new(&file.temporary).and_then(|_| fs::remove_file(&file.temporary));
        let fix = "give a path in a directory that is there and can be written to";
        tried.map_err(|error| refused(&format!("cannot be written: {error}"), fix))?;
        Ok(file)
    }

    /// Writes all of `text`.
    pub fn write(self, text: &str) -> Result<(), Error> {
        self.put(text.as_bytes()).map_err(|error| {
            // Gone already, or not ours to remove: the first error is what counts.
            let _ = fs::remove_file(&self.temporary);
            Error::output(self.target.display().to_string(), error)
        })
    }

    fn put(&self, bytes: &[u8]) -> io::Result<()> {
        File::create(&self.temporary)?.write_all(bytes)?;
        fs::rename(&self.temporary, &self.target)
    }
}
