//! What is not kept: what can be made again, and what `.belljarignore` says.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;

use ignore::Match;
use ignore::gitignore::{Gitignore, GitignoreBuilder};
use protocol::IMPORT_FOLDERS;
use rustix::fs::OFlags;

use crate::tree::{as_path, open_beneath};

/// The file with the rules of a workspace, in the language of `.gitignore`.
pub(crate) const FILE: &[u8] = b".belljarignore";

/// The longest such file that is read.
const LONGEST: u64 = 64 << 10;

/// Caches, and what other programs fetch or build anew. The last is what Belljar itself writes before it is whole.
const USUAL: [&str; 8] = [
    "node_modules/",
    ".cache/",
    "__pycache__/",
    ".venv/",
    ".tox/",
    ".mypy_cache/",
    ".pytest_cache/",
    ".belljar-*.new",
];

/// A folder with a file of this name and beginning says of itself that it is a cache (bford.info/cachedir).
pub(crate) const TAG: &[u8] = b"CACHEDIR.TAG";
const SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

pub(crate) struct Rules(Gitignore);

impl Rules {
    /// The rules as they are now.
    pub(crate) fn read(root: impl AsFd) -> Self {
        let mut builder = GitignoreBuilder::new("/");
        for line in USUAL {
            // Ours are well formed.
            let _ = builder.add_line(None, line);
        }
        // A workspace that is being unpacked, until it takes the place of the one before.
        let _ = builder.add_line(None, &format!("/{IMPORT_FOLDERS}*/"));
        for line in text(root).lines() {
            // One that is not is left out.
            let _ = builder.add_line(None, line);
        }
        Self(builder.build().unwrap_or_else(|_| Gitignore::empty()))
    }

    /// Whether a path is not kept. What is below a folder that is not kept is never asked for.
    pub(crate) fn leave_out(&self, path: &[u8], folder: bool) -> bool {
        self.0.matched(as_path(path), folder).is_ignore()
    }

    /// Whether a folder is kept that says of itself that it is a cache.
    pub(crate) fn keep_cache(&self, path: &[u8]) -> bool {
        matches!(self.0.matched(as_path(path), true), Match::Whitelist(_))
    }
}

fn text(root: impl AsFd) -> String {
    let Ok(opened) = open_beneath(root, FILE, OFlags::RDONLY | OFlags::NONBLOCK) else {
        return String::new();
    };
    let mut bytes = Vec::new();
    // A folder of that name, say: then there are no rules.
    let _ = File::from(opened).take(LONGEST).read_to_end(&mut bytes);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Whether this folder says that it is a cache.
pub(crate) fn is_cache(folder: impl AsFd) -> bool {
    let Ok(opened) = open_beneath(folder, TAG, OFlags::RDONLY | OFlags::NONBLOCK) else {
        return false;
    };
    let mut beginning = [0; SIGNATURE.len()];
    File::from(opened).read_exact(&mut beginning).is_ok() && beginning == SIGNATURE
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

    use super::*;

    fn rules(text: &str) -> Rules {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join(".belljarignore"), text).unwrap();
        Rules::read(File::open(folder.path()).unwrap())
    }

    #[test]
    fn what_can_be_made_again_is_left_out_unless_a_rule_wants_it() {
        let usual = rules("");
        assert!(usual.leave_out(b"web/node_modules", true));
        assert!(usual.leave_out(b"a/.belljar-7-1.new", false));
        assert!(usual.leave_out(b".belljar-import-7", true));
        for (path, folder) in [
            ("src", true),
            ("node_modules", false),
            ("target", true),
            (".git", true),
            ("a/.belljar-import-7", true),
        ] {
            assert!(!usual.leave_out(path.as_bytes(), folder), "{path}");
        }
        let own = rules("*.log\n!keep.log\n/top\n!.venv/\nbroken[\n");
        for path in ["a/b.log", "top"] {
            assert!(own.leave_out(path.as_bytes(), false), "{path}");
        }
        for (path, folder) in [("keep.log", false), ("a/top", false), (".venv", true)] {
            assert!(!own.leave_out(path.as_bytes(), folder), "{path}");
        }
        assert!(own.keep_cache(b".venv") && !own.keep_cache(b"target"));
    }
}
