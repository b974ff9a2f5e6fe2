//! Hibernating and waking.
//!
//! What is written is whole only when the sandbox is gone, and used up before a process of it goes on
//! ([`crate::asleep`]).

use domain::{SandboxId, SessionId};
use sandbox::{Kept, ProviderError, SandboxSpec, SandboxStatus};

use super::places::Place;
use super::{Held, Shared, free_of};
use crate::asleep::Note;
use crate::attempt::Attempt;
use crate::words::Words;
use crate::workshop::Workshop;

/// What is written of processes beside their memory: what a kernel of its own knows of them.
const BESIDE_MEMORY: u64 = 64 << 20;

impl Shared {
    pub(super) fn hibernate(&self, id: SandboxId) -> Result<Kept, ProviderError> {
        let Some(held) = self.sandboxes().get(&id).cloned() else {
            // Whoever asks again did not hear what became of it.
            let was_kept = self.workshop.asleep.has_kept(id);
            return Ok(if was_kept { Kept::Processes } else { nothing(None) });
        };
        let session = held.session();
        let _alone = self.places.take([Place::Disk(session)]);
        let asleep = &self.workshop.asleep;
        let mut kept = nothing(None);
        let gone = held.destroy_and_leave(&self.workshop, |held| match held.keep(&self.workshop, session) {
            Ok(true) => {
                kept = Kept::Processes;
                Some(asleep.place(session))
            }
            Ok(false) => None,
            Err(error) => {
                tracing::warn!(sandbox = %id, %session, error = &error as &dyn std::error::Error, "the processes of a sandbox could not be kept; they end");
                kept = nothing(Some(in_words(&error)));
                None
            }
        });
        let left = gone.map(|()| {
            self.sandboxes().remove(&id);
            match kept {
                Kept::Processes => match asleep.finish(session) {
                    Ok(()) => Kept::Processes,
                    Err(error) => nothing(Some(in_words(&error))),
                },
                kept => kept,
            }
        });
        if !matches!(left, Ok(Kept::Processes))
            // Should it not go, it is never whole, and goes when this process begins anew.
            && let Err(error) = asleep.forget(session)
        {
            tracing::warn!(%session, error = &error as &dyn std::error::Error, "could not remove what was to be kept of processes");
        }
        left
    }

    pub(super) fn wake(&self, spec: &SandboxSpec) -> Result<SandboxStatus, ProviderError> {
        spec.limits.check()?;
        let words = Words::new().attempt(|| "make room for a runtime's words".into())?;
        let (session, workshop) = (spec.session, &self.workshop);
        let cannot = |reason: String| ProviderError::NothingKept { session, reason };
        let (held, used) = {
            let _alone = self
                .places
                .take([Place::Disk(session), Place::Image(spec.image.clone())]);
            self.refuse_taken(spec)?;
            let note = match workshop.asleep.kept(session) {
                Ok(Some(note)) => note,
                Ok(None) => return Err(cannot("none are kept".to_owned())),
                Err(error) => {
                    workshop.asleep.forget(session)?;
                    return Err(cannot(in_words(&error)));
                }
            };
            let unfit = note.unfit(spec, workshop.programs()?.as_deref());
            let unfit = match unfit {
                None if !workshop.pool.has(session)? => Some("their disk is gone"),
                unfit => unfit,
            };
            if let Some(unfit) = unfit {
                workshop.asleep.forget(session)?;
                return Err(cannot(unfit.to_owned()));
            }
            let held = self.reserve(spec, Some(note.root_uid))?;
            let taken = held
                .folder
                .make()
                .and_then(|()| {
                    let (from, to) = (workshop.asleep.place(session), held.folder.path());
                    workshop.ids.hand_over(note.root_uid, &from, to)
                })
                .and_then(|is_ours| match is_ours {
                    true => held.folder.write(&held.record),
                    false => Err(cannot("their user ids were given to another sandbox".to_owned())),
                })
                // Whatever comes now, they are used up.
                .and_then(|()| workshop.asleep.take(session));
            match taken {
                Ok(used) => (held, used),
                Err(error) => {
                    self.give_up(&held);
                    workshop.asleep.forget(session)?;
                    return Err(error);
                }
            }
        };
        let woken = self.start(&held, words, Some(&used));
        if let Err(error) = workshop.asleep.spend(session) {
            tracing::warn!(%session, error = &error as &dyn std::error::Error, "could not remove what was kept of processes; it is never used again");
        }
        woken
    }

    /// Refuses an id that is taken, and a session that has a sandbox.
    fn refuse_taken(&self, spec: &SandboxSpec) -> Result<(), ProviderError> {
        let sandboxes = self.sandboxes();
        if sandboxes.contains_key(&spec.id) {
            return Err(ProviderError::Exists(spec.id));
        }
        free_of(&sandboxes, spec.session)
    }
}

impl Held {
    /// Writes its processes to where its session's are kept, where that can be. They are to be killed then.
    fn keep(&self, workshop: &Workshop, session: SessionId) -> Result<bool, ProviderError> {
        let spec = &self.record.spec;
        let Some(programs) = &self.record.programs else {
            return Ok(false);
        };
        if spec.builder || session != self.session() || self.living().is_err() {
            return Ok(false);
        }
        // What stands still cannot be written.
        self.thaw()?;
        let half = workshop.asleep.begin(session)?;
        let most = spec.limits.memory_bytes + BESIDE_MEMORY;
        workshop.maker.keep(spec.id, &half, most)?;
        let note = Note {
            version: Note::VERSION,
            spec: spec.clone(),
            root_uid: self.record.root_uid,
            programs: programs.clone(),
        };
        workshop.asleep.note(session, &note).map(|()| true)
    }
}

fn nothing(reason: Option<String>) -> Kept {
    Kept::Nothing { reason }
}

/// An error with its causes, in a line.
fn in_words(error: &ProviderError) -> String {
    let causes = std::iter::successors(std::error::Error::source(error), |cause| cause.source());
    let words = causes.fold(error.to_string(), |words, cause| format!("{words}: {cause}"));
    words.split_whitespace().collect::<Vec<_>>().join(" ")
}
