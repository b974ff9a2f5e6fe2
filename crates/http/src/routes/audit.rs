//! Who did what.

use std::time::Duration;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;
use bytes::Bytes;
use control::ControlError;
use domain::{ExternalKey, Money, RunId, SessionId, Timestamp, UserId};
use futures::{StreamExt, stream};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{AuditBreak, AuditFilter, AuditFrom, Hash, Names};
use tokio::sync::watch;
use tokio::time::timeout;
use utoipa::{IntoParams, ToSchema};

use crate::api::Doors;
use crate::authenticate::{Caller, Shown, shut_out};
use crate::body::Query;
use crate::error::ApiError;
use crate::metrics::OpenStream;

/// How often a silent stream says that it is there.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Entries that are read from the store at a time.
const TOGETHER: u32 = 256;

/// Which entries are wanted: those that are all of what is named.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FindAudit {
    /// Of this user, and of their sessions.
    user: Option<UserId>,
    /// Of this session.
    session: Option<SessionId>,
    /// Of this run.
    run: Option<RunId>,
    /// With this action, such as `egress.denied`; `*` stands for anything.
    action: Option<String>,
    /// Decided so.
    #[param(inline)]
    decision: Option<Decided>,
    /// Calls of this service.
    service: Option<String>,
    /// What was to reach this host.
    host: Option<String>,
    /// From this moment on, in milliseconds since 1970.
    since: Option<Timestamp>,
    /// Before this moment.
    until: Option<Timestamp>,
    /// A page only: those before this number, the newest first; the newest of all where left out.
    before: Option<i64>,
    /// Those after this number, the oldest first.
    after: Option<i64>,
    /// A page only: at most this many (50; never more than 200).
    limit: Option<u32>,
    /// A stream only: whether to wait for more (false), or to end with what there is.
    follow: Option<bool>,
}

/// What was decided.
#[derive(Clone, Copy, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Decided {
    /// It may.
    Allow,
    /// A person is asked first.
    Ask,
    /// It may not.
    Deny,
}

impl FindAudit {
    fn filter(&self) -> AuditFilter {
        let decision = self.decision.map(|decision| match decision {
            Decided::Allow => "allow",
            Decided::Ask => "ask",
            Decided::Deny => "deny",
        });
        AuditFilter {
            user: self.user,
            session: self.session,
            run: self.run,
            action: self.action.clone(),
            decision: decision.map(str::to_owned),
            service: self.service.clone(),
            host: self.host.clone(),
            since: self.since,
            until: self.until,
        }
    }
}

/// An entry of the audit log. What does not apply is left out.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditRecord {
    /// Its place, from 1 without a gap.
    number: i64,
    /// When.
    at: Timestamp,
    /// Who: `system`, `user:…`, `session:…`.
    actor: String,
    /// What people call that user or session.
    #[serde(skip_serializing_if = "Option::is_none")]
    actor_name: Option<String>,
    /// What was done.
    action: String,
    /// To what.
    subject: String,
    /// What people call it, where it is a user or a session.
    #[serde(skip_serializing_if = "Option::is_none")]
    subject_name: Option<String>,
    /// The user who did it, or whose session did.
    #[serde(skip_serializing_if = "Option::is_none")]
    user: Option<UserId>,
    /// What people call them.
    #[serde(skip_serializing_if = "Option::is_none")]
    user_name: Option<String>,
    /// The session that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    session: Option<SessionId>,
    /// What its owner calls it.
    #[serde(skip_serializing_if = "Option::is_none")]
    session_key: Option<ExternalKey>,
    /// The run that it belongs to.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<RunId>,
    /// The service that was called.
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<String>,
    /// The host that was to be reached.
    #[serde(skip_serializing_if = "Option::is_none")]
    host: Option<String>,
    /// What was decided: `allow`, `ask` or `deny`.
    #[serde(skip_serializing_if = "Option::is_none")]
    decision: Option<String>,
    /// The layer that decided.
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<String>,
    /// The rule by which.
    #[serde(skip_serializing_if = "Option::is_none")]
    rule: Option<String>,
    /// Bytes that were carried, both ways.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<u64>,
    /// How long it took, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    micros: Option<u64>,
    /// What it cost.
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<Money>,
    /// More; never a secret.
    detail: Value,
    /// Its link of the chain: whoever notes it with its number can tell later whether the log up to here is what it was.
    hash: String,
}

/// A user or a session, where an actor or a subject is one.
enum Named {
    User(UserId),
    Session(SessionId),
}

impl Named {
    fn of(word: &str) -> Option<Self> {
        match word.split_once(':')? {
            ("user", id) => id.parse().ok().map(Self::User),
            ("session", id) => id.parse().ok().map(Self::Session),
            _ => None,
        }
    }
}

/// What people call the users and sessions of these entries.
async fn names_in(doors: &Doors, caller: &Caller, records: &[store::AuditRecord]) -> Result<Names, ControlError> {
    let (mut users, mut sessions) = (Vec::new(), Vec::new());
    for record in records {
        users.extend(record.entry.facts.user);
        sessions.extend(record.entry.facts.session);
        for named in [&record.actor, &record.entry.subject]
            .into_iter()
            .filter_map(|word| Named::of(word))
        {
            match named {
                Named::User(user) => users.push(user),
                Named::Session(session) => sessions.push(session),
            }
        }
    }
    doors.names(caller, users, sessions).await
}

impl AuditRecord {
    fn of(record: store::AuditRecord, names: &Names) -> Self {
        let called = |word: &str| match Named::of(word)? {
            Named::User(user) => names.user(user),
            Named::Session(session) => names.session(session).map(String::from),
        };
        let store::AuditEntry {
            action,
            subject,
            facts,
            detail,
        } = record.entry;
        Self {
            number: record.number,
            at: record.at,
            actor_name: called(&record.actor),
            actor: record.actor,
            action,
            subject_name: called(&subject),
            subject,
            user: facts.user,
            user_name: facts.user.and_then(|user| names.user(user)),
            session: facts.session,
            session_key: facts.session.and_then(|session| names.session(session)),
            run: facts.run,
            service: facts.service,
            host: facts.host,
            decision: facts.decision,
            layer: facts.layer,
            rule: facts.rule,
            bytes: facts.bytes,
            micros: facts.micros,
            cost: facts.cost,
            detail,
            hash: record.hash.to_string(),
        }
    }
}

/// Entries in the order that was asked for.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditPage {
    /// The entries.
    entries: Vec<AuditRecord>,
    /// There is nothing more in this direction.
    last: bool,
}

/// Read the audit log, the newest first; the oldest first where `after` is given. Admins only.
#[utoipa::path(get, path = "/audit", tag = "audit", params(FindAudit), responses((status = 200, description = "A page of entries.", body = AuditPage)))]
pub(crate) async fn list_audit(
    State(doors): State<Doors>,
    caller: Caller,
    Query(query): Query<FindAudit>,
) -> Result<Json<AuditPage>, ApiError> {
    let from = match (query.before, query.after) {
        (None, None) => AuditFrom::Newest,
        (Some(before), None) => AuditFrom::Before(before),
        (None, Some(after)) => AuditFrom::After(after),
        (Some(_), Some(_)) => {
            return Err(ApiError::invalid(
                "a page goes on before a number, or after one: leave one out",
            ));
        }
    };
    if query.follow.is_some() {
        return Err(ApiError::invalid("a page cannot follow: GET /api/v1/audit/stream does"));
    }
    let limit = super::page_length(query.limit);
    let page = doors.control.audit(caller.asker(), query.filter(), from, limit).await?;
    let names = names_in(&doors, &caller, &page.records).await?;
    let entries = page.records.into_iter().map(|record| AuditRecord::of(record, &names));
    Ok(Json(AuditPage {
        entries: entries.collect(),
        last: page.is_last,
    }))
}

/// Every entry that is wanted, the oldest first, one JSON object a line, however many there are. With `follow` also what comes later, as soon
/// as it is written; an empty line says from time to time that the stream is there. Whoever returns with the last number as `after` gets the
/// rest, nothing lost and nothing doubled. Admins only.
#[utoipa::path(get, path = "/audit/stream", tag = "audit", params(FindAudit),
    responses((status = 200, description = "JSON lines.", body = AuditRecord, content_type = "application/x-ndjson")))]
pub(crate) async fn stream_audit(
    State(doors): State<Doors>,
    caller: Caller,
    shown: Shown,
    Query(query): Query<FindAudit>,
) -> Result<impl IntoResponse, ApiError> {
    if query.before.is_some() || query.limit.is_some() {
        return Err(ApiError::invalid(
            "a stream has neither before nor limit: GET /api/v1/audit gives pages",
        ));
    }
    let follow = query.follow.unwrap_or(false);
    let mut lines = Lines {
        doors: doors.clone(),
        caller: caller.clone(),
        filter: query.filter(),
        after: query.after.unwrap_or(0),
        newest: follow.then(|| doors.control.watch_audit(caller.asker())).transpose()?,
        _open: doors.metrics.open_stream(),
    };
    // The first page before the answer: whoever may not read is told so.
    let first = lines.page().await?;
    let lines = stream::try_unfold((first, lines), async |(ready, mut lines): (Option<Bytes>, Lines)| {
        let piece = match ready {
            Some(piece) => Some(piece),
            None => lines.next().await?,
        };
        Ok::<_, ControlError>(piece.map(|piece| (piece, (None, lines))))
    });
    let body = if follow {
        let stop = doors.stop.clone().cancelled_owned();
        Body::from_stream(
            lines
                .take_until(stop)
                .take_until(Box::pin(shut_out(doors, caller, shown))),
        )
    } else {
        Body::from_stream(lines)
    };
    Ok((
        [
            (CONTENT_TYPE.as_str(), "application/x-ndjson"),
            ("x-accel-buffering", "no"),
        ],
        body,
    ))
}

/// The entries that a filter wants, as lines, in memory a page at a time.
struct Lines {
    doors: Doors,
    caller: Caller,
    filter: AuditFilter,
    after: i64,
    /// Told of new entries, where they are wanted too.
    newest: Option<watch::Receiver<i64>>,
    _open: OpenStream,
}

impl Lines {
    /// Those that there are; none where all were given.
    async fn page(&mut self) -> Result<Option<Bytes>, ControlError> {
        loop {
            let from = AuditFrom::After(self.after);
            let (control, asker) = (&self.doors.control, self.caller.asker());
            let page = control.audit(asker, self.filter.clone(), from, TOGETHER).await?;
            self.after = page.reached;
            if !page.records.is_empty() {
                let names = names_in(&self.doors, &self.caller, &page.records).await?;
                let mut lines = Vec::new();
                for record in page.records {
                    serde_json::to_writer(&mut lines, &AuditRecord::of(record, &names)).map_err(|error| {
                        ControlError::Internal {
                            attempt: "write an audit entry as JSON",
                            source: error.into(),
                        }
                    })?;
                    lines.push(b'\n');
                }
                return Ok(Some(lines.into()));
            }
            if page.is_last {
                return Ok(None);
            }
        }
    }

    /// The next lines, waited for where that is wanted; none at the end.
    async fn next(&mut self) -> Result<Option<Bytes>, ControlError> {
        loop {
            if let Some(lines) = self.page().await? {
                return Ok(Some(lines));
            }
            let after = self.after;
            let Some(newest) = &mut self.newest else {
                return Ok(None);
            };
            let written = timeout(KEEP_ALIVE, newest.wait_for(|number| *number > after)).await;
            match written.map(|told| told.is_ok()) {
                Ok(true) => {}
                Ok(false) => return Ok(None),
                Err(_) => return Ok(Some(Bytes::from_static(b"\n"))),
            }
        }
    }
}

/// An entry that was noted elsewhere.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct NotedAudit {
    /// The number of an entry that was noted.
    number: Option<i64>,
    /// Its hash, in hexadecimal digits.
    hash: Option<String>,
}

/// Whether the audit log is what was written.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditVerdict {
    /// The number of the last entry.
    entries: i64,
    /// Its hash. Note both where nobody who can write to the store can change them.
    head: String,
    /// The first entry that is not what was written; null: all is well.
    broken_at: Option<i64>,
    /// What is wrong there, in words.
    broken: Option<String>,
}

/// Follow the audit log's chain of hashes from end to end, and hold it against an entry that was noted. Admins only.
#[utoipa::path(get, path = "/audit/verify", tag = "audit", params(NotedAudit), responses((status = 200, description = "What was found.", body = AuditVerdict)))]
pub(crate) async fn verify_audit(
    State(doors): State<Doors>,
    caller: Caller,
    Query(query): Query<NotedAudit>,
) -> Result<Json<AuditVerdict>, ApiError> {
    let noted = match (query.number, query.hash) {
        (None, None) => None,
        (Some(number), Some(hash)) => {
            let hash = hash.parse::<Hash>();
            Some((number, hash.map_err(|error| ApiError::invalid(error.to_string()))?))
        }
        _ => return Err(ApiError::invalid("what was noted is a number and a hash: give both")),
    };
    let verdict = doors.control.verify_audit(caller.asker(), noted).await?;
    Ok(Json(AuditVerdict {
        entries: verdict.entries,
        head: verdict.head.to_string(),
        broken_at: verdict.broken.map(AuditBreak::number),
        broken: verdict.broken.map(|broken| broken.to_string()),
    }))
}
