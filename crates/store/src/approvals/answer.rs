//! What becomes of a question: answered by a person, done, too late, or nobody wants it any more.

use super::ask::entry;
use super::*;
use crate::audit;

/// The longest that a person may say beside an answer, in bytes.
const WORDS: usize = 2_000;

impl Store {
    /// A person answers. `seen` is the SHA-256 of the request that they were shown. Audited.
    ///
    /// # Errors
    /// There is no such question, for the one who asks; they may not answer it; it is over; `seen` is of another request; what
    /// was proposed can be approved for always only.
    pub async fn decide(
        &self,
        asker: Asker,
        id: ApprovalId,
        answer: ApprovalAnswer,
        words: Option<&str>,
        seen: Hash,
    ) -> Result<Decided, StoreError> {
        let words = words
            .map(str::trim)
            .filter(|words| !words.is_empty())
            .map(|words| words[..words.floor_char_boundary(WORDS)].to_owned());
        self.write("answer an approval", move |work| {
            let person = match asker {
                Asker::User { id, .. } => id,
                // Whoever may be talked into things by a model approves nothing.
                Asker::Session(_) | Asker::System => {
                    return Err(StoreError::Denied {
                        attempt: "answer an approval",
                        whom: "a person",
                    });
                }
            };
            let mut approval = find(work, id)?;
            if !asker.may_see(approval.session, approval.owner) {
                return Err(not_found(id));
            }
            if approval.admins_only {
                asker.must_be_admin("answer this approval")?;
            }
            check(work, &approval, answer, seen)?;
            let name = work.one("SELECT name FROM users WHERE id = $1", binds![person])?;
            approval.state = match answer {
                ApprovalAnswer::Once => ApprovalState::ApprovedOnce,
                ApprovalAnswer::Always => ApprovalState::ApprovedAlways,
                ApprovalAnswer::Deny => ApprovalState::Denied,
            };
            approval.decided_by = name.map(|row| row.text("name")).transpose()?;
            approval.words = words;
            approval.decided = Some(work.now);
            approval.write(work);
            let mut head = Head::read(work, approval.session)?;
            head.event(work, approval.told())?;
            audit::append(work, asker, vec![entry("approval.decided", &approval)])?;
            Ok(Decided {
                approval,
                events: head.finish(work)?,
            })
        })
        .await
    }

    /// What was approved once is begun now, if it was not before. True: go on, and nobody else may. Audited.
    ///
    /// # Errors
    /// There is no such question; the one who asks is not Belljar itself.
    pub async fn use_approval(&self, asker: Asker, id: ApprovalId) -> Result<bool, StoreError> {
        asker.must_be_system("use an approval")?;
        self.write("use an approval", move |work| {
            let mut approval = find(work, id)?;
            let alive = approval.expires > work.now && approval.used.is_none();
            if approval.state != ApprovalState::ApprovedOnce || !alive {
                return Ok(approval.state == ApprovalState::ApprovedAlways);
            }
            approval.used = Some(work.now);
            if approval.kind != ApprovalKind::Egress {
                approval.state = ApprovalState::Used;
            }
            approval.write(work);
            let session = Asker::Session(approval.session);
            audit::append(work, session, vec![entry("approval.used", &approval)])?;
            Ok(true)
        })
        .await
    }

    /// Takes note that the answers to these questions about calls of tools were handed on.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn handed_on(&self, asker: Asker, ids: Vec<ApprovalId>) -> Result<(), StoreError> {
        asker.must_be_system("hand on answers")?;
        self.write("hand on answers", move |work| {
            for id in ids {
                work.batch.add(
                    "UPDATE approvals SET used = $2 WHERE id = $1 AND used IS NULL",
                    binds![id, work.now],
                );
            }
            Ok(())
        })
        .await
    }

    /// Ends what nobody answered, or did, in time. Gives what watchers see of it, by session. Audited.
    ///
    /// # Errors
    /// The one who asks is not Belljar itself.
    pub async fn expire_approvals(&self, asker: Asker) -> Result<Vec<(SessionId, Vec<NumberedEvent>)>, StoreError> {
        /// Together in one job.
        const SOME: i64 = 256;
        asker.must_be_system("end approvals")?;
        self.write("end approvals", move |work| {
            let sql = statement!(
                "SELECT {APPROVAL} FROM approvals a WHERE a.state IN ('pending', 'approved_once') AND a.expires <= $1 \
                 ORDER BY a.session_id LIMIT $2"
            );
            let rows = work.all(sql, binds![work.now, SOME])?;
            let (mut told, mut entries) = (Vec::new(), Vec::new());
            let mut head: Option<Head> = None;
            for row in &rows {
                let mut approval = Approval::of(row)?;
                if let Some(done) = head.take_if(|head| head.session != approval.session) {
                    told.push((done.session, done.finish(work)?));
                }
                let mut current = match head.take() {
                    Some(head) => head,
                    None => Head::read(work, approval.session)?,
                };
                approval.close(work, &mut current, ApprovalState::Expired)?;
                entries.push(entry("approval.expired", &approval));
                head = Some(current);
            }
            if let Some(done) = head {
                told.push((done.session, done.finish(work)?));
            }
            if !entries.is_empty() {
                audit::append(work, asker, entries)?;
            }
            Ok(told)
        })
        .await
    }
}

/// Withdraws everything that a session asked for, and what was approved for it. Audited.
pub(crate) fn withdraw_all(work: &mut Work, head: &mut Head) -> Result<(), StoreError> {
    let sql = statement!(
        "SELECT {APPROVAL} FROM approvals a WHERE a.session_id = $1 \
         AND a.state IN ('pending', 'approved_once', 'approved_always')"
    );
    let rows = work.all(sql, binds![head.session])?;
    let mut entries = Vec::with_capacity(rows.len());
    for row in &rows {
        let mut approval = Approval::of(row)?;
        approval.close(work, head, ApprovalState::Withdrawn)?;
        entries.push(entry("approval.withdrawn", &approval));
    }
    if entries.is_empty() {
        return Ok(());
    }
    audit::append(work, Asker::System, entries)
}

fn check(work: &Work, approval: &Approval, answer: ApprovalAnswer, seen: Hash) -> Result<(), StoreError> {
    let conflict = |reason: String| {
        Err(StoreError::Conflict {
            subject: "answering the approval",
            reason,
        })
    };
    if approval.state != ApprovalState::Pending {
        let by = approval.decided_by.as_ref().map(|name| format!(", by {name}"));
        let state = approval.state.as_str();
        return conflict(format!("it is {state} already{}", by.unwrap_or_default()));
    }
    if approval.expires <= work.now {
        return conflict("it has expired".to_owned());
    }
    if approval.sha256 != seen {
        return conflict(
            "the hash is not of the request that waits: look at the request, and send back the hash that came with it"
                .to_owned(),
        );
    }
    if approval.proposal && answer == ApprovalAnswer::Once {
        return Err(StoreError::Invalid {
            subject: "the answer",
            reason: "it asks for access for the rest of the session: approve it for always, or deny it".to_owned(),
        });
    }
    Ok(())
}
