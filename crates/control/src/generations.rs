//! Generations of the image: what its recipe wants in `/knowledge` is fetched and built again and again, in a sandbox like any
//! other, and only what was built whole is what new sessions get.
//!
//! Who builds holds a lease in the store, so that of many control planes one does. A builder that dies leaves its row, whose
//! lease runs out: the next one clears away what it left, and takes the image if that had been made already.
//!
//! - [`build`]: one of them, from its sandbox to its image · [`commands`]: what is run in it
//! - [`collect`]: images that nobody uses any more · [`since`]: what came after the image was built

mod build;
mod collect;
mod commands;
mod since;

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use causes::with_causes;
use domain::{GenerationId, ProcessId, Timestamp};
use sandbox::{ImageDigest, ProviderError};
use store::{Asker, Generation, GenerationState, Ingredients, Proposal, StoreError, TakenGeneration};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout};

use self::build::BuildError;
use crate::config::{Base, Refresh};
use crate::live::lock;
use crate::{Control, ControlError};

/// How often one generation is begun, before it is given up: builders that die may die of it.
const ATTEMPTS: i64 = 3;
/// How long to rest after one that failed; twice as long after each that follows, and never longer than the usual time
/// between two.
const REST: Duration = Duration::from_secs(60);
/// How often images that nobody uses are looked for.
const COLLECT_EVERY: Duration = Duration::from_secs(600);

/// What is known of the image and its generations.
#[derive(Debug)]
pub(crate) struct Generations {
    /// What they begin with.
    base: Mutex<Arc<Base>>,
    /// What new sandboxes are made of, where anything was built.
    newest: Mutex<Option<ImageDigest>>,
    /// Told when somebody wants one, or they begin with something else.
    wanted: Notify,
    /// Who this process is, to others that build.
    holder: String,
    done: AtomicU64,
    failed: AtomicU64,
    /// Milliseconds that the last one took.
    took: AtomicU64,
}

impl Generations {
    pub(crate) fn new(base: Base) -> Self {
        Self {
            base: Mutex::new(Arc::new(base)),
            newest: Mutex::default(),
            wanted: Notify::new(),
            holder: ProcessId::new().to_string(),
            done: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            took: AtomicU64::new(0),
        }
    }
}

/// How refreshes of the image went.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefreshFigures {
    /// Those of which an image came, since this process began.
    pub done: u64,
    /// Those of which nothing came.
    pub failed: u64,
    /// How long the last of either took.
    pub took: Duration,
}

/// Why nothing was looked after.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LookError {
    #[error("the store failed")]
    Store(#[from] StoreError),
    #[error("the sandbox provider failed")]
    Provider(#[from] ProviderError),
}

impl Control {
    /// From now on this is what new sandboxes are made of, and what generations begin with. Sandboxes that are there stay what
    /// they are; where something of it is built anew, new ones are made of the newest generation until that was done.
    ///
    /// # Errors
    /// The store cannot be read: what is the newest generation may not be known for a while.
    pub async fn set_base(&self, base: Base) -> Result<(), ControlError> {
        let (image, generations) = (base.image.clone(), &self.0.generations);
        let before = std::mem::replace(&mut *lock(&generations.base), Arc::new(base));
        if *before == *self.base() {
            return Ok(());
        }
        tracing::info!(%image, "sandboxes are made of another image from now on");
        self.renew_warm();
        self.want_generation();
        Ok(self.know_generations().await?)
    }

    /// What new sandboxes are made of where nothing newer was built.
    pub(crate) fn base(&self) -> Arc<Base> {
        Arc::clone(&lock(&self.0.generations.base))
    }

    /// What a new sandbox is made of at this moment.
    pub(crate) fn image(&self) -> ImageDigest {
        let newest = lock(&self.0.generations.newest).clone();
        newest.unwrap_or_else(|| self.base().image.clone())
    }

    /// The same, and what there is where that is gone.
    pub(crate) fn images_for_new(&self) -> [ImageDigest; 2] {
        [self.image(), self.base().image.clone()]
    }

    /// How refreshes of the image went; none where it is not refreshed.
    #[must_use]
    pub fn refresh_figures(&self) -> Option<RefreshFigures> {
        self.base().refresh.as_ref()?;
        let generations = &self.0.generations;
        Some(RefreshFigures {
            done: generations.done.load(Ordering::Relaxed),
            failed: generations.failed.load(Ordering::Relaxed),
            took: Duration::from_millis(generations.took.load(Ordering::Relaxed)),
        })
    }

    /// Learns what there is, before a sandbox is made.
    pub(crate) async fn know_generations(&self) -> Result<(), StoreError> {
        let rows = match &self.base().refresh {
            Some(refresh) => self.0.store.generations(&refresh.image).await?,
            None => Vec::new(),
        };
        self.note_newest(&rows);
        Ok(())
    }

    /// Begins to look after the image's generations, whenever it has any.
    pub(crate) fn begin_generations(&self) {
        let control = self.clone();
        self.0.tasks.spawn_until_stopped(async move {
            let mut collected: Option<Instant> = None;
            loop {
                let base = control.base();
                let Some(refresh) = &base.refresh else {
                    control.0.generations.wanted.notified().await;
                    continue;
                };
                let looked = match control.0.housing.warm.is_resting() {
                    true => Ok((false, control.0.config.lease)),
                    false => control.look_after(&base.image, refresh).await,
                };
                let (built, rest) = looked.unwrap_or_else(|error| {
                    let error = with_causes(&error);
                    tracing::warn!(
                        image = refresh.image,
                        error,
                        "could not look after an image's generations"
                    );
                    (false, control.0.config.lease)
                });
                if built || collected.is_none_or(|then| then.elapsed() >= COLLECT_EVERY) {
                    collected = Some(Instant::now());
                    if let Err(error) = control.collect_images(refresh).await {
                        let error = with_causes(&error);
                        tracing::warn!(
                            image = refresh.image,
                            error,
                            "could not look for images that nobody uses"
                        );
                    }
                }
                // Leases of others end without a word, and their images are ready without one.
                let rest = rest.min(control.0.config.lease / 2);
                let _told = timeout(rest, control.0.generations.wanted.notified()).await;
            }
        });
    }

    /// Somebody wants one.
    pub(crate) fn want_generation(&self) {
        self.0.generations.wanted.notify_one();
    }

    /// Builds one, if one is to be built. True: one was. And how long to rest.
    async fn look_after(&self, base: &ImageDigest, refresh: &Refresh) -> Result<(bool, Duration), LookError> {
        let (config, store) = (&self.0.config, &self.0.store);
        let rows = store.generations(&refresh.image).await?;
        self.note_newest(&rows);
        let made_of = made_of(base, refresh, &rows);
        let due_in = due_in(refresh, &made_of, &rows, Timestamp::now());
        let seen = newest_ended(&rows).map(|generation| generation.id);
        let (lease, due) = (config.lease, due_in.is_zero());
        let proposal = Proposal {
            image: refresh.image.clone(),
            made_of,
            due,
            seen,
        };
        let holder = &self.0.generations.holder;
        let taken = store.take_generation(Asker::System, proposal, holder, lease).await?;
        match taken {
            // What is due is somebody else's, who tells nobody of its end.
            None => Ok((false, if due { config.lease } else { due_in })),
            Some(taken) => {
                self.refresh(refresh, taken).await?;
                Ok((true, Duration::ZERO))
            }
        }
    }

    fn note_newest(&self, rows: &[Generation]) {
        let (before, newest) = {
            // Held, so that rows that were read before a base came never count after it.
            let base = lock(&self.0.generations.base);
            let newest = newest_ready(rows).filter(|_| base.refresh.is_some());
            let newest = newest.and_then(|generation| generation.digest.clone());
            let before = std::mem::replace(&mut *lock(&self.0.generations.newest), newest.clone());
            (before, newest)
        };
        if before != newest {
            self.renew_warm();
        }
    }

    /// Builds a generation that is this process's to build, and writes down what came of it.
    async fn refresh(&self, refresh: &Refresh, taken: TakenGeneration) -> Result<(), LookError> {
        let id = taken.generation.id;
        let began = Instant::now();
        let built = tokio::select! {
            built = self.build(refresh, &taken) => built,
            () = self.hold_generation(id) => {
                tracing::warn!(generation = %id, "somebody else took over a generation that was being built here");
                Err(BuildError::Lost)
            }
        };
        if let Some(session) = taken.generation.session {
            self.try_to_clear_site(session).await;
        }
        let generations = &self.0.generations;
        let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        generations.took.store(took, Ordering::Relaxed);
        let result = match built {
            Ok(digest) => Ok(digest),
            Err(BuildError::Lost) => return Ok(()),
            Err(error) => Err(with_causes(&error)),
        };
        let store = &self.0.store;
        let ended = store.end_generation(Asker::System, id, &generations.holder, result.clone());
        if !ended.await? {
            tracing::warn!(generation = %id, "somebody else took over a generation that was built here; what came of it here does not count");
            return Ok(());
        }
        match result {
            Ok(digest) => {
                generations.done.fetch_add(1, Ordering::Relaxed);
                tracing::info!(image = refresh.image, generation = %id, %digest, milliseconds = took, "an image was refreshed");
            }
            Err(words) => {
                generations.failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(image = refresh.image, generation = %id, error = words, "an image was not refreshed; the one before stays");
            }
        }
        self.note_newest(&store.generations(&refresh.image).await?);
        Ok(())
    }

    /// Holds on to a generation until it is somebody else's.
    async fn hold_generation(&self, id: GenerationId) {
        let (lease, holder) = (self.0.config.lease, &self.0.generations.holder);
        loop {
            tokio::time::sleep(lease / 3).await;
            match self.0.store.renew_generation(Asker::System, id, holder, lease).await {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    let error = with_causes(&error);
                    tracing::error!(generation = %id, error, "could not renew the lease of a generation that is being built");
                }
            }
        }
    }
}

/// The newest that is an image.
fn newest_ready(rows: &[Generation]) -> Option<&Generation> {
    let ready = rows.iter().filter(|row| row.state == GenerationState::Ready);
    ready.max_by_key(|row| row.number)
}

fn newest_ended(rows: &[Generation]) -> Option<&Generation> {
    rows.iter()
        .filter(|row| row.ended.is_some())
        .max_by_key(|row| row.number)
}

/// Whether it was made by this recipe, on this base.
fn is_of(row: &Generation, recipe: &str, base: &ImageDigest) -> bool {
    row.made_of
        .as_ref()
        .is_some_and(|made_of| made_of.recipe == recipe && made_of.base == *base)
}

/// What the next one is made of: the newest one of this recipe and this base, or else the base.
fn made_of(base: &ImageDigest, refresh: &Refresh, rows: &[Generation]) -> Ingredients {
    let (recipe, base) = (refresh.knowledge.key(), base.clone());
    let parent = newest_ready(rows).filter(|row| is_of(row, &recipe, &base));
    let parent = parent.and_then(|row| row.digest.clone());
    Ingredients {
        parent: parent.unwrap_or_else(|| base.clone()),
        recipe,
        base,
    }
}

/// How long until the next one is due.
fn due_in(refresh: &Refresh, made_of: &Ingredients, rows: &[Generation], now: Timestamp) -> Duration {
    let mut ended: Vec<_> = rows
        .iter()
        .filter(|row| row.ended.is_some() && is_of(row, &made_of.recipe, &made_of.base))
        .collect();
    ended.sort_by_key(|row| std::cmp::Reverse(row.number));
    let failed = ended.iter().take_while(|row| row.state == GenerationState::Failed);
    let period = refresh.knowledge.refresh;
    let (since, rest) = match (failed.count(), ended.first()) {
        (_, None) => return Duration::ZERO,
        (0, Some(last)) => (last.begun, period),
        (failed, Some(last)) => {
            let doubled = u32::try_from(failed - 1).unwrap_or(u32::MAX).min(16);
            (last.ended, (REST * 2_u32.pow(doubled)).min(period))
        }
    };
    let Some(since) = since else { return Duration::ZERO };
    let millis = |millis: i64| Duration::from_millis(u64::try_from(millis).unwrap_or(0));
    if millis(since.0.saturating_sub(now.0)) > rest {
        // No two clocks differ so much: one was set back, and nobody waits until it is there again.
        return Duration::ZERO;
    }
    rest.saturating_sub(millis(now.0.saturating_sub(since.0)))
}

/// The last words of a program, with what was refused to it.
fn told(words: &str, refused: &[String]) -> String {
    let mut told = words.trim().to_owned();
    for refusal in refused {
        let _ = write!(told, "\nrefused meanwhile: {refusal}");
    }
    told
}

#[cfg(test)]
mod tests;
