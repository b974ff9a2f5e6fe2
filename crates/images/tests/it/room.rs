//! A file system that has little room.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use containers::library::Library;
use images::ImageFolder;

use crate::archives::pack;
use crate::workshop::{PLENTY, Workshop, words};

/// A small file system, until this is dropped.
struct Small<'w>(&'w Path);

impl<'w> Small<'w> {
    fn mount(place: &'w Path, options: &str) -> Self {
        let mut mount = Command::new("mount");
        testkit::run(mount.args(["-t", "tmpfs", "-o", options, "small"]).arg(place));
        Self(place)
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        // What another test is about to start may hold what was open on it.
        testkit::run(Command::new("umount").arg("--lazy").arg(self.0));
    }
}

#[test]
fn what_is_left_to_others_is_not_taken() {
    let workshop = Workshop::new();
    let small = workshop.path("small");
    std::fs::create_dir(&small).unwrap();
    for (options, make) in [
        // Twice, as files and as an archive, it would fit, and leave next to nothing.
        ("size=40M", "head -c 19500k /dev/zero > large"),
        ("size=40M", "head -c 30M /dev/zero > large"),
        ("size=40M,nr_inodes=300", "seq 280 | xargs touch"),
    ] {
        let _small = Small::mount(&small, options);
        testkit::miniature().install(&small);
        let images = ImageFolder::open(&small);
        let upper = workshop.upper(make);
        let refused = Library::commit(
            &images,
            &workshop.base,
            Some(File::open(&upper).unwrap().as_fd()),
            PLENTY,
        );
        let refused = words(&refused.unwrap_err());
        assert!(refused.contains("stays free"), "{make}: {refused}");
        assert!(!refused.contains("pool"), "images are in no pool: {refused}");
        assert_eq!(images.list().unwrap().len(), 1);

        let layout = tempfile::tempdir_in(workshop.folder.path()).unwrap().keep();
        pack(&workshop, &layout, make);
        let refused = images.import(&layout, "large").unwrap_err();
        assert!(words(&refused).contains("room"), "{make}: {}", words(&refused));
        let entries = std::fs::read_dir(&small).unwrap().map(|entry| entry.unwrap().path());
        let halves = entries.filter(|path| path.to_string_lossy().contains("half-"));
        assert_eq!(halves.collect::<Vec<PathBuf>>(), Vec::<PathBuf>::new());

        // What leaves enough is taken.
        let upper = File::open(workshop.upper("echo small > small")).unwrap();
        assert!(images.commit(&workshop.base, Some(upper.as_fd()), PLENTY).is_ok());
    }
}
