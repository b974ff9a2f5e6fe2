//! What people are asked, and their answers.

use axum::Json;
use axum::extract::State;
use domain::{
    ApprovalAnswer, ApprovalId, ApprovalKind, ApprovalState, ExternalKey, RunId, SessionId, Timestamp, ToolCallId,
    UserId,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use store::{Approval as Stored, ApprovalFilter, Names};
use utoipa::{IntoParams, ToSchema};

use super::page_length;
use crate::api::Doors;
use crate::authenticate::Caller;
use crate::body::{Id, JsonBody, Query};
use crate::error::ApiError;

/// A question to a person, and what came of it.
#[derive(Serialize, ToSchema)]
pub(crate) struct Approval {
    /// Which.
    id: ApprovalId,
    /// The session that asks.
    session: SessionId,
    /// What its owner calls it.
    session_key: Option<ExternalKey>,
    /// Whose session that is.
    owner: UserId,
    /// What people call its owner.
    owner_name: Option<String>,
    /// The run that asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<RunId>,
    /// The tool call that it is about, or was made in.
    #[serde(skip_serializing_if = "Option::is_none")]
    call: Option<ToolCallId>,
    /// What it is about.
    kind: ApprovalKind,
    /// What an answer for always stands for: `crm.deleteContact`, `exec`, `api.example.com:443`.
    subject: String,
    /// The agent asks for what its scope does not have.
    proposal: bool,
    /// Only admins may answer.
    admins_only: bool,
    /// All that is asked for.
    request: Value,
    /// The SHA-256 of the request, in hex: whoever answers sends it back.
    sha256: String,
    /// The layer of the policy that wants a person to be asked.
    layer: String,
    /// The rule in it.
    rule: String,
    /// Why a person is asked.
    reason: String,
    /// Where it stands.
    state: ApprovalState,
    /// Who answered, by name.
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    /// What they said beside it.
    #[serde(skip_serializing_if = "Option::is_none")]
    words: Option<String>,
    /// When it was asked.
    created: Timestamp,
    /// When it was answered, expired or was withdrawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    decided: Option<Timestamp>,
    /// When what was approved was begun.
    #[serde(skip_serializing_if = "Option::is_none")]
    used: Option<Timestamp>,
    /// When it is too late.
    expires: Timestamp,
}

impl Approval {
    fn of(stored: Stored, names: &Names) -> Self {
        Self {
            id: stored.id,
            session: stored.session,
            session_key: names.session(stored.session),
            owner: stored.owner,
            owner_name: names.user(stored.owner),
            run: stored.run,
            call: stored.call,
            kind: stored.kind,
            subject: stored.subject,
            proposal: stored.proposal,
            admins_only: stored.admins_only,
            request: serde_json::from_str(&stored.request).unwrap_or(Value::Null),
            sha256: format!("{:?}", stored.sha256),
            layer: stored.layer,
            rule: stored.rule,
            reason: stored.why,
            state: stored.state,
            by: stored.decided_by,
            words: stored.words,
            created: stored.created,
            decided: stored.decided,
            used: stored.used,
            expires: stored.expires,
        }
    }
}

async fn told_one(doors: &Doors, caller: &Caller, stored: Stored) -> Result<Json<Approval>, ApiError> {
    let names = doors.names(caller, vec![stored.owner], vec![stored.session]).await?;
    Ok(Json(Approval::of(stored, &names)))
}

/// Approvals, the newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct Approvals {
    /// The newest first.
    approvals: Vec<Approval>,
}

/// Which approvals are wanted.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct FindApprovals {
    /// Of this session.
    session: Option<SessionId>,
    /// In this state; `pending` where left out.
    state: Option<ApprovalState>,
    /// At most this many (50; never more than 200).
    limit: Option<u32>,
}

/// List approvals: those of your sessions, or of all for an admin.
#[utoipa::path(get, path = "/approvals", tag = "approvals", params(FindApprovals), responses((status = 200, description = "The newest first.", body = Approvals)))]
pub(crate) async fn list_approvals(
    State(doors): State<Doors>,
    caller: Caller,
    Query(query): Query<FindApprovals>,
) -> Result<Json<Approvals>, ApiError> {
    let filter = ApprovalFilter {
        session: query.session,
        state: Some(query.state.unwrap_or(ApprovalState::Pending)),
    };
    let limit = page_length(query.limit);
    let approvals = doors.control.approvals(caller.asker(), filter, limit).await?;
    let owners = approvals.iter().map(|approval| approval.owner).collect();
    let sessions = approvals.iter().map(|approval| approval.session).collect();
    let names = doors.names(&caller, owners, sessions).await?;
    let approvals = approvals.into_iter().map(|approval| Approval::of(approval, &names));
    Ok(Json(Approvals {
        approvals: approvals.collect(),
    }))
}

/// Show one approval.
#[utoipa::path(get, path = "/approvals/{approval}", tag = "approvals", params(("approval" = ApprovalId, Path)), responses((status = 200, description = "The approval.", body = Approval)))]
pub(crate) async fn get_approval(
    State(doors): State<Doors>,
    caller: Caller,
    Id(approval): Id<ApprovalId>,
) -> Result<Json<Approval>, ApiError> {
    let approval = doors.control.approval(caller.asker(), approval).await?;
    told_one(&doors, &caller, approval).await
}

/// A person's answer.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Answer {
    /// Yes this time, yes for the rest of the session, or no.
    decision: ApprovalAnswer,
    /// Why; the agent is told where it is a no.
    reason: Option<String>,
    /// The request's SHA-256 as it was shown: what is approved is what was seen.
    request_sha256: String,
}

/// Answer an approval that is pending. The session's owner may, or only an admin where it says so; a session never can.
#[utoipa::path(post, path = "/approvals/{approval}", tag = "approvals", request_body = Answer, params(("approval" = ApprovalId, Path)), responses((status = 200, description = "It is answered.", body = Approval)))]
pub(crate) async fn decide_approval(
    State(doors): State<Doors>,
    caller: Caller,
    Id(approval): Id<ApprovalId>,
    JsonBody(answer): JsonBody<Answer>,
) -> Result<Json<Approval>, ApiError> {
    let words = answer.reason.as_deref();
    let decided = doors
        .control
        .decide(caller.asker(), approval, answer.decision, words, &answer.request_sha256);
    told_one(&doors, &caller, decided.await?).await
}
