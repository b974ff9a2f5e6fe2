//! Copies of the store: `backup` and `restore`.
//!
//! As root, what the person named is opened here, and a process that is the owner of the control plane's folder does the rest;
//! between the two is a pipe.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;

use anyhow::{Context, bail};
use cli::{Client, Noted};
use serde_json::json;
use store::{Asker, AuditBreak, Store, StoreError};
use tempfile::NamedTempFile;

use super::{own_token, own_url};
use crate::config::{Loaded, Settings};
use crate::end::End;
use crate::system_user::SystemUser;
use crate::{owner, places, process};

/// The name that stands for the standard output or input.
const PIPE: &str = "-";

/// Copies the store: through the control plane where it runs, which is the one that may touch it; otherwise here.
pub(crate) fn backup(loaded: &Loaded, file: &Path, json: bool) -> anyhow::Result<End> {
    let settings = &loaded.settings;
    owner::must_be_owner(settings)?;
    if file == Path::new(PIPE) {
        let scratch = copied(settings)?;
        let mut copy = File::open(scratch.path()).context("cannot read the copy that was made")?;
        io::copy(&mut copy, &mut io::stdout()).context("cannot write the copy to the standard output")?;
        return Ok(End::Done);
    }
    let file = std::path::absolute(file).context("cannot find the current folder")?;
    if fs::symlink_metadata(&file).is_ok() {
        bail!(
            "{} exists already: name another file, or move this one away",
            file.display()
        );
    }
    match owner::other_than_root(settings)? {
        None => {
            let mut copy = File::open(copied(settings)?.path()).context("cannot read the copy that was made")?;
            put(&file, &mut copy)?;
        }
        Some(owner) => {
            if !backed_up_as(owner, loaded, &file, json)? {
                return Ok(End::Found);
            }
        }
    }
    if json {
        println!("{}", json!({ "file": file }));
    } else {
        println!("{}", file.display());
    }
    Ok(End::Done)
}

/// Has the folder's owner make the copy, and keeps what comes out of the pipe. False: it failed, and has said why.
fn backed_up_as(owner: SystemUser, loaded: &Loaded, file: &Path, json: bool) -> anyhow::Result<bool> {
    refuse_inside(file, owner)?;
    // Whole or not at all: it gets its name only when whoever made it says that nothing is missing. Before anybody begins to
    // copy: a pipe that nobody reads is their error, and not what was wrong.
    let mut scratch = beside(file)?;
    let mut child = owner::again(loaded, owner, &["backup".into(), PIPE.into()], json)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot go on as the owner of the control plane's folder")?;
    let mut output = child.stdout.take().context("the copy has no way out")?;
    let received = io::copy(&mut output, &mut scratch);
    drop(output);
    let status = child.wait().context("cannot wait for the copy")?;
    if !status.success() {
        return Ok(false);
    }
    received.with_context(|| format!("cannot write {}", file.display()))?;
    named(scratch, file)?;
    Ok(true)
}

/// A copy of the store in a file that goes when it is dropped.
fn copied(settings: &Settings) -> anyhow::Result<Scratch> {
    let own = places::control(settings);
    let scratch = Scratch::new(&own)?;
    process::runtime()?.block_on(async {
        match Store::open(store::Config::new(places::store(settings))).await {
            Ok(store) => {
                let copied = store.backup(Asker::System, &scratch.path()).await;
                store.close().await;
                copied?;
            }
            Err(StoreError::InUse { .. }) => {
                let client = Client::new(&own_url(settings), own_token(settings)?)?;
                cli::backup(&client, &scratch.path()).await?;
            }
            Err(error) => return Err(error.into()),
        }
        anyhow::Ok(())
    })?;
    Ok(scratch)
}

/// A folder of our own in the control plane's, with a file's name in it; both go when it is dropped.
struct Scratch {
    folder: tempfile::TempDir,
}

impl Scratch {
    fn new(own: &Path) -> anyhow::Result<Self> {
        let folder = tempfile::Builder::new().prefix(".copy-").tempdir_in(own);
        let folder = folder.with_context(|| format!("cannot make a folder in {}", own.display()))?;
        Ok(Self { folder })
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }
}

/// Follows the audit log of a copy, wherever it is: neither a configuration nor a control plane is asked.
pub(crate) fn verify_copy(copy: &Path, noted: Option<&Noted>, json: bool) -> anyhow::Result<End> {
    let noted = noted.map(|noted| anyhow::Ok((noted.number, noted.hash.parse()?)));
    let verdict = process::runtime()?.block_on(store::verify_audit_of(copy, noted.transpose()?))?;
    let (head, broken) = (
        verdict.head.to_string(),
        verdict.broken.map(|broken| broken.to_string()),
    );
    match &broken {
        _ if json => println!(
            "{}",
            json!({
                "entries": verdict.entries,
                "head": head,
                "broken_at": verdict.broken.map(AuditBreak::number),
                "broken": broken,
            })
        ),
        Some(broken) => println!("broken: {broken}"),
        None => println!("whole: {0} entries\nnote this: {0}:{head}", verdict.entries),
    }
    Ok(if broken.is_some() { End::Found } else { End::Done })
}

fn beside(file: &Path) -> anyhow::Result<NamedTempFile> {
    let folder = file.parent().unwrap_or(Path::new("/"));
    NamedTempFile::new_in(folder).with_context(|| format!("cannot make a file in {}", folder.display()))
}

/// Gives a file its name once it is whole and on the disk.
fn named(scratch: NamedTempFile, file: &Path) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", file.display());
    scratch.as_file().sync_all().with_context(failed)?;
    scratch
        .persist_noclobber(file)
        .map_err(|error| error.error)
        .with_context(failed)?;
    let folder = file.parent().unwrap_or(Path::new("/"));
    File::open(folder)
        .and_then(|folder| folder.sync_all())
        .with_context(failed)
}

fn put(file: &Path, copy: &mut impl io::Read) -> anyhow::Result<()> {
    let mut scratch = beside(file)?;
    io::copy(copy, &mut scratch).with_context(|| format!("cannot write {}", file.display()))?;
    named(scratch, file)
}

fn refuse_inside(file: &Path, owner: SystemUser) -> anyhow::Result<()> {
    if owner::leads_through(file, owner) {
        bail!(
            "{} leads through a folder of the control plane's user, who could lead it anywhere: name a file elsewhere",
            file.display()
        );
    }
    Ok(())
}

/// Puts a copy in the store's place; it belongs to whom the folder belongs.
pub(crate) fn restore(loaded: &Loaded, file: &Path, json: bool) -> anyhow::Result<End> {
    let settings = &loaded.settings;
    let own = places::control(settings);
    owner::must_be_owner(settings)?;
    if file == Path::new(PIPE) {
        return restored(settings, &mut io::stdin(), json);
    }
    let mut copy = File::open(file).with_context(|| format!("cannot read the copy {}", file.display()))?;
    if let Some(owner) = owner::other_than_root(settings)? {
        let status = owner::again(loaded, owner, &["restore".into(), PIPE.into()], json)
            .stdin(copy)
            .status()
            .context("cannot go on as the owner of the control plane's folder")?;
        if !status.success() {
            // Why, they have said; of the file they know what is in it, and not its name.
            bail!("{} was not restored", file.display());
        }
        return Ok(End::Done);
    }
    fs::create_dir_all(&own)
        .and_then(|()| fs::set_permissions(&own, fs::Permissions::from_mode(0o700)))
        .with_context(|| format!("cannot make the folder {}", own.display()))?;
    restored(settings, &mut copy, json).with_context(|| format!("cannot restore {}", file.display()))
}

/// An error about the copy, without the place where it lies for a moment: nobody named that one.
fn of_the_copy(error: StoreError, scratch: &Path) -> anyhow::Error {
    match error {
        StoreError::NotAStore { path, reason } if path == scratch => {
            anyhow::anyhow!("the copy is not a store of Belljar: {reason}")
        }
        other => other.into(),
    }
}

/// Puts what comes in the store's place, as the folder's owner.
fn restored(settings: &Settings, copy: &mut impl io::Read, json: bool) -> anyhow::Result<End> {
    let scratch = Scratch::new(&places::control(settings))?;
    let mut file = File::create_new(scratch.path()).context("cannot keep the copy")?;
    io::copy(copy, &mut file)
        .and_then(|_| file.flush())
        .context("cannot read the copy")?;
    let path = places::store(settings);
    let restored = process::runtime()?
        .block_on(store::restore(&scratch.path(), &path))
        .map_err(|error| of_the_copy(error, &scratch.path()))?;
    match restored.replaced {
        replaced if json => println!("{}", json!({ "restored": path, "replaced": replaced })),
        Some(replaced) => println!("restored; the store that was there before is {}", replaced.display()),
        None => println!("restored"),
    }
    Ok(End::Done)
}
