//! A temporary directory that goes when its owner goes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// The directory; dropping it removes it with everything in it.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    /// Makes a new directory, `millrace-PURPOSE-PID`, that every user can enter: the agent's socket is in it, and servers run
    /// as other users.
    pub(super) fn new(purpose: &str) -> Result<Self> {
        let path = std::env::temp_dir().join(format!("millrace-{purpose}-{}", std::process::id()));
        fs::create_dir(&path).with_context(|| format!("cannot make {}", path.display()))?;
        let scratch = Self(path);
        fs::set_permissions(scratch.path(), fs::Permissions::from_mode(0o755))?;
        Ok(scratch)
    }

    /// Where it is.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            eprintln!("cannot remove {}: {error}", self.0.display());
        }
    }
}
