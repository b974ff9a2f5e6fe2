//! Generations of images: who builds one, what came of it, and which images the files of sessions lie on.
//!
//! A generation is a row from when it is wanted or begun. Whoever builds it holds a lease; a lease that ran out is taken over
//! with the row, so that nobody has to know that a builder died. One is built at a time.

use std::collections::BTreeSet;
use std::time::Duration;

use domain::{GenerationId, SessionId, SnapshotId, Timestamp};
use sandbox::ImageDigest;
use serde_json::json;

use crate::batch::{binds, statement};
use crate::row::Row;
use crate::writer::Work;
use crate::{Asker, AuditEntry, Lease, Store, StoreError, audit, stored};

/// Rows of an image that stay, beside those whose image is there.
const KEPT: i64 = 50;
/// The longest words of a failure, in bytes.
const LONGEST_WORDS: usize = 8 << 10;

/// Where a generation stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GenerationState {
    /// Somebody wants it, and nobody has begun.
    Wanted,
    /// It is being built.
    Building,
    /// It is an image.
    Ready,
    /// Nothing came of it.
    Failed,
    /// It was an image, and was removed when nobody used it any more.
    Gone,
}

impl GenerationState {
    const ALL: [Self; 5] = [Self::Wanted, Self::Building, Self::Ready, Self::Failed, Self::Gone];

    /// The word that stands in the store and in the API.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Wanted => "wanted",
            Self::Building => "building",
            Self::Ready => "ready",
            Self::Failed => "failed",
            Self::Gone => "gone",
        }
    }

    fn from_word(word: &str) -> Result<Self, StoreError> {
        let known = Self::ALL.into_iter().find(|state| state.as_str() == word);
        known.ok_or_else(|| stored::corrupt("generation", format!("there is no state {word:?}")))
    }
}

/// What a generation is made of.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ingredients {
    /// By what it is made: a text that changes with what a recipe says of it.
    pub recipe: String,
    /// The image that it began with.
    pub base: ImageDigest,
    /// The image that it is made from: the base, or an older generation of the same two.
    pub parent: ImageDigest,
}

/// One dated build of an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Generation {
    /// Which.
    pub id: GenerationId,
    /// Greater than that of every older one of the image, whatever the clocks said.
    pub number: i64,
    /// The image's name.
    pub image: String,
    /// Where it stands.
    pub state: GenerationState,
    /// When it was first wanted or begun.
    pub asked: Timestamp,
    /// What it is made of; none while it is only wanted.
    pub made_of: Option<Ingredients>,
    /// Whose disk its sandbox has: a session that is nobody's.
    pub session: Option<SessionId>,
    /// How often somebody began it.
    pub attempts: i64,
    /// Who builds it.
    pub lease: Option<Lease>,
    /// When it was begun, the last time.
    pub begun: Option<Timestamp>,
    /// When it was ready, or had failed.
    pub ended: Option<Timestamp>,
    /// The image.
    pub digest: Option<ImageDigest>,
    /// Why nothing came of it, in words.
    pub error: Option<String>,
}

/// What the one who asks would build.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Proposal {
    /// The image's name.
    pub image: String,
    /// What it would be made of.
    pub made_of: Ingredients,
    /// It is time for one, though nobody wants it.
    pub due: bool,
    /// The newest that had ended when that was found: where another has ended since, it is time no longer.
    pub seen: Option<GenerationId>,
}

/// A generation that the one who asked is to build.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TakenGeneration {
    /// Its row, with a lease and a session of its own.
    pub generation: Generation,
    /// The same row as a builder left it that ended before it was done.
    pub left: Option<Generation>,
}

const GENERATION: &str = "SELECT id, number, image, state, asked, recipe, base, parent, session_id, attempts, holder, lease_until, \
     begun, ended, digest, error FROM generations";

impl Generation {
    /// One that nobody has begun; its row is written with the job.
    fn wanted(work: &mut Work, image: String) -> Result<Self, StoreError> {
        let id = GenerationId::new();
        let newest = "SELECT MAX(number) AS newest FROM generations WHERE image = $1";
        let newest = work.one(newest, binds![image.as_str()])?;
        let newest = newest.map(|row| row.integer_or_none("newest")).transpose()?.flatten();
        let number = newest.unwrap_or(0) + 1;
        work.batch.add(
            "INSERT INTO generations (id, number, image, state, asked) VALUES ($1, $2, $3, 'wanted', $4)",
            binds![id, number, image.as_str(), work.now],
        );
        Ok(Self {
            id,
            number,
            image,
            state: GenerationState::Wanted,
            asked: work.now,
            made_of: None,
            session: None,
            attempts: 0,
            lease: None,
            begun: None,
            ended: None,
            digest: None,
            error: None,
        })
    }

    /// From a row with [`GENERATION`].
    fn of(row: &Row) -> Result<Self, StoreError> {
        let made_of = match (
            row.text_or_none("recipe")?,
            row.id_or_none("base")?,
            row.id_or_none("parent")?,
        ) {
            (Some(recipe), Some(base), Some(parent)) => Some(Ingredients { recipe, base, parent }),
            _ => None,
        };
        let lease = row.text_or_none("holder")?.zip(row.time_or_none("lease_until")?);
        Ok(Self {
            id: row.id("id")?,
            number: row.integer("number")?,
            image: row.text("image")?,
            state: GenerationState::from_word(row.str("state")?)?,
            asked: row.time("asked")?,
            made_of,
            session: row.id_or_none("session_id")?,
            attempts: row.integer("attempts")?,
            lease: lease.map(|(holder, until)| Lease { holder, until }),
            begun: row.time_or_none("begun")?,
            ended: row.time_or_none("ended")?,
            digest: row.id_or_none("digest")?,
            error: row.text_or_none("error")?,
        })
    }
}

/// Those of an image that have not ended, and the newest of those that have.
struct Standing {
    wanted: Option<Generation>,
    building: Option<Generation>,
    newest: Option<GenerationId>,
}

impl Standing {
    fn read(work: &mut Work, image: &str) -> Result<Self, StoreError> {
        let open = statement!("{GENERATION} WHERE image = $1 AND ended IS NULL");
        let mut standing = Self {
            wanted: None,
            building: None,
            newest: None,
        };
        for row in work.all(open, binds![image])? {
            let generation = Generation::of(&row)?;
            match generation.state {
                GenerationState::Wanted => standing.wanted = Some(generation),
                _ => standing.building = Some(generation),
            }
        }
        let newest = "SELECT id FROM generations WHERE image = $1 AND ended IS NOT NULL ORDER BY number DESC LIMIT 1";
        if let Some(row) = work.one(newest, binds![image])? {
            standing.newest = Some(row.id("id")?);
        }
        Ok(standing)
    }
}

impl Store {
    /// Writes down that somebody wants a generation now. One that is only wanted already is the same one; one that is being
    /// built is not, as it may have fetched before. Audited.
    ///
    /// # Errors
    /// The one who asks is no admin.
    pub async fn want_generation(&self, asker: Asker, image: &str) -> Result<Generation, StoreError> {
        const ATTEMPT: &str = "refresh an image";
        asker.must_be_admin(ATTEMPT)?;
        let image = image.to_owned();
        self.write(ATTEMPT, move |work| {
            if let Some(wanted) = Standing::read(work, &image)?.wanted {
                return Ok(wanted);
            }
            let wanted = Generation::wanted(work, image.clone())?;
            let detail = json!({ "generation": wanted.id });
            let entry = AuditEntry::new("image.refresh_wanted", format!("image:{image}"), detail);
            audit::append(work, asker, [entry])?;
            Ok(wanted)
        })
        .await
    }

    /// Takes what is to be built of an image: what a builder left whose lease has run out; else what somebody wants; else,
    /// where it is due, a new one. None: there is nothing to build, or somebody builds.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn take_generation(
        &self,
        asker: Asker,
        proposal: Proposal,
        holder: &str,
        lease: Duration,
    ) -> Result<Option<TakenGeneration>, StoreError> {
        asker.must_be_system("build an image")?;
        let holder = holder.to_owned();
        let Proposal {
            image,
            made_of,
            due,
            seen,
        } = proposal;
        self.write("begin to build an image", move |work| {
            let Standing {
                wanted,
                building,
                newest,
            } = Standing::read(work, &image)?;
            let (mut generation, left) = match (building, wanted) {
                (Some(building), _) => {
                    // One that ends later than anybody could have said was given before a clock was set back.
                    let latest = work.now.after(lease * 2);
                    let stands = |lease: &Lease| lease.until > work.now && lease.until <= latest;
                    if building.lease.as_ref().is_some_and(stands) {
                        return Ok(None);
                    }
                    (building.clone(), Some(building))
                }
                (None, Some(wanted)) => (wanted, None),
                (None, None) if due && newest == seen => (Generation::wanted(work, image)?, None),
                (None, None) => return Ok(None),
            };
            let (session, until) = (SessionId::new(), work.now.after(lease));
            generation.state = GenerationState::Building;
            generation.session = Some(session);
            generation.attempts += 1;
            generation.begun = Some(work.now);
            work.batch.add(
                "UPDATE generations SET state = 'building', recipe = $2, base = $3, parent = $4, session_id = $5, \
                 attempts = $6, holder = $7, lease_until = $8, begun = $9 WHERE id = $1",
                binds![
                    generation.id,
                    made_of.recipe.as_str(),
                    made_of.base.as_str(),
                    made_of.parent.as_str(),
                    session,
                    generation.attempts,
                    holder.as_str(),
                    until,
                    work.now
                ],
            );
            generation.made_of = Some(made_of);
            generation.lease = Some(Lease { holder, until });
            Ok(Some(TakenGeneration { generation, left }))
        })
        .await
    }

    /// Holds on to a generation that is being built. False: it is somebody else's, or has ended.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn renew_generation(
        &self,
        asker: Asker,
        id: GenerationId,
        holder: &str,
        lease: Duration,
    ) -> Result<bool, StoreError> {
        asker.must_be_system("build an image")?;
        let holder = holder.to_owned();
        self.write("go on building an image", move |work| {
            if held(work, id, &holder)?.is_none() {
                return Ok(false);
            }
            work.batch.add(
                "UPDATE generations SET lease_until = $2 WHERE id = $1",
                binds![id, work.now.after(lease)],
            );
            Ok(true)
        })
        .await
    }

    /// Writes down what came of a generation: an image, or why there is none. False: it is somebody else's, or has ended;
    /// nothing is written then. Audited.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn end_generation(
        &self,
        asker: Asker,
        id: GenerationId,
        holder: &str,
        result: Result<ImageDigest, String>,
    ) -> Result<bool, StoreError> {
        asker.must_be_system("build an image")?;
        let holder = holder.to_owned();
        self.write("end building an image", move |work| {
            let Some(generation) = held(work, id, &holder)? else {
                return Ok(false);
            };
            let (state, digest, error) = match result {
                Ok(digest) => ("ready", Some(digest), None),
                Err(words) => ("failed", None, Some(beginning_and_end(&words))),
            };
            work.batch.add(
                "UPDATE generations SET state = $2, digest = $3, error = $4, ended = $5, holder = NULL, \
                 lease_until = NULL, session_id = NULL WHERE id = $1",
                binds![
                    id,
                    state,
                    digest.as_ref().map(ImageDigest::as_str),
                    error.clone(),
                    work.now
                ],
            );
            // What failed, or is gone, is told of for a while only.
            work.batch.add(
                "DELETE FROM generations WHERE image = $1 AND state IN ('failed', 'gone') AND id NOT IN \
                 (SELECT id FROM generations WHERE image = $1 ORDER BY number DESC LIMIT $2)",
                binds![generation.image.as_str(), KEPT],
            );
            let detail = json!({ "generation": id, "image": digest, "session": generation.session, "error": error });
            let action = if digest.is_some() {
                "image.refreshed"
            } else {
                "image.refresh_failed"
            };
            let entry = AuditEntry::new(action, format!("image:{}", generation.image), detail);
            audit::append(work, asker, [entry])?;
            Ok(true)
        })
        .await
    }

    /// The generations of an image, the newest first, as far as they are told of.
    ///
    /// # Errors
    /// Reading failed.
    pub async fn generations(&self, image: &str) -> Result<Vec<Generation>, StoreError> {
        let sql = statement!("{GENERATION} WHERE image = $1 ORDER BY number DESC");
        let rows = self.read("list generations", sql, binds![image]).await?;
        rows.iter().map(Generation::of).collect()
    }

    /// Writes down that a generation's image is going to be removed. Audited.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn forget_generation(&self, asker: Asker, id: GenerationId) -> Result<(), StoreError> {
        asker.must_be_system("remove an image")?;
        self.write("remove a generation", move |work| {
            let sql = "SELECT image, digest FROM generations WHERE id = $1 AND state = 'ready'";
            let Some(row) = work.one(sql, binds![id])? else {
                return Ok(());
            };
            work.batch
                .add("UPDATE generations SET state = 'gone' WHERE id = $1", binds![id]);
            let detail = json!({ "generation": id, "image": row.text("digest")? });
            let entry = AuditEntry::new("image.removed", format!("image:{}", row.text("image")?), detail);
            audit::append(work, asker, [entry])
        })
        .await
    }

    /// The image that a session's disk began with; none where it has no disk, or it is not known.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn image_of(&self, asker: Asker, session: SessionId) -> Result<Option<ImageDigest>, StoreError> {
        const ATTEMPT: &str = "read a session's image";
        asker.must_be_system(ATTEMPT)?;
        let sql = "SELECT image FROM sessions WHERE id = $1";
        let row = self.read_one(ATTEMPT, sql, binds![session]).await?;
        Ok(row.map(|row| row.id_or_none("image")).transpose()?.flatten())
    }

    /// Writes down with which image a session's disk begins, unless that is written already.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn begin_image(&self, asker: Asker, session: SessionId, image: ImageDigest) -> Result<(), StoreError> {
        asker.must_be_system("give a session an image")?;
        self.write("give a session an image", move |work| {
            work.batch.add(
                "UPDATE sessions SET image = $2 WHERE id = $1 AND image IS NULL",
                binds![session, image.as_str()],
            );
            Ok(())
        })
        .await
    }

    /// Writes down with which image a session's disk begins, whatever is written.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn set_image(&self, asker: Asker, session: SessionId, image: ImageDigest) -> Result<(), StoreError> {
        asker.must_be_system("give a session an image")?;
        self.write("give a session an image", move |work| {
            work.batch.add(
                "UPDATE sessions SET image = $2 WHERE id = $1",
                binds![session, image.as_str()],
            );
            Ok(())
        })
        .await
    }

    /// The images that disks and snapshots lie on.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn images_in_use(&self, asker: Asker) -> Result<BTreeSet<ImageDigest>, StoreError> {
        const ATTEMPT: &str = "look for images in use";
        asker.must_be_system(ATTEMPT)?;
        let sql = "SELECT image FROM sessions WHERE image IS NOT NULL UNION \
                   SELECT image FROM snapshots WHERE image IS NOT NULL";
        let rows = self.read(ATTEMPT, sql, binds![]).await?;
        rows.iter().map(|row| row.id("image")).collect()
    }

    /// What lies on an image: disks of sessions, then snapshots, at most `limit`.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn disks_on(&self, asker: Asker, image: &ImageDigest, limit: u32) -> Result<Vec<DiskOn>, StoreError> {
        const ATTEMPT: &str = "look for what lies on an image";
        asker.must_be_system(ATTEMPT)?;
        let sql = "SELECT id AS session_id, NULL AS snapshot, NULL AS name, 0 AS place FROM sessions WHERE image = $1 UNION ALL \
                   SELECT session_id, id, name, 1 FROM snapshots WHERE image = $1 ORDER BY place, session_id LIMIT $2";
        let rows = self
            .read(ATTEMPT, sql, binds![image.as_str(), i64::from(limit)])
            .await?;
        let of = |row: &Row| {
            let (id, name) = (row.id_or_none::<SnapshotId>("snapshot")?, row.text_or_none("name")?);
            Ok(DiskOn {
                session: row.id("session_id")?,
                snapshot: id.map(|id| name.unwrap_or_else(|| id.to_string())),
            })
        };
        rows.iter().map(of).collect()
    }
}

/// A disk that lies on an image.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DiskOn {
    /// Whose it is.
    pub session: SessionId,
    /// The name of the snapshot that it is, or else its id; none: it is the session's own.
    pub snapshot: Option<String>,
}

/// A generation that this holder builds.
fn held(work: &mut Work, id: GenerationId, holder: &str) -> Result<Option<Generation>, StoreError> {
    let sql = statement!("{GENERATION} WHERE id = $1 AND state = 'building' AND holder = $2");
    let row = work.one(sql, binds![id, holder])?;
    row.as_ref().map(Generation::of).transpose()
}

/// Words that fit: what was tried stands first, what went wrong last.
fn beginning_and_end(words: &str) -> String {
    if words.len() <= LONGEST_WORDS {
        return words.to_owned();
    }
    let half = LONGEST_WORDS / 2;
    let (first, last) = (
        words.floor_char_boundary(half),
        words.ceil_char_boundary(words.len() - half),
    );
    format!("{}\n…\n{}", &words[..first], &words[last..])
}
