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
use crate::{client, owner, places, process};

/// The name that stands for the standard output or input.
const PIPE: &str = "-";

/// Copies the store of the control plane that BELLJAR_URL names, or this machine's: through the control plane where it runs, which
/// is the one that may touch it; otherwise here. Says which it was.
pub(crate) fn backup(loaded: &Loaded, file: &Path, json: bool) -> anyhow::Result<End> {
    let settings = &loaded.settings;
    if let Some(url) = elsewhere(settings) {
        return backed_up_elsewhere(&url, file, json);
    }
    owner::must_be_owner(settings)?;
    let of = places::store(settings);
    if file == Path::new(PIPE) {
        let scratch = copied(settings)?;
        let mut copy = File::open(scratch.path()).context("cannot read the copy that was made")?;
        io::copy(&mut copy, &mut io::stdout()).context("cannot write the copy to the standard output")?;
        return Ok(End::Done);
    }
    let file = new_place(file)?;
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
    told(&file, &of.display().to_string(), json)
}

/// Says where a copy is, and of what.
fn told(file: &Path, of: &str, json: bool) -> anyhow::Result<End> {
    if json {
        cli::line(json!({ "file": file, "of": of }))?;
    } else {
        cli::note(format_args!("a copy of {of}:"));
        cli::line(file.display())?;
    }
    Ok(End::Done)
}

/// The address of a control plane that is not this machine's own, where BELLJAR_URL names one.
pub(super) fn elsewhere(settings: &Settings) -> Option<String> {
    let (named, _) = client::named();
    let own = own_url(settings);
    named.filter(|named| !is_same_place(named, &own))
}

/// Whether two addresses are the same, however this machine is called in them.
fn is_same_place(named: &str, own: &str) -> bool {
    let of = |url: &str| {
        let url = url.trim_end_matches('/').to_ascii_lowercase();
        let (host, port) = url.strip_prefix("http://")?.rsplit_once(':')?;
        let host = match host {
            "localhost" | "[::1]" | "0.0.0.0" | "[::]" => "127.0.0.1",
            other => other,
        };
        Some((host.to_owned(), port.to_owned()))
    };
    of(named).is_some_and(|named| of(own) == Some(named))
}

/// Copies the store of a control plane that runs elsewhere.
fn backed_up_elsewhere(url: &str, file: &Path, json: bool) -> anyhow::Result<End> {
    let (_, token) = client::named();
    let token = token.with_context(|| {
        format!(
            "BELLJAR_URL names {url}, which is not this machine's own control plane: set BELLJAR_TOKEN to an admin's token there, or \
             leave BELLJAR_URL out to copy the store of this machine"
        )
    })?;
    let client = Client::new(url, token)?;
    let fetched = |to: &Path| -> anyhow::Result<()> {
        let fetching = cli::backup(&client, to);
        Ok(process::runtime()?.block_on(fetching)?)
    };
    if file == Path::new(PIPE) {
        let scratch = tempfile::tempdir().context("cannot make a folder for the copy")?;
        let place = scratch.path().join("store.db");
        fetched(&place)?;
        let mut copy = File::open(place).context("cannot read the copy that was made")?;
        io::copy(&mut copy, &mut io::stdout()).context("cannot write the copy to the standard output")?;
        return Ok(End::Done);
    }
    let file = new_place(file)?;
    fetched(&file)?;
    told(&file, &format!("the store at {url}"), json)
}

/// The whole path of a file that is not there yet.
fn new_place(file: &Path) -> anyhow::Result<PathBuf> {
    let file = std::path::absolute(file).context("cannot find the current folder")?;
    if fs::symlink_metadata(&file).is_ok() {
        bail!(
            "{} exists already: name another file, or move this one away",
            file.display()
        );
    }
    Ok(file)
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
        _ if json => cli::line(format_args!(
            "{}",
            json!({
                "entries": verdict.entries,
                "head": head,
                "broken_at": verdict.broken.map(AuditBreak::number),
                "broken": broken,
            })
        ))?,
        Some(broken) => cli::line(format_args!("broken: {broken}"))?,
        None => cli::line(format_args!(
            "whole: {0} entries\nnote this: {0}:{head}",
            verdict.entries
        ))?,
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
    if let Some(url) = elsewhere(settings) {
        bail!(
            "BELLJAR_URL names {url}, and a copy is put in the place of a store on its own machine only: run this there, or leave \
             BELLJAR_URL out to replace {}",
            places::store(settings).display()
        );
    }
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
        replaced if json => cli::line(json!({ "restored": path, "replaced": replaced }))?,
        Some(replaced) => cli::line(format_args!(
            "restored; the store that was there before is {}",
            replaced.display()
        ))?,
        None => cli::line("restored")?,
    }
    Ok(End::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_several_names() {
        let own = "http://127.0.0.1:7717";
        for named in [
            own,
            "http://localhost:7717",
            "http://LOCALHOST:7717/",
            "http://[::1]:7717",
        ] {
            assert!(is_same_place(named, own), "{named}");
        }
        assert!(is_same_place("http://localhost:7717", "http://0.0.0.0:7717"));
        for named in [
            "http://127.0.0.1:7718",
            "https://127.0.0.1:7717",
            "http://belljar.example.com:7717",
            "http://127.0.0.1",
            "",
        ] {
            assert!(!is_same_place(named, own), "{named}");
        }
    }
}
