//! What is in the miniature: decided from what this machine has.

use std::collections::BTreeMap;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use sha2::{Digest, Sha256};

use crate::clients;
use crate::command::try_run;
use crate::upstream::Authority;

/// Raised when the same machine should make something else than before.
const EDITION: u32 = 1;

/// Where the list of authorities is.
const CERTIFICATES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// Programs that tests may want. What this machine lacks, the miniature lacks.
const PROGRAMS: &[&str] = &[
    "awk",
    "base64",
    "basename",
    "bash",
    "cat",
    "chgrp",
    "chmod",
    "chown",
    "chroot",
    "cksum",
    "cmp",
    "comm",
    "cp",
    "curl",
    "cut",
    "date",
    "dd",
    "df",
    "diff",
    "dirname",
    "du",
    "echo",
    "env",
    "expand",
    "expr",
    "false",
    "find",
    "fold",
    "getent",
    "git",
    "grep",
    "groups",
    "gzip",
    "head",
    "hostname",
    "id",
    "install",
    "ip",
    "jq",
    "kill",
    "link",
    "ln",
    "ls",
    "md5sum",
    "mkdir",
    "mkfifo",
    "mknod",
    "mktemp",
    "mount",
    "mv",
    "nice",
    "nl",
    "nohup",
    "nproc",
    "nsenter",
    "od",
    "paste",
    "pdftotext",
    "pgrep",
    "printenv",
    "printf",
    "ps",
    "pwd",
    "readlink",
    "realpath",
    "rg",
    "rm",
    "rmdir",
    "sed",
    "seq",
    "setpriv",
    "setsid",
    "sh",
    "sha256sum",
    "shuf",
    "sleep",
    "sort",
    "split",
    "ss",
    "ssh",
    "stat",
    "stty",
    "su",
    "sync",
    "tac",
    "tail",
    "tar",
    "tee",
    "test",
    "timeout",
    "touch",
    "tr",
    "true",
    "truncate",
    "tsort",
    "tty",
    "umount",
    "uname",
    "uniq",
    "unlink",
    "unshare",
    "wc",
    "which",
    "whoami",
    "xargs",
    "yes",
];

/// Where a distribution's programs are, whatever PATH a developer has.
const PROGRAM_FOLDERS: &[&str] = &["/usr/bin", "/bin", "/usr/sbin", "/sbin"];

/// An entry of the root file system.
#[derive(Debug)]
pub(crate) enum Entry {
    /// A folder with its mode and owner.
    Folder(u32, u32),
    /// A copy of a file of this machine.
    Copy(PathBuf),
    /// A symbolic link.
    Link(PathBuf),
    /// A small file.
    Text(String),
}

/// Everything in the root file system by its path in it, which is relative.
#[derive(Debug, Default)]
pub(crate) struct Plan(pub(crate) BTreeMap<PathBuf, Entry>);

impl Plan {
    /// What this machine can give, and a Node beside it.
    pub(crate) fn of_this_machine(node: &Path) -> Result<Self, String> {
        let mut plan = Self::default();
        plan.bones();
        let mut linked = Vec::new();
        for name in PROGRAMS {
            if let Some(program) = find_program(name) {
                plan.0
                    .insert(Path::new("usr/bin").join(name), Entry::Copy(program.clone()));
                linked.push(program);
            }
        }
        plan.0.insert("usr/local/bin/node".into(), Entry::Copy(node.into()));
        linked.push(node.into());
        plan.python(&mut linked)?;
        plan.git(&mut linked)?;
        plan.skills()?;
        for library in libraries(&linked)? {
            plan.0.insert(inside(&library), Entry::Copy(library));
        }
        Ok(plan)
    }

    /// What the [`clients`](crate::clients) need beside: what was brought and built, and those of the distribution where they are wanted.
    pub(crate) fn of_clients(with_the_distributions: bool) -> Result<Self, String> {
        let mut plan = Self::default();
        let mut linked = Vec::new();
        for (from, to) in [(clients::brought(), "clients"), (&clients::built(), "built")] {
            plan.copy_folder_to(from, Path::new(to), &mut linked)?;
        }
        linked.extend(plan.0.values().filter_map(|entry| match entry {
            Entry::Copy(from) if is_program(from) => Some(from.clone()),
            _ => None,
        }));
        if !with_the_distributions {
            return Ok(plan);
        }
        for name in ["gh", "wget"] {
            let program = find_program(name).ok_or_else(|| lacking(name))?;
            plan.0
                .insert(Path::new("usr/bin").join(name), Entry::Copy(program.clone()));
            linked.push(program);
        }
        let java = find_program("java").ok_or_else(|| lacking("java"))?;
        let home = java.ancestors().nth(2).ok_or_else(|| lacking("java"))?;
        let left_out = ["demo", "docs", "include", "jmods", "legal", "man"];
        plan.copy_folder(home, &|name| left_out.contains(&name), &mut linked)?;
        let store = Path::new("/etc/ssl/certs/java/cacerts");
        plan.0
            .insert(inside(&home.join("lib/security/cacerts")), Entry::Link(store.into()));
        plan.0.insert(inside(store), Entry::Copy(store.into()));
        plan.0.insert("usr/bin/java".into(), Entry::Link(java.clone()));
        linked.push(java);
        for library in libraries(&linked)? {
            plan.0.insert(inside(&library), Entry::Copy(library));
        }
        Ok(plan)
    }

    /// Has what stands upon a root file system trust this authority too.
    pub(crate) fn trust(&mut self, root: &Path, authority: &Authority) -> Result<(), String> {
        let list = inside(Path::new(CERTIFICATES));
        let text =
            std::fs::read_to_string(root.join(&list)).map_err(|error| format!("read {CERTIFICATES}: {error}"))?;
        self.0.insert(list, Entry::Text(text + &authority.pem()));
        Ok(())
    }

    fn bones(&mut self) {
        for name in ["bin", "lib", "lib64", "sbin"] {
            self.0.insert(name.into(), Entry::Link(Path::new("usr").join(name)));
        }
        for (path, mode, owner) in [
            ("dev", 0o755, 0),
            ("home/agent", 0o755, 1000),
            ("knowledge", 0o755, 1000),
            ("proc", 0o755, 0),
            ("root", 0o700, 0),
            ("run", 0o755, 0),
            ("sys", 0o755, 0),
            ("tmp", 0o1777, 0),
            ("usr/lib64", 0o755, 0),
            ("usr/sbin", 0o755, 0),
            ("var/tmp", 0o1777, 0),
            ("workspace", 0o755, 1000),
        ] {
            self.0.insert(path.into(), Entry::Folder(mode, owner));
        }
        for (path, text) in [
            (
                "etc/passwd",
                "root:x:0:0:root:/root:/bin/bash\nagent:x:1000:1000:agent:/home/agent:/bin/bash\n\
                 nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n",
            ),
            ("etc/group", "root:x:0:\nagent:x:1000:\nnogroup:x:65534:\n"),
            ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files dns\n"),
            ("etc/hosts", "127.0.0.1 localhost\n::1 localhost\n"),
            ("etc/hostname", "belljar\n"),
            ("etc/resolv.conf", ""),
            (
                "etc/os-release",
                "ID=miniature\nPRETTY_NAME=\"A miniature for tests\"\n",
            ),
        ] {
            self.0.insert(path.into(), Entry::Text(text.into()));
        }
        let certificates = Path::new(CERTIFICATES);
        if certificates.exists() {
            self.0.insert(inside(certificates), Entry::Copy(certificates.into()));
        }
    }

    fn python(&mut self, linked: &mut Vec<PathBuf>) -> Result<(), String> {
        let Some(program) = find_program("python3") else {
            return Ok(());
        };
        let Some(name) = program.file_name() else { return Ok(()) };
        let library = Path::new("/usr/lib").join(name);
        self.0.insert("usr/bin/python3".into(), Entry::Copy(program.clone()));
        linked.push(program);
        let left_out = [
            "__pycache__",
            "dist-packages",
            "ensurepip",
            "idlelib",
            "lib2to3",
            "pydoc_data",
            "test",
            "tkinter",
            "turtledemo",
        ];
        self.copy_folder(
            &library,
            &|name| left_out.contains(&name) || name.starts_with("config-"),
            linked,
        )
    }

    fn git(&mut self, linked: &mut Vec<PathBuf>) -> Result<(), String> {
        let transport = Path::new("/usr/lib/git-core/git-remote-http");
        if transport.exists() {
            self.0.insert(inside(transport), Entry::Copy(transport.into()));
            self.0.insert(
                "usr/lib/git-core/git-remote-https".into(),
                Entry::Link("git-remote-http".into()),
            );
            linked.push(transport.into());
        }
        self.copy_folder(Path::new("/usr/share/git-core/templates"), &|_| false, linked)
    }

    /// The skills that ship with the project, as the base image has them.
    fn skills(&mut self) -> Result<(), String> {
        let skills = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../skills");
        self.copy_folder_to(&skills, Path::new("skills"), &mut Vec::new())
    }

    /// Copies a folder of this machine to another place.
    fn copy_folder_to(&mut self, folder: &Path, place: &Path, linked: &mut Vec<PathBuf>) -> Result<(), String> {
        let mut copied = Self::default();
        copied.copy_folder(folder, &|_| false, linked)?;
        for entry in copied.0.into_values() {
            if let Entry::Copy(from) = &entry {
                let path = from
                    .strip_prefix(folder)
                    .map_err(|error| format!("place {}: {error}", from.display()))?;
                self.0.insert(place.join(path), entry);
            }
        }
        Ok(())
    }

    /// Copies a folder of this machine to the same place; notes shared objects in it as things that need libraries.
    fn copy_folder(
        &mut self,
        folder: &Path,
        left_out: &dyn Fn(&str) -> bool,
        linked: &mut Vec<PathBuf>,
    ) -> Result<(), String> {
        let Ok(entries) = std::fs::read_dir(folder) else {
            return Ok(());
        };
        for entry in entries {
            let path = entry
                .map_err(|error| format!("list {}: {error}", folder.display()))?
                .path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if left_out(name) {
                continue;
            }
            if path.is_dir() {
                self.copy_folder(&path, left_out, linked)?;
            } else if path.is_file() {
                if name.ends_with(".so") {
                    linked.push(path.clone());
                }
                self.0.insert(inside(&path), Entry::Copy(path));
            }
        }
        Ok(())
    }

    /// The name of exactly this content: a file counts by where it is, its size and when it was last changed.
    pub(crate) fn digest(&self) -> Result<String, String> {
        let mut hash = Sha256::new();
        hash.update(format!("miniature {EDITION}\n"));
        for (path, entry) in &self.0 {
            hash.update(format!("{path:?} {entry:?}"));
            if let Entry::Copy(from) = entry {
                let about = std::fs::metadata(from).map_err(|error| format!("look at {}: {error}", from.display()))?;
                hash.update(format!(
                    " {} {}.{} {:o}",
                    about.len(),
                    about.mtime(),
                    about.mtime_nsec(),
                    about.mode()
                ));
            }
            hash.update("\n");
        }
        Ok(hex::encode(hash.finalize()))
    }
}

/// Whether a file is a program of the machine's own kind (ELF).
fn is_program(path: &Path) -> bool {
    let mut magic = [0; 4];
    let read = std::fs::File::open(path).and_then(|mut file| file.read_exact(&mut magic));
    read.is_ok() && magic == *b"\x7fELF"
}

fn lacking(name: &str) -> String {
    format!("there is no {name} on this machine: scripts/prepare tests brings it")
}

fn find_program(name: &str) -> Option<PathBuf> {
    PROGRAM_FOLDERS
        .iter()
        .find_map(|folder| Path::new(folder).join(name).canonicalize().ok())
}

/// Where a file of this machine belongs in the miniature, in which `/lib` is `/usr/lib`.
fn inside(path: &Path) -> PathBuf {
    let path = path.strip_prefix("/").unwrap_or(path);
    if path.starts_with("lib") || path.starts_with("lib64") {
        Path::new("usr").join(path)
    } else {
        path.into()
    }
}

/// The shared libraries that programs need, and the loader.
fn libraries(programs: &[PathBuf]) -> Result<Vec<PathBuf>, String> {
    // It fails when one of them is a script or static; what matters is in its output either way.
    let mut ldd = Command::new("sh");
    ldd.args(["-c", "ldd \"$@\" 2>/dev/null; true", "ldd"])
        .args(programs)
        .env_remove("LD_LIBRARY_PATH")
        .env("LC_ALL", "C");
    let output = try_run(Duration::from_secs(60), &mut ldd)?;
    let mut found = std::collections::BTreeSet::new();
    for line in output.lines() {
        let Some(line) = line.strip_prefix('\t') else { continue };
        let named = line.rsplit_once(" (0x").map_or(line, |(named, _)| named);
        let path = named.split_once(" => ").map_or(named, |(_, path)| path);
        // One that a program finds beside itself is copied with it.
        if path.starts_with('/') && !path.contains("/../") {
            found.insert(PathBuf::from(path));
        }
    }
    Ok(found.into_iter().collect())
}
