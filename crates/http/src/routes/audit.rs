//! Who did what.

use axum::Json;
use axum::extract::State;
use domain::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{AuditBreak, AuditFilter, AuditFrom};
use utoipa::{IntoParams, ToSchema};

use crate::api::Doors;
use crate::authenticate::Caller;
use crate::body::Query;
use crate::error::ApiError;

/// Which entries are wanted.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct ListAudit {
    /// Those before this number; the newest where left out.
    before: Option<i64>,
    /// At most this many (50; never more than 200).
    limit: Option<u32>,
}

/// An entry of the audit log.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditRecord {
    /// Its place, from 1 without a gap.
    number: i64,
    /// When.
    at: Timestamp,
    /// Who: `system`, `user:…`, `session:…`.
    actor: String,
    /// What was done.
    action: String,
    /// To what.
    subject: String,
    /// More.
    detail: Value,
}

/// Entries, the newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditPage {
    /// The entries.
    entries: Vec<AuditRecord>,
}

/// Read the audit log. Admins only.
#[utoipa::path(get, path = "/audit", tag = "audit", params(ListAudit), responses((status = 200, description = "Entries, the newest first.", body = AuditPage)))]
pub(crate) async fn list_audit(
    State(doors): State<Doors>,
    caller: Caller,
    Query(query): Query<ListAudit>,
) -> Result<Json<AuditPage>, ApiError> {
    let limit = super::page_length(query.limit);
    let from = query.before.map_or(AuditFrom::Newest, AuditFrom::Before);
    let page = doors
        .control
        .audit(caller.asker(), AuditFilter::default(), from, limit)
        .await?;
    let entries = page.records.into_iter().map(|record| AuditRecord {
        number: record.number,
        at: record.at,
        actor: record.actor,
        action: record.entry.action,
        subject: record.entry.subject,
        detail: record.entry.detail,
    });
    Ok(Json(AuditPage {
        entries: entries.collect(),
    }))
}

/// Whether the audit log is whole.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditVerdict {
    /// How many entries there are.
    entries: i64,
    /// The first entry that does not follow from the one before; null: all is well.
    broken_at: Option<i64>,
}

/// Follow the audit log's chain of hashes from end to end. Admins only.
#[utoipa::path(get, path = "/audit/verify", tag = "audit", responses((status = 200, description = "What was found.", body = AuditVerdict)))]
pub(crate) async fn verify_audit(State(doors): State<Doors>, caller: Caller) -> Result<Json<AuditVerdict>, ApiError> {
    let verdict = doors.control.verify_audit(caller.asker(), None).await?;
    Ok(Json(AuditVerdict {
        entries: verdict.entries,
        broken_at: verdict.broken.map(AuditBreak::number),
    }))
}
