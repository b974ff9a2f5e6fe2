//! A folder of images in which others are made.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::Command;

use containers::library::Library;
use images::{CommitError, Generation, ImageFolder};
use sandbox::ImageDigest;

pub(crate) const PLENTY: u64 = 1 << 30;

/// A folder of images with the miniature in it.
pub(crate) struct Workshop {
    pub(crate) folder: tempfile::TempDir,
    pub(crate) images: ImageFolder,
    pub(crate) base: ImageDigest,
}

impl Workshop {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("images");
        testkit::miniature().install(&place);
        Self {
            images: ImageFolder::open(place),
            base: testkit::miniature().digest.parse().unwrap(),
            folder,
        }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A folder as the upper layer of an overlay's `/knowledge`.
    pub(crate) fn upper(&self, make: &str) -> PathBuf {
        let upper = tempfile::tempdir_in(self.folder.path()).unwrap().keep();
        chown(&upper, Some(1000), Some(1000)).unwrap();
        testkit::run(Command::new("sh").args(["-euc", make]).current_dir(&upper));
        upper
    }

    pub(crate) fn commit(&self, of: &ImageDigest, make: &str) -> Result<Generation, CommitError> {
        let upper = File::open(self.upper(make)).unwrap();
        self.images.commit(of, Some(upper.as_fd()), PLENTY)
    }

    pub(crate) fn committed(&self, of: &ImageDigest, make: &str) -> Generation {
        self.commit(of, make)
            .unwrap_or_else(|error| panic!("{}", words(&error)))
    }

    /// What a command says with what this image shows as its files, in its `/knowledge`.
    pub(crate) fn shown(&self, images: &ImageFolder, image: &ImageDigest, command: &str) -> String {
        let stored = images.image(image).unwrap();
        let folders: Vec<_> = stored
            .layers
            .iter()
            .rev()
            .map(|layer| layer.files.display().to_string())
            .collect();
        let place = self.path("shown");
        fs::create_dir_all(&place).unwrap();
        // With one layer there is nothing to lay over another.
        let empty = self.path("empty");
        fs::create_dir_all(&empty).unwrap();
        let lower = format!("lowerdir={}:{}", folders.join(":"), empty.display());
        let script = r#"mount -t overlay overlay -o "$0" "$1" && cd "$1/knowledge" && sh -euc "$2""#;
        let mut shell = Command::new("unshare");
        shell
            .args(["--mount", "sh", "-euc", script, &lower])
            .arg(&place)
            .arg(command);
        testkit::run(&mut shell)
    }

    pub(crate) fn layers(&self) -> Vec<String> {
        let entries = fs::read_dir(self.path("images/layers")).unwrap();
        let mut names: Vec<_> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// What is neither an image nor a layer.
    pub(crate) fn halves(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("images")).unwrap();
        let paths = entries.map(|entry| entry.unwrap().path());
        paths.filter(|path| path.to_string_lossy().contains("half-")).collect()
    }
}

pub(crate) fn words(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(error.source(), |cause| cause.source());
    causes.fold(error.to_string(), |words, cause| format!("{words}: {cause}"))
}

/// Everything that can be told of a folder's files.
pub(crate) const LOOK: &str =
    "find . -mindepth 1 -printf '%P %y %m %U:%G %l\\n' | sort && find . -type f | sort | xargs sha256sum";

/// As overlays write it: something goes, a folder is made anew.
pub(crate) const TAKE_AWAY: &str = "mknod gone c 0 0 && mkdir -p app/anew && python3 -c 'import os; \
    os.setxattr(\"app/anew\", \"trusted.overlay.opaque\", b\"y\")' && echo new > app/anew/new";
