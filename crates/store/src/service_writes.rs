//! Calls of services that may change something: each is written down, with its entry in the audit log, before its request leaves,
//! and settled after it. So none is unknown to the audit log, and none is made twice under one key.

use std::time::Duration;

use domain::{Event, NumberedEvent, RunId, SessionId, ToolCallId};

use crate::batch::binds;
use crate::head::Head;
use crate::row::Row;
use crate::writer::Work;
use crate::{Asker, AuditEntry, Hash, Store, StoreError, audit, chain, results, stored};

/// Writes of one session that are remembered; the older are forgotten.
const KEPT: i64 = 500;
/// How long they are.
const AGE: Duration = Duration::from_secs(7 * 24 * 3_600);
/// Old ones that are forgotten with each that begins.
const FORGOTTEN: i64 = 100;
/// The longest result that is kept for a repeat, in bytes.
const RESULT: usize = 32 << 10;
/// Writes of a call that are named to the model.
const NAMED: usize = 20;
/// What it is told where there are more.
const MORE: &str = ", and more.";

/// The longest that the model is told of a call's writes, in bytes.
pub const WRITES_TOLD: usize = 1_000;

/// Which write: a session's own key for it, in its run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteKey {
    /// Whose.
    pub session: SessionId,
    /// In which run; none where none is under way.
    pub run: Option<RunId>,
    /// The same for each repeat of the same call.
    pub key: String,
}

/// A write that is to begin.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewWrite {
    /// Which.
    pub key: WriteKey,
    /// The tool call that it is made in.
    pub call: Option<ToolCallId>,
    /// The service.
    pub service: String,
    /// The method.
    pub method: String,
    /// Service, method and arguments in one spelling: a repeat says the same. Only its hash is kept.
    pub request: String,
    /// A repeat does no harm: where nobody knows what came of it, it is made again.
    pub harmless: bool,
}

/// Why a write is not to be made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum NotMade {
    /// One of its key is under way.
    UnderWay,
    /// There was another of its key: of another service or method, or with other arguments.
    Other,
    /// One of its key was done.
    Done(WriteResult),
    /// Nobody knows what came of one of its key.
    Unknown {
        /// What it failed with; none: the process that made it ended.
        code: Option<String>,
    },
    /// The tool call that it names has its result already, or was never asked for.
    CallOver,
}

/// What a write gave.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteResult {
    /// The media type.
    pub media_type: String,
    /// The bytes; none where they were too many to be kept.
    pub bytes: Option<Vec<u8>>,
}

impl WriteResult {
    /// A result; its bytes are kept where they are few.
    #[must_use]
    pub fn new(media_type: String, bytes: Option<&[u8]>) -> Self {
        let bytes = bytes.filter(|bytes| bytes.len() <= RESULT).map(<[u8]>::to_vec);
        Self { media_type, bytes }
    }
}

/// What came of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum WriteEnd {
    /// It was done.
    Done(WriteResult),
    /// Nothing was done: the same key may try again.
    Failed {
        /// With what it failed.
        code: String,
    },
    /// It may have taken effect.
    Unknown {
        /// With what it failed.
        code: String,
    },
}

impl Store {
    /// What there was of a write's key, where that keeps it from being made.
    ///
    /// # Errors
    /// Reading failed; the one who asks is not Belljar itself.
    pub async fn earlier_write(&self, asker: Asker, write: &NewWrite) -> Result<Option<NotMade>, StoreError> {
        asker.must_be_system("look for a write")?;
        let row = self.read_one("look for a write", BY_KEY, write.key.binds()).await?;
        row.map_or(Ok(None), |row| write.after(&row))
    }

    /// Begins a write: from then on it is known, and in the audit log. None: make it now, and settle it whatever comes of it.
    ///
    /// # Errors
    /// Writing failed: nothing may leave. The one who asks is not Belljar itself.
    pub async fn begin_write(
        &self,
        asker: Asker,
        write: NewWrite,
        entry: AuditEntry,
    ) -> Result<Option<NotMade>, StoreError> {
        asker.must_be_system("begin a write")?;
        self.write("begin a write", move |work| begin(work, &write, entry))
            .await
    }

    /// Says what came of a write, in the audit log and to watchers too.
    ///
    /// # Errors
    /// Writing failed; the one who asks is not Belljar itself.
    pub async fn settle_write(
        &self,
        asker: Asker,
        key: WriteKey,
        end: WriteEnd,
        entry: AuditEntry,
        event: Event,
    ) -> Result<Vec<NumberedEvent>, StoreError> {
        asker.must_be_system("settle a write")?;
        self.write("settle a write", move |work| {
            settle(work, &key, end);
            audit::append(work, Asker::Session(key.session), [entry])?;
            let mut head = Head::read(work, key.session)?;
            head.event(work, event)?;
            head.finish(work)
        })
        .await
    }

    /// What a dead process had begun: nobody knows what came of it.
    pub(crate) async fn give_up_writes(&self) -> Result<(), StoreError> {
        self.write("give up the writes of a dead process", |work| {
            let sql = "UPDATE service_writes SET state = 'unknown' WHERE state = 'begun'";
            work.batch.add(sql, Vec::new());
            Ok(())
        })
        .await
    }
}

const BY_KEY: &str = "SELECT sha256, state, code, media_type, result FROM service_writes \
                      WHERE session_id = $1 AND run_id = $2 AND key = $3";

impl WriteKey {
    fn binds(&self) -> Vec<crate::batch::Bind> {
        binds![self.session, run_word(self.run), self.key.as_str()]
    }
}

fn run_word(run: Option<RunId>) -> String {
    run.map(|run| run.to_string()).unwrap_or_default()
}

impl NewWrite {
    fn sha256(&self) -> Hash {
        chain::digest(self.request.as_bytes())
    }

    /// What a row with this key says.
    fn after(&self, row: &Row) -> Result<Option<NotMade>, StoreError> {
        if row.hash("sha256")? != self.sha256() {
            return Ok(Some(NotMade::Other));
        }
        Ok(match row.str("state")? {
            "begun" => Some(NotMade::UnderWay),
            "done" => Some(NotMade::Done(WriteResult {
                media_type: row.text_or_none("media_type")?.unwrap_or_default(),
                bytes: row.bytes_or_none("result")?.map(<[u8]>::to_vec),
            })),
            "unknown" if !self.harmless => Some(NotMade::Unknown {
                code: row.text_or_none("code")?,
            }),
            "unknown" | "failed" => None,
            other => return Err(stored::corrupt("write", format!("there is no state {other:?}"))),
        })
    }
}

fn begin(work: &mut Work, write: &NewWrite, entry: AuditEntry) -> Result<Option<NotMade>, StoreError> {
    if let Some(row) = work.one(BY_KEY, write.key.binds())?
        && let Some(earlier) = write.after(&row)?
    {
        return Ok(Some(earlier));
    }
    if let Some(call) = &write.call
        && !results::is_awaited(work, write.key.session, call)?
    {
        return Ok(Some(NotMade::CallOver));
    }
    work.batch.add(
        "INSERT INTO service_writes (session_id, run_id, key, sha256, call_id, service, method, state, begun) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, 'begun', $8) ON CONFLICT (session_id, run_id, key) DO UPDATE SET \
         call_id = excluded.call_id, state = 'begun', begun = excluded.begun, code = NULL, media_type = NULL, result = NULL",
        binds![
            write.key.session,
            run_word(write.key.run),
            write.key.key.as_str(),
            write.sha256(),
            write.call.as_ref().map(|call| call.0.clone()),
            write.service.as_str(),
            write.method.as_str(),
            work.now
        ],
    );
    work.batch.add(
        "DELETE FROM service_writes WHERE session_id = $1 AND state <> 'begun' AND number <= \
         (SELECT number FROM service_writes WHERE session_id = $1 ORDER BY number DESC LIMIT 1 OFFSET $2)",
        binds![write.key.session, KEPT],
    );
    let age = i64::try_from(AGE.as_millis()).unwrap_or(i64::MAX);
    work.batch.add(
        "DELETE FROM service_writes WHERE number IN \
         (SELECT number FROM service_writes WHERE begun < $1 ORDER BY begun LIMIT $2)",
        binds![work.now.0 - age, FORGOTTEN],
    );
    audit::append(work, Asker::Session(write.key.session), [entry])?;
    Ok(None)
}

fn settle(work: &mut Work, key: &WriteKey, end: WriteEnd) {
    let (state, code, media_type, result) = match end {
        WriteEnd::Done(WriteResult { media_type, bytes }) => ("done", None, Some(media_type), bytes),
        WriteEnd::Failed { code } => ("failed", Some(code), None, None),
        WriteEnd::Unknown { code } => ("unknown", Some(code), None, None),
    };
    let mut binds = key.binds();
    binds.extend(binds![state, code, media_type, result]);
    work.batch.add(
        "UPDATE service_writes SET state = $4, code = $5, media_type = $6, result = $7 \
         WHERE session_id = $1 AND run_id = $2 AND key = $3",
        binds,
    );
}

/// What the model is told of the writes that a call began which failed or was cut off; nothing where there are none.
pub(crate) fn told(
    work: &Work,
    session: SessionId,
    run: RunId,
    call: &ToolCallId,
) -> Result<Option<String>, StoreError> {
    let sql = "SELECT service, method, state FROM service_writes \
               WHERE session_id = $1 AND run_id = $2 AND call_id = $3 AND state <> 'failed' ORDER BY number";
    let rows = work.all(sql, binds![session, run.to_string(), call.0.as_str()])?;
    if rows.is_empty() {
        return Ok(None);
    }
    let begun = match rows.len() {
        1 => "a call of a service".to_owned(),
        count => format!("{count} calls of services"),
    };
    let mut words = format!("It had begun {begun} that may change something: ");
    for (place, row) in rows.iter().enumerate() {
        let came = match row.str("state")? {
            "done" => "was done",
            _ => "nobody knows whether it took effect",
        };
        let one = format!("{}.{} ({came})", row.str("service")?, row.str("method")?);
        if place == NAMED || words.len() + one.len() + MORE.len() > WRITES_TOLD {
            words.push_str(MORE);
            return Ok(Some(words));
        }
        let between = if place == 0 { "" } else { ", " };
        words.extend([between, &one]);
    }
    Ok(Some(words + "."))
}
