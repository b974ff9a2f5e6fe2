//! The places of objects. Finished files are put there all that wait at a time, and each folder is brought to the disk once for
//! all of them; those above it only where they are not known to be there.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::SessionId;
use tempfile::NamedTempFile;
use tokio::sync::oneshot;

use crate::objects::Key;

/// Sessions whose folders are remembered at once.
const REMEMBERED: usize = 10_000;

/// Where objects are: a folder for each session, in it one for each first byte of their names.
#[derive(Debug)]
pub(super) struct Places {
    sessions: PathBuf,
    /// Held while files are put in their places, and while a folder goes with the last object in it.
    known: Mutex<Known>,
    waiting: Mutex<Waiting>,
}

/// Files that are to be put in their places.
#[derive(Debug, Default)]
struct Waiting {
    files: Vec<Finished>,
    /// Somebody is at it, and looks again before it ends.
    served: bool,
}

#[derive(Debug)]
struct Finished {
    file: NamedTempFile,
    key: Key,
    done: oneshot::Sender<io::Result<()>>,
}

/// The folders that a power cut would leave, with those above them: of each session, by the first byte of what is in them.
#[derive(Debug, Default)]
struct Known(HashMap<SessionId, [bool; 256]>);

impl Known {
    fn has(&self, key: Key) -> bool {
        let folders = self.0.get(&key.session);
        folders.is_some_and(|folders| folders[first_byte(key)])
    }

    fn add(&mut self, key: Key) {
        if self.0.len() >= REMEMBERED && !self.0.contains_key(&key.session) {
            // They are brought to the disk once more, no harm done.
            self.0.clear();
        }
        self.0.entry(key.session).or_insert([false; 256])[first_byte(key)] = true;
    }

    fn forget(&mut self, key: Key) {
        if let Some(folders) = self.0.get_mut(&key.session) {
            folders[first_byte(key)] = false;
            if !folders.contains(&true) {
                self.0.remove(&key.session);
            }
        }
    }
}

fn first_byte(key: Key) -> usize {
    usize::from(key.sha256.0[0])
}

impl Places {
    pub(super) fn new(sessions: PathBuf) -> Self {
        Self {
            sessions,
            known: Mutex::default(),
            waiting: Mutex::default(),
        }
    }

    /// An object's place.
    pub(super) fn of(&self, key: Key) -> PathBuf {
        let name = key.sha256.to_string();
        self.sessions.join(key.session.to_string()).join(&name[..2]).join(name)
    }

    /// Puts a file, whose bytes are on the disk, in its place. When this returns it stays there when the machine's power goes.
    pub(super) async fn put(self: &Arc<Self>, file: NamedTempFile, key: Key) -> io::Result<()> {
        let (done, placed) = oneshot::channel();
        let served = {
            let mut waiting = lock(&self.waiting);
            waiting.files.push(Finished { file, key, done });
            std::mem::replace(&mut waiting.served, true)
        };
        if !served {
            let places = Arc::clone(self);
            tokio::task::spawn_blocking(move || places.serve());
        }
        placed.await.map_err(io::Error::other)?
    }

    /// Removes an object, and the folders in which nothing else is.
    pub(super) fn remove(&self, key: Key) -> io::Result<()> {
        let place = self.of(key);
        match fs::remove_file(&place) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut known = lock(&self.known);
        for folder in place.ancestors().skip(1).take(2) {
            if fs::remove_dir(folder).is_err() {
                // There is something in it.
                break;
            }
            known.forget(key);
        }
        Ok(())
    }

    fn serve(&self) {
        loop {
            let files = {
                let mut waiting = lock(&self.waiting);
                if waiting.files.is_empty() {
                    waiting.served = false;
                    return;
                }
                std::mem::take(&mut waiting.files)
            };
            self.place(files, sync);
        }
    }

    /// Puts these in their places, brings those to the disk with `sync`, and says so to who waits.
    fn place(&self, files: Vec<Finished>, mut sync: impl FnMut(&Path) -> io::Result<()>) {
        let mut known = lock(&self.known);
        let mut folders = BTreeSet::new();
        let mut placed = Vec::with_capacity(files.len());
        for Finished { file, key, done } in files {
            let place = self.of(key);
            match set(file, &place) {
                Ok(()) => {
                    let above = if known.has(key) { 1 } else { 3 };
                    folders.extend(place.ancestors().skip(1).take(above).map(Path::to_owned));
                    placed.push((key, done));
                }
                // Whoever waited may have gone; then nobody is told, here and below.
                Err(error) => drop(done.send(Err(error))),
            }
        }
        let synced = folders.iter().try_for_each(|folder| sync(folder));
        for (key, done) in placed {
            let outcome = match &synced {
                Ok(()) => {
                    known.add(key);
                    Ok(())
                }
                Err(error) => Err(io::Error::new(error.kind(), error.to_string())),
            };
            drop(done.send(outcome));
        }
    }
}

fn set(file: NamedTempFile, place: &Path) -> io::Result<()> {
    fs::create_dir_all(place.parent().unwrap_or(place))?;
    file.persist(place).map(drop).map_err(|failed| failed.error)
}

/// What stands in a folder stays when the machine's power goes.
pub(super) fn sync(folder: &Path) -> io::Result<()> {
    fs::File::open(folder)?.sync_all()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use domain::ContentHash;

    use super::*;

    /// Puts objects with these first bytes in their places, at once: the folders that were brought to the disk for them.
    fn placed(places: &Places, session: SessionId, first_bytes: &[u8], fails: bool) -> (Vec<String>, Vec<bool>) {
        let folder = places.sessions.parent().unwrap();
        let (files, answers): (Vec<_>, Vec<_>) = first_bytes
            .iter()
            .enumerate()
            .map(|(number, first)| {
                let (done, answer) = oneshot::channel();
                let key = key(session, *first, number);
                let file = NamedTempFile::new_in(folder).unwrap();
                (Finished { file, key, done }, answer)
            })
            .unzip();
        let mut synced = Vec::new();
        places.place(files, |path| {
            let name = path.strip_prefix(folder).unwrap().display().to_string();
            synced.push(name.replace(&session.to_string(), "S"));
            if fails {
                Err(io::ErrorKind::Other.into())
            } else {
                Ok(())
            }
        });
        let answers = answers.into_iter().map(|mut answer| answer.try_recv().unwrap().is_ok());
        (synced, answers.collect())
    }

    fn key(session: SessionId, first: u8, number: usize) -> Key {
        let mut sha256 = [u8::try_from(number).unwrap(); 32];
        sha256[0] = first;
        Key {
            session,
            sha256: ContentHash(sha256),
        }
    }

    #[test]
    fn a_folder_is_brought_to_the_disk_once_for_all_and_those_above_it_when_they_are_new() {
        let folder = tempfile::tempdir().unwrap();
        let places = Places::new(folder.path().join("sessions"));
        let session = SessionId::new();
        let whole = ["sessions", "sessions/S", "sessions/S/0a", "sessions/S/0b"];
        // What could not be brought to the disk was not kept, and its folders are as good as new.
        let (synced, kept) = placed(&places, session, &[10, 10, 11], true);
        assert_eq!((synced, kept), (vec![whole[0].to_owned()], vec![false; 3]));
        let (synced, kept) = placed(&places, session, &[10, 10, 11], false);
        assert_eq!((synced, kept), (whole.map(str::to_owned).to_vec(), vec![true; 3]));
        let (synced, _) = placed(&places, session, &[11, 10, 10], false);
        assert_eq!(synced, whole[2..]);
        // A folder that went is not known any more.
        for number in [0, 1, 2] {
            places.remove(key(session, 10, number)).unwrap();
        }
        assert!(
            !folder
                .path()
                .join("sessions")
                .join(session.to_string())
                .join("0a")
                .exists()
        );
        let (synced, _) = placed(&places, session, &[10, 11], false);
        assert_eq!(synced, whole);
    }
}
