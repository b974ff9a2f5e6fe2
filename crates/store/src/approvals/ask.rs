//! Asking a person: once for the same thing, and not too often.

use std::time::Duration;

use serde_json::json;

use super::*;
use crate::chain;
use crate::{AuditEntry, audit};

/// Questions of one session that may wait for an answer.
const PENDING: i64 = 20;
/// Questions that one session may ask in an [`HOUR`]; and proposals among them.
const OFTEN: i64 = 100;
const PROPOSALS: i64 = 10;
const HOUR: Duration = Duration::from_secs(3_600);

impl Store {
    /// Asks a person. What was asked before and is still open, or was denied in the same run, is not asked again. Audited.
    ///
    /// # Errors
    /// Too many questions of the session wait, or were asked lately; there is no such session; the one who asks is not Belljar itself.
    pub async fn ask(&self, asker: Asker, wanted: NewApproval) -> Result<Asked, StoreError> {
        asker.must_be_system("ask a person")?;
        self.write("ask a person", move |work| ask(work, wanted)).await
    }
}

fn ask(work: &mut Work, wanted: NewApproval) -> Result<Asked, StoreError> {
    let sha256 = chain::digest(wanted.request.as_bytes());
    if let Some(approval) = before(work, &wanted, sha256)? {
        let events = Vec::new();
        return Ok(Asked { approval, events });
    }
    check_often(work, &wanted)?;
    let mut head = Head::read(work, wanted.session)?;
    let approval = Approval {
        id: ApprovalId::new(),
        session: wanted.session,
        owner: head.owner,
        run: wanted.run,
        call: wanted.call,
        kind: wanted.kind,
        subject: wanted.subject,
        proposal: wanted.proposal,
        admins_only: wanted.admins_only,
        request: wanted.request,
        sha256,
        layer: wanted.layer,
        rule: wanted.rule,
        why: wanted.why,
        state: ApprovalState::Pending,
        decided_by: None,
        words: None,
        created: work.now,
        decided: None,
        used: None,
        expires: work.now.after(wanted.life),
    };
    insert(work, &approval);
    let request = serde_json::from_str(&approval.request).map_err(|error| StoreError::Invalid {
        subject: "what a person is asked",
        reason: error.to_string(),
    })?;
    head.event(
        work,
        Event::ApprovalRequested {
            approval: approval.id,
            run: approval.run,
            kind: approval.kind,
            subject: approval.subject.clone(),
            proposal: approval.proposal,
            admins_only: approval.admins_only,
            request,
            sha256: hex::encode(approval.sha256.0),
            reason: approval.why.clone(),
            expires: approval.expires,
        },
    )?;
    audit::append(
        work,
        Asker::Session(approval.session),
        vec![entry("approval.asked", &approval)],
    )?;
    Ok(Asked {
        approval,
        events: head.finish(work)?,
    })
}

/// The same question, where it was asked before and need not be asked again.
fn before(work: &Work, wanted: &NewApproval, sha256: Hash) -> Result<Option<Approval>, StoreError> {
    let sql = statement!(
        "SELECT {APPROVAL} FROM approvals a WHERE a.session_id = $1 AND a.kind = $2 AND a.subject = $3 \
         AND a.proposal = $4 AND a.state IN ('pending', 'approved_once', 'denied') AND a.expires > $5 ORDER BY a.id DESC"
    );
    let rows = work.all(
        sql,
        binds![
            wanted.session,
            wanted.kind.as_str(),
            wanted.subject.as_str(),
            wanted.proposal,
            work.now
        ],
    )?;
    for row in &rows {
        let approval = Approval::of(row)?;
        let same_run = approval.run == wanted.run;
        let counts = match approval.state {
            // Who proposes the same in other words, proposes the same.
            _ if wanted.proposal => {
                approval.state == ApprovalState::Pending || approval.created.after(HOUR).0 > work.now.0
            }
            _ if approval.sha256 != sha256 => false,
            ApprovalState::Denied => same_run,
            _ => same_run || wanted.kind == ApprovalKind::Egress,
        };
        if counts {
            return Ok(Some(approval));
        }
    }
    Ok(None)
}

fn check_often(work: &Work, wanted: &NewApproval) -> Result<(), StoreError> {
    let sql = "SELECT (SELECT COUNT(*) FROM approvals WHERE session_id = $1 AND state = 'pending') AS pending, \
               COUNT(*) AS lately, COALESCE(SUM(proposal), 0) AS proposals FROM approvals WHERE session_id = $1 AND created > $2";
    let hour = i64::try_from(HOUR.as_millis()).unwrap_or(i64::MAX);
    let Some(row) = work.one(sql, binds![wanted.session, work.now.0 - hour])? else {
        return Ok(());
    };
    let refused = |reason: String| {
        Err(StoreError::Conflict {
            subject: "asking a person",
            reason,
        })
    };
    if row.integer("pending")? >= PENDING {
        return refused(format!(
            "{PENDING} questions of this session wait for an answer already"
        ));
    }
    if row.integer("lately")? >= OFTEN {
        return refused(format!("this session has asked {OFTEN} times within an hour"));
    }
    if wanted.proposal && row.integer("proposals")? >= PROPOSALS {
        return refused(format!(
            "this session has asked for access {PROPOSALS} times within an hour"
        ));
    }
    Ok(())
}

fn insert(work: &mut Work, approval: &Approval) {
    work.batch.add(
        "INSERT INTO approvals (id, session_id, owner, run_id, call_id, kind, subject, proposal, admins_only, request, \
         sha256, layer, rule, why, state, created, expires) \
         VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17)",
        binds![
            approval.id,
            approval.session,
            approval.owner,
            approval.run,
            approval.call.as_ref().map(|call| call.0.clone()),
            approval.kind.as_str(),
            approval.subject.as_str(),
            approval.proposal,
            approval.admins_only,
            approval.request.as_str(),
            approval.sha256,
            approval.layer.as_str(),
            approval.rule.as_str(),
            approval.why.as_str(),
            approval.state.as_str(),
            approval.created,
            approval.expires
        ],
    );
}

/// An audit entry: which question, never what was handed in.
pub(super) fn entry(action: &str, approval: &Approval) -> AuditEntry {
    let detail = json!({
        "approval": approval.id,
        "owner": approval.owner,
        "call": approval.call,
        "kind": approval.kind,
        "subject": approval.subject,
        "proposal": approval.proposal,
        "sha256": hex::encode(approval.sha256.0),
        "state": approval.state,
        "by": approval.decided_by,
        "reason": approval.words,
    });
    let decision = match approval.state {
        ApprovalState::Pending => "ask",
        ApprovalState::ApprovedOnce | ApprovalState::ApprovedAlways | ApprovalState::Used => "allow",
        ApprovalState::Denied | ApprovalState::Expired | ApprovalState::Withdrawn => "deny",
    };
    AuditEntry::about(action, approval.session, detail)
        .of(approval.session, approval.run)
        .decided(decision, &approval.layer, &approval.rule)
}
