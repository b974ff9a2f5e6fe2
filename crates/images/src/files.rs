//! What a recipe asks for beyond packages: folders, files, links, the user; and what it wants away.

use std::fs::Permissions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};

use sys::removal::remove_tree;

use crate::BuildError;
use crate::copies;
use crate::recipe::{User, Wanted};

/// Removes a folder with all that is in it, if it is there.
pub(crate) fn remove_all(path: &Path) -> Result<(), BuildError> {
    match remove_tree(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(BuildError::file("remove", path)(error)),
        _ => Ok(()),
    }
}

/// Finishes a root file system as the recipe says.
pub(crate) fn finish(wanted: &Wanted, root: &Path) -> Result<(), BuildError> {
    let root = root.canonicalize().map_err(BuildError::file("look at", root))?;
    add_user(&wanted.user, &root)?;
    for (path, folder) in &wanted.folders {
        let path = folder_within(&root, path)?;
        chown(&path, Some(folder.owner), Some(folder.owner)).map_err(BuildError::file("give away", &path))?;
        let mode = Permissions::from_mode(folder.mode);
        std::fs::set_permissions(&path, mode).map_err(BuildError::file("set the mode of", &path))?;
    }
    for (path, text) in &wanted.files {
        write(&place(&root, path)?, text)?;
    }
    for (path, from) in &wanted.copies {
        let path = place(&root, path)?;
        remove(&path)?;
        copies::copy(from, &path)?;
    }
    for (path, target) in &wanted.links {
        let path = place(&root, path)?;
        remove(&path)?;
        symlink(target, &path).map_err(BuildError::file("make the link", &path))?;
    }
    for path in &wanted.remove {
        if root.join(path.strip_prefix("/").unwrap_or(path)).exists() {
            remove(&place(&root, path)?)?;
        }
    }
    leave_no_trace(&root)
}

/// Where packages leave what they drew by lot for one machine, and how it is called: host keys, seeds of random numbers.
const DRAWN: [(&str, &str); 3] = [
    ("etc/ssh", "ssh_host_"),
    ("var/lib/systemd", "random-seed"),
    ("root", ".rnd"),
];

/// Removes what tells of the machine that built the image, what every sandbox gets anew, and what no two sandboxes may share.
fn leave_no_trace(root: &Path) -> Result<(), BuildError> {
    let of_the_build = [
        "etc/apt/sources.list",
        "etc/machine-id",
        "var/lib/dbus/machine-id",
        "etc/hostname",
        "etc/resolv.conf",
    ];
    for path in of_the_build {
        if let Some(path) = known(root, path)? {
            remove(&path)?;
        }
    }
    for (folder, called) in DRAWN {
        for path in entries(root, folder)? {
            let name = path.file_name().unwrap_or_default();
            if name.as_encoded_bytes().starts_with(called.as_bytes()) {
                remove(&path)?;
            }
        }
    }
    for folder in [
        "dev",
        "proc",
        "sys",
        "run",
        "tmp",
        "var/tmp",
        "var/log",
        "var/cache/apt",
        "var/lib/apt/lists",
        "etc/apt/sources.list.d",
    ] {
        for path in entries(root, folder)? {
            remove(&path)?;
        }
    }
    // A sandbox mounts its own over these, for which they must be there.
    for path in ["etc/hostname", "etc/resolv.conf", "etc/hosts"] {
        if let Some(path) = known(root, path)?.filter(|path| !path.exists()) {
            write(&path, "")?;
        }
    }
    Ok(())
}

fn add_user(user: &User, root: &Path) -> Result<(), BuildError> {
    let (name, id) = (&user.name, user.id);
    let account = format!("{name}:x:{id}:{id}:{name}:/home/{name}:/bin/bash\n");
    append(root, "etc/passwd", &account)?;
    append(root, "etc/group", &format!("{name}:x:{id}:\n"))?;
    for folder in [&Path::new("/home").join(name), &user.folder] {
        let folder = folder_within(root, folder)?;
        chown(&folder, Some(id), Some(id)).map_err(BuildError::file("give away", &folder))?;
    }
    Ok(())
}

/// Where a path of the image is on this machine. Symbolic links on the way are followed as long as they stay inside.
fn place(root: &Path, path: &Path) -> Result<PathBuf, BuildError> {
    let inside = root.join(path.strip_prefix("/").unwrap_or(path));
    let parent = inside.parent().unwrap_or(root);
    let there = parent
        .ancestors()
        .find(|folder| folder.symlink_metadata().is_ok())
        .unwrap_or(root);
    let real = there.canonicalize().map_err(BuildError::file("follow", there))?;
    if !real.starts_with(root) {
        return Err(BuildError::Outward { path: path.to_owned() });
    }
    make_folder(parent)?;
    Ok(inside)
}

/// A folder of the image, made where it is not there. A link that stands for it is followed as long as it stays inside.
fn folder_within(root: &Path, path: &Path) -> Result<PathBuf, BuildError> {
    let inside = place(root, path)?;
    if inside.symlink_metadata().is_err() {
        make_folder(&inside)?;
    }
    real(root, &inside)?.ok_or_else(|| BuildError::Outward { path: path.to_owned() })
}

/// Where something of the image really is, if it is there; links are followed as long as they stay inside.
fn real(root: &Path, path: impl AsRef<Path>) -> Result<Option<PathBuf>, BuildError> {
    let there = root.join(&path);
    match there.canonicalize() {
        Ok(real) if real.starts_with(root) => Ok(Some(real)),
        Ok(_) => Err(BuildError::Outward {
            path: path.as_ref().to_owned(),
        }),
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => Ok(None),
        Err(error) => Err(BuildError::file("follow", &there)(error)),
    }
}

/// Where a path of the image is, if its folder is there. What stands there may itself be a link, and is not followed.
fn known(root: &Path, path: &str) -> Result<Option<PathBuf>, BuildError> {
    let path = Path::new(path);
    let folder = real(root, path.parent().unwrap_or(path))?;
    Ok(folder.zip(path.file_name()).map(|(folder, name)| folder.join(name)))
}

/// What is in a folder of the image, if it is one.
fn entries(root: &Path, folder: &str) -> Result<Vec<PathBuf>, BuildError> {
    let Some(folder) = real(root, folder)?.filter(|folder| folder.is_dir()) else {
        return Ok(Vec::new());
    };
    let list = || -> std::io::Result<_> { std::fs::read_dir(&folder)?.map(|entry| Ok(entry?.path())).collect() };
    list().map_err(BuildError::file("list", &folder))
}

fn make_folder(path: &Path) -> Result<(), BuildError> {
    std::fs::create_dir_all(path).map_err(BuildError::file("make the folder", path))
}

fn remove(path: &Path) -> Result<(), BuildError> {
    let removed = match path.symlink_metadata() {
        Ok(about) if about.is_dir() => remove_tree(path),
        Ok(_) => std::fs::remove_file(path),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    };
    removed.map_err(BuildError::file("remove", path))
}

fn write(path: &Path, text: &str) -> Result<(), BuildError> {
    remove(path)?;
    let file = std::fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o644)
        .open(path);
    file.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(BuildError::file("write", path))
}

fn append(root: &Path, path: &str, line: &str) -> Result<(), BuildError> {
    let text = real(root, path)?.map_or(Ok(String::new()), |path| {
        std::fs::read_to_string(&path).map_err(BuildError::file("read", &path))
    });
    write(&place(root, Path::new(path))?, &(text? + line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_that_leads_out_of_the_image_is_not_followed() {
        let folder = tempfile::tempdir().unwrap();
        let (root, outside) = (folder.path().join("root"), folder.path().join("outside"));
        std::fs::create_dir_all(&root).unwrap();
        std::fs::create_dir_all(&outside).unwrap();
        let root = root.canonicalize().unwrap();
        symlink(&outside, root.join("run")).unwrap();
        symlink("usr/bin", root.join("bin")).unwrap();
        std::fs::create_dir_all(root.join("usr/bin")).unwrap();

        let error = place(&root, Path::new("/run/a/b")).unwrap_err();
        assert!(matches!(error, BuildError::Outward { .. }), "{error}");
        assert_eq!(std::fs::read_dir(&outside).unwrap().count(), 0);
        write(&place(&root, Path::new("/bin/tool")).unwrap(), "x").unwrap();
        assert!(root.join("usr/bin/tool").exists());
    }

    #[test]
    fn a_folder_that_is_a_link_is_not_given_away_outside() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().canonicalize().unwrap().join("root");
        std::fs::create_dir_all(root.join("run")).unwrap();
        symlink("/run", root.join("out")).unwrap();
        symlink("run", root.join("in")).unwrap();
        let error = folder_within(&root, Path::new("/out")).unwrap_err();
        assert!(matches!(error, BuildError::Outward { .. }), "{error}");
        assert_eq!(folder_within(&root, Path::new("/in")).unwrap(), root.join("run"));
        assert_eq!(folder_within(&root, Path::new("/a/b")).unwrap(), root.join("a/b"));
        assert!(root.join("a/b").is_dir());
    }

    #[test]
    fn what_packages_drew_by_lot_is_not_the_same_in_all_sandboxes() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        let drawn = [
            "etc/machine-id",
            "var/lib/dbus/machine-id",
            "etc/ssh/ssh_host_ed25519_key",
            "etc/ssh/ssh_host_ed25519_key.pub",
            "var/lib/systemd/random-seed",
            "root/.rnd",
        ];
        let others = ["etc/ssh/ssh_config", "root/.profile"];
        for path in drawn.iter().chain(&others) {
            write(&place(root, Path::new(path)).unwrap(), "x").unwrap();
        }
        leave_no_trace(root).unwrap();
        let left = |paths: &[&str]| paths.iter().filter(|path| root.join(path).exists()).count();
        assert_eq!((left(&drawn), left(&others)), (0, others.len()));
    }

    #[test]
    fn a_folder_that_leads_out_of_the_image_loses_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let outside = folder.join("outside");
        for file in ["ssh_host_key", "machine-id", "passwd"] {
            write(&place(&folder, &Path::new("outside").join(file)).unwrap(), "theirs").unwrap();
        }
        for link in ["etc", "etc/ssh", "var/log", "root"] {
            let root = folder.join(link.replace('/', "-"));
            symlink(&outside, place(&root_of(&root), Path::new(link)).unwrap()).unwrap();
            let error = leave_no_trace(&root).unwrap_err();
            assert!(matches!(error, BuildError::Outward { .. }), "{link}: {error}");
        }
        let error = append(&folder.join("etc"), "etc/passwd", "me").unwrap_err();
        assert!(matches!(error, BuildError::Outward { .. }), "{error}");
        let theirs = std::fs::read_dir(&outside).unwrap().map(|file| {
            let path = file.unwrap().path();
            std::fs::read_to_string(path).unwrap()
        });
        assert_eq!(theirs.collect::<Vec<_>>(), ["theirs"; 3]);
    }

    /// A root file system without anything.
    fn root_of(path: &Path) -> PathBuf {
        std::fs::create_dir_all(path).unwrap();
        path.canonicalize().unwrap()
    }

    #[test]
    fn writing_replaces_a_link_and_not_what_it_points_at() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        std::fs::write(&target, "old").unwrap();
        symlink(&target, &link).unwrap();
        write(&link, "new").unwrap();
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "old");
        assert_eq!(std::fs::read_to_string(&link).unwrap(), "new");
    }
}
