//! What a provider does when it starts: adopt what lives, clear what was never finished.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use domain::SandboxId;
use rustix::process::{Pid, Signal, kill_process};
use sandbox::ProviderError;

use super::{Held, folder};
use crate::attempt::Attempt;
use crate::process::Process;
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

/// The sandboxes that are written down and were made.
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
        let Some(record) = folder.read()? else {
            // Killed before the record was written: nothing else is there yet. Or it was lost: what is there is nobody's.
            if let Ok(id) = name.to_string_lossy().parse() {
                clear_unrecorded(workshop, id)?;
            }
            folder.remove()?;
            continue;
        };
        let held = Held::new(workshop, record);
        if workshop.maker.root_uid().is_none() {
            workshop.ids.keep(held.record.root_uid, &held.folder)?;
        }
        let Some(identity) = held.record.process else {
            // An OCI runtime that was started for it may still be at work.
            kill_who_works_on(folder.path()).attempt(|| format!("stop who makes {}", folder.path().display()))?;
            match held.destroy(workshop) {
                Ok(()) => tracing::info!(sandbox = %held.record.spec.id, "cleared a sandbox that was never finished"),
                Err(error) => {
                    held.is_in_the_way(&error);
                    found.insert(held.record.spec.id, Arc::new(held));
                }
            }
            continue;
        };
        let mut process = Process::find(identity);
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
        held.listens(workshop::listen(&held.folder, held.record.root_uid)?);
        held.lives(process);
        if held.folder.was_standing() && held.living().is_ok() {
            held.go_on()?;
        }
        tracing::info!(sandbox = %held.record.spec.id, "adopted a sandbox");
        found.insert(held.record.spec.id, Arc::new(held));
    }
    Ok(found)
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
            workshop.asleep.forget(session)?;
        }
    }
    Ok(())
}

/// Ends what there is of a sandbox of which nothing is written down.
fn clear_unrecorded(workshop: &Workshop, id: SandboxId) -> Result<(), ProviderError> {
    let attempt = || format!("end the processes of sandbox {id}, of which nothing is written down");
    let group = workshop.maker.group(id);
    let killed = group.kill().attempt(attempt)?;
    workshop.maker.forget(id)?;
    group.remove().attempt(attempt)?;
    for process in killed {
        process.ends_within(PATIENCE);
        process.bury();
    }
    Ok(())
}

/// Kills every process that was given this folder as an argument.
fn kill_who_works_on(folder: &Path) -> io::Result<()> {
    let wanted = folder.as_os_str().as_encoded_bytes();
    for entry in fs::read_dir("/proc")? {
        let entry = entry?;
        let pid = entry.file_name().to_string_lossy().parse().ok().and_then(Pid::from_raw);
        let (Some(pid), Ok(line)) = (pid, fs::read(entry.path().join("cmdline"))) else {
            continue;
        };
        if line.split(|byte| *byte == 0).any(|argument| argument == wanted)
            && let Ok(process) = Process::open(pid.as_raw_nonzero().get())
        {
            // The only failure is that it has ended already.
            let _ended = kill_process(pid, Signal::KILL);
            process.ends_within(PATIENCE);
        }
    }
    Ok(())
}
