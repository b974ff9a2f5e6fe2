//! `belljar secret`: the encrypted store, which is written here and read by the control plane alone. No command shows a value.

use std::fs;
use std::io::{IsTerminal, Read};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;

use anyhow::{Context, bail};
use domain::Timestamp;
use secret::{Secret, SecretName};
use secrets::{Change, EncryptedStore, Local, Rotated, make_key};
use serde_json::json;
use zeroize::Zeroizing;

use crate::arguments::SecretCommand;
use crate::config::{Loaded, Settings};
use crate::end::End;
use crate::system_user::{self, SystemUser};
use crate::{owner, places, sources};

/// Does what is asked, as the owner of the control plane's folder; root goes on as them.
pub(crate) fn secret(loaded: &Loaded, command: &SecretCommand, json: bool) -> anyhow::Result<End> {
    let settings = &loaded.settings;
    if rustix::process::geteuid().is_root() {
        // The first secret may be set before Belljar was ever up.
        let user = system_user::prepare(settings)?;
        if matches!(command, SecretCommand::Set { .. }) {
            prepare_key(settings, user)?;
        }
        if let Some(owner) = owner::other_than_root(settings)? {
            let error = owner::again(loaded, owner, &command.words(), json).exec();
            return Err(error).context("cannot go on as the owner of the control plane's folder");
        }
    } else if !places::control(settings).is_dir() {
        bail!(
            "there is no folder {}: run this once with sudo, which makes it",
            places::control(settings).display()
        );
    }
    owner::must_be_owner(settings)?;
    let local = Local::new(sources::environment(settings));
    let store = sources::store(settings, &local);
    match command {
        SecretCommand::Set { name } => set(&store, name, json),
        SecretCommand::List => list(&store, &sources::rotated(settings, &local), json),
        SecretCommand::Rm { name } => remove(&store, name, json),
    }
}

fn set(store: &EncryptedStore, name: &SecretName, json: bool) -> anyhow::Result<End> {
    let change = store.set(name, &value(name)?)?;
    let change = match change {
        Change::New => "new",
        Change::Replaced => "replaced",
    };
    if json {
        cli::line(json!({ "name": name.as_str(), "change": change }))?;
    } else {
        cli::line(format_args!("store:{name} is set ({change})"))?;
    }
    Ok(End::Done)
}

fn list(store: &EncryptedStore, rotated: &Rotated, json: bool) -> anyhow::Result<End> {
    let entries = store.list()?;
    let longest = entries.iter().map(|entry| entry.name.as_str().len()).max();
    for entry in &entries {
        if json {
            let known = json!({ "name": entry.name.as_str(), "made": entry.made, "set": entry.set });
            cli::line(known)?;
        } else {
            let width = longest.unwrap_or_default();
            cli::line(format_args!(
                "{:width$}  set {}  made {}",
                entry.name.as_str(),
                day(entry.set),
                day(entry.made)
            ))?;
        }
    }
    if entries.is_empty() && !json {
        cli::line("no secrets: set one with `belljar secret set NAME`")?;
    }
    for rotation in rotated.list()? {
        let service = &rotation.service;
        if json {
            let known = json!({ "service": service, "first_rotated": rotation.first, "rotated": rotation.last });
            println!("{known}");
        } else {
            let (first, last) = (day(rotation.first), day(rotation.last));
            println!("services.{service}.auth.refresh_token  replaced by its provider {last}, first {first}");
        }
    }
    Ok(End::Done)
}

fn remove(store: &EncryptedStore, name: &SecretName, json: bool) -> anyhow::Result<End> {
    if !store.remove(name)? {
        bail!("there is no secret {name}: `belljar secret list` shows those there are");
    }
    if json {
        cli::line(json!({ "name": name.as_str(), "change": "removed" }))?;
    } else {
        cli::line(format_args!("store:{name} is removed"))?;
    }
    Ok(End::Done)
}

/// The value: typed unseen at a terminal, or the whole standard input without the line break at its end. Never an argument,
/// which everybody on the machine can see.
fn value(name: &SecretName) -> anyhow::Result<Secret> {
    if std::io::stdin().is_terminal() {
        let typed = rpassword::prompt_password(format!("value of {name} (not shown): "));
        return typed
            .map(Secret::new)
            .context("cannot read the value from the terminal");
    }
    let mut text = Zeroizing::new(String::with_capacity(64 << 10));
    std::io::stdin()
        .take(1 << 20)
        .read_to_string(&mut text)
        .context("cannot read the value from the standard input")?;
    let line = text.strip_suffix('\n').unwrap_or(&text);
    Ok(Secret::new(line.strip_suffix('\r').unwrap_or(line)))
}

/// Makes the key file that the settings want, where it is missing and root may; for secrets that are kept before any was set.
pub(crate) fn prepare_key(settings: &Settings, user: SystemUser) -> anyhow::Result<()> {
    match settings.secrets.passphrase {
        Some(_) => Ok(()),
        None => make_key_for(&settings.secrets.key_file, user),
    }
}

/// Makes the key file where it is missing, if nobody but root can have a say in where it lies. Elsewhere its owner makes it.
fn make_key_for(path: &Path, user: SystemUser) -> anyhow::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("/"));
    if !folder.exists() && folder.parent().is_some_and(is_roots_alone) {
        fs::create_dir(folder).with_context(|| format!("cannot make the folder {}", folder.display()))?;
    }
    if is_roots_alone(folder) {
        make_key(path, Some((user.uid, user.gid)))?;
    }
    Ok(())
}

/// Whether every folder on the way, links followed and not, is root's, and nobody else may write there.
fn is_roots_alone(folder: &Path) -> bool {
    let closed = |path: &Path, about: fs::Metadata| {
        about.uid() == 0 && (about.mode() & 0o022 == 0 || about.is_symlink() && path != folder)
    };
    let whole = |path: &Path| {
        path.ancestors()
            .all(|part| fs::symlink_metadata(part).is_ok_and(|about| closed(part, about)))
    };
    whole(folder) && fs::canonicalize(folder).is_ok_and(|folder| whole(&folder))
}

/// The UTC time, to the second.
fn day(at: Timestamp) -> String {
    jiff::Timestamp::from_millisecond(at.0).map_or_else(|_| at.0.to_string(), |at| at.strftime("%F %T").to_string())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};

    use super::*;

    #[test]
    fn a_folder_that_others_have_a_say_in_is_not_roots_alone() {
        let there = Path::new("/etc");
        assert!(is_roots_alone(there) && !is_roots_alone(Path::new("/tmp")));
        let folder = tempfile::tempdir_in("/root").expect("a folder");
        let (own, theirs) = (folder.path().join("own"), folder.path().join("theirs"));
        for path in [&own, &theirs] {
            fs::create_dir(path).expect("a folder");
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).expect("a mode");
        }
        assert!(is_roots_alone(&own));
        symlink(&own, folder.path().join("link")).expect("a link of root's");
        assert!(is_roots_alone(&own.join("../own")));
        symlink(there, theirs.join("etc")).expect("a link");
        lchown(&theirs, Some(12_345), Some(12_345)).expect("theirs");
        assert!(!is_roots_alone(&theirs) && !is_roots_alone(&theirs.join("etc")));
        fs::set_permissions(&own, fs::Permissions::from_mode(0o777)).expect("a mode");
        assert!(!is_roots_alone(&own));
    }
}
