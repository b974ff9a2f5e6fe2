//! What a provider does when it starts: adopt what lives, clear what was never finished.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use domain::SandboxId;
use sandbox::ProviderError;
use sys::failure::may_pass;

use super::{Held, folder};
use crate::attempt::Attempt;
use crate::process::{Process, end_noted};
use crate::record::{Folder, Record, Unread};
use crate::workshop::{self, Workshop};

/// How long a provider that is ending may take to let go.
const PATIENCE: Duration = Duration::from_secs(10);

/// Keeps every other provider away from a folder as long as the file is held.
pub(super) fn lock(run: &Path) -> Result<File, ProviderError> {
    let path = run.join("lock");
    let attempt = || format!("lock {}", path.display());
    let mut options = File::options();
    options.create(true).truncate(false).read(true).write(true);
    let mut file = options.open(&path).attempt(attempt)?;
    let begun = Instant::now();
    let mut holder = None;
    loop {
        match file.try_lock() {
            Ok(()) => {
                // For whom the lock keeps away.
                let own = std::process::id().to_string();
                file.set_len(0)
                    .and_then(|()| file.write_all(own.as_bytes()))
                    .attempt(attempt)?;
                return Ok(file);
            }
            Err(TryLockError::WouldBlock) if holder.is_none() => {
                let mut pid = String::new();
                // Without it the messages say less.
                let _ = (&mut file).take(20).read_to_string(&mut pid);
                file.rewind().attempt(attempt)?;
                let who = match pid.as_str() {
                    "" => "another host agent".to_owned(),
                    pid => format!("another host agent, process {pid},"),
                };
                tracing::info!(
                    "{who} holds {}; waiting {} s for it to end",
                    path.display(),
                    PATIENCE.as_secs()
                );
                holder = Some(who);
            }
            Err(TryLockError::WouldBlock) if begun.elapsed() < PATIENCE => sleep(Duration::from_millis(5)),
            Err(TryLockError::WouldBlock) => {
                return Err(ProviderError::Unavailable(format!(
                    "{} runs and holds {}: end it, or name another folder in sandbox.run",
                    holder.unwrap_or_default(),
                    path.display()
                )));
            }
            Err(TryLockError::Error(error)) => return Err(ProviderError::failed(attempt(), error)),
        }
    }
}

/// The sandboxes that are written down and were made. One of which nobody can ever read anything, or that cannot be adopted for
/// what stands in its folder, is ended: nobody but it is the worse for that.
///
/// # Errors
/// Where it may be the machine that keeps one from being adopted, or who is left of one from being ended: nobody is ended for the
/// former, and nobody is given a disk that is in use for the latter.
pub(super) fn find(workshop: &Workshop) -> Result<BTreeMap<SandboxId, Arc<Held>>, ProviderError> {
    let all = folder(workshop, "");
    let entries = match fs::read_dir(all.path()) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(BTreeMap::new()),
        entries => entries.attempt(|| format!("list {}", all.path().display()))?,
    };
    let mut found = BTreeMap::new();
    for entry in entries {
        let name = entry.attempt(|| format!("list {}", all.path().display()))?.file_name();
        let folder = folder(workshop, &name.to_string_lossy());
        match folder.read() {
            Ok(Some(record)) => {
                if let Some(held) = take_over(workshop, record)? {
                    found.insert(held.record.spec.id, Arc::new(held));
                }
            }
            // Killed before the record was written: nothing else is there yet. Or it was lost: what is there is nobody's.
            Ok(None) => clear_unrecorded(workshop, &folder)?,
            Err(Unread::Now(error)) => return Err(error),
            Err(Unread::Ever(error)) => {
                tracing::error!(
                    error = &error as &dyn std::error::Error,
                    "what is written down of a sandbox cannot be read, so it is ended; its session's disk stays"
                );
                clear_unrecorded(workshop, &folder)?;
            }
        }
    }
    Ok(found)
}

/// Adopts a sandbox that was made, and clears away one that was not, or that cannot be adopted; none where nothing is left of it.
fn take_over(workshop: &Workshop, record: Record) -> Result<Option<Held>, ProviderError> {
    let held = Held::new(workshop, record);
    let id = held.record.spec.id;
    let taken_over = match held.record.process {
        Some(identity) => adopt(workshop, &held, Process::find(identity)),
        None => Ok(false),
    };
    match taken_over {
        Ok(true) => {
            tracing::info!(sandbox = %id, "adopted a sandbox");
            return Ok(Some(held));
        }
        Ok(false) => tracing::info!(sandbox = %id, "clearing a sandbox that was never finished"),
        Err(error) if may_pass(&error) => return Err(error),
        Err(error) => {
            tracing::error!(sandbox = %id, error = &error as &dyn std::error::Error, "a sandbox cannot be adopted, so it is ended");
        }
    }
    // An OCI runtime that was started for it may have left somebody.
    let cleared = end_noted(&held.folder.crew())
        .attempt(|| format!("end who makes {}", held.folder.path().display()))
        .and_then(|()| held.destroy(workshop));
    if let Err(error) = cleared {
        held.is_in_the_way(&error);
        return Ok(Some(held));
    }
    Ok(None)
}

/// Whether a sandbox that was made is adopted, whose PID 1 this is if it lives.
fn adopt(workshop: &Workshop, held: &Held, mut process: Option<Process>) -> Result<bool, ProviderError> {
    if let Some(session) = held.record.assigned
        // Killed between writing down whose it is and doing it, perhaps.
        && let Err(error) = workshop.pool.give(held.record.spec.session, session)
    {
        tracing::error!(sandbox = %held.record.spec.id, %session, error = &error as &dyn std::error::Error, "a sandbox cannot be given its session's disk, so it is ended");
        if let Some(process) = process.take() {
            process.kill();
            process.ends_within(PATIENCE);
            process.bury();
        }
    }
    held.lives(process);
    if workshop.maker.root_uid().is_none() {
        workshop.ids.keep(held.record.root_uid, &held.folder)?;
    }
    held.listens(workshop::listen(&held.folder, held.record.root_uid)?);
    if held.folder.was_standing() && held.living().is_ok() {
        held.go_on()?;
    }
    Ok(true)
}

/// Removes what was kept of processes and can go on nowhere any more, or was never finished.
pub(super) fn tidy(workshop: &Workshop, sandboxes: &BTreeMap<SandboxId, Arc<Held>>) -> Result<(), ProviderError> {
    let programs = workshop.programs()?;
    for session in workshop.asleep.sessions()? {
        let place = workshop.asleep.place(session);
        let stays = || -> Result<bool, ProviderError> {
            let Some(note) = workshop.asleep.kept(session)? else {
                return Ok(false);
            };
            let fits = note.unfit(&note.spec, programs.as_deref()).is_none();
            let sleeps = !sandboxes.values().any(|held| held.occupies(session)) && workshop.pool.has(session)?;
            Ok(fits && sleeps && workshop.ids.hand_over(note.root_uid, &place, &place)?)
        };
        let stays = stays().unwrap_or_else(|error| {
            tracing::warn!(%session, error = &error as &dyn std::error::Error, "what is kept of processes cannot be used");
            false
        });
        if !stays {
            tracing::info!(%session, "removing what was kept of processes");
            if let Err(error) = workshop.asleep.forget(session) {
                // Whatever is done next with the session's disk removes it, or fails for this reason.
                tracing::error!(%session, error = &error as &dyn std::error::Error, "what was kept of processes cannot be removed");
            }
        }
    }
    Ok(())
}

/// Ends what there is of a sandbox of which nothing is written down, and removes its folder.
fn clear_unrecorded(workshop: &Workshop, folder: &Folder) -> Result<(), ProviderError> {
    let attempt = || {
        let place = folder.path().display();
        format!("end the sandbox of {place}, of which nothing is written down")
    };
    end_noted(&folder.crew()).attempt(attempt)?;
    let name = folder.path().file_name().unwrap_or_default().to_string_lossy();
    if let Ok(id) = name.parse() {
        let group = workshop.maker.group(id);
        let killed = group.kill().attempt(attempt)?;
        workshop.maker.forget(id)?;
        group.remove().attempt(attempt)?;
        for process in killed {
            process.ends_within(PATIENCE);
            process.bury();
        }
    }
    folder.remove()
}
