//! What Belljar remembers: users, sessions, histories, events, runs, turns, money, audit.
//!
//! One concrete [`Store`] on SQLite. Each public method is one acknowledged transaction at the level of the domain: when it
//! returns, what it did is on the disk, whole, together with the events and audit entries that tell of it. Each method is
//! told who asks ([`Asker`]) and decides by itself; whoever may not see a thing is told that it does not exist.
//!
//! A single thread owns the writing connection. It takes the jobs that have queued up, runs them in one transaction, commits
//! once for all of them and then answers (group commit); one that fails is left out. Readers have connections of their own
//! and never wait for it.
//!
//! ```text
//! open, migrations, writer, readers          how it works
//! connection, batch, row, chain              what it works with
//! users, tokens, session_tokens              who may come in
//! names                                      what people call users and sessions
//! sessions, prompts, runs, turns, closing    what the agent does
//! approvals                                  what people were asked, and said
//! service_writes                             what was changed outside, once
//! files                                      what workspaces hold, and the object store
//! addresses                                  which name each synthetic address stands for
//! generations                                what images were made, and which disks lie on them
//! history, events, compaction, skipped       what was said and what watchers see
//! snapshots                                  what is kept of files, and goes back with what was said
//! caps, money, ledger, audit                 what it cost, and who did what
//! backup, restore                            copies
//! installation                               which one this is
//! ```

mod addresses;
mod approvals;
mod asker;
mod audit;
mod backup;
mod batch;
mod caps;
mod chain;
mod checkpoints;
mod closing;
mod connection;
mod error;
mod events;
mod files;
mod generations;
mod head;
mod history;
mod installation;
mod ledger;
mod migrations;
mod money;
mod names;
mod narrowings;
mod open;
mod prompts;
mod readers;
mod restore;
mod results;
mod row;
mod runs;
mod service_writes;
mod session_tokens;
mod sessions;
mod skipped;
mod snapshots;
mod stored;
mod tokens;
mod turns;
mod users;
mod writer;

pub use approvals::{Approval, ApprovalFilter, Asked, Decided, NewApproval};
pub use asker::Asker;
pub use audit::{
    AuditBreak, AuditEntry, AuditFacts, AuditFilter, AuditFrom, AuditPage, AuditRecord, AuditVerdict, verify_audit_of,
};
pub use caps::{Cap, Caps, OverCap, Spend, TriggerCap};
pub use error::StoreError;
pub use events::{OpenMessage, Tail};
pub use files::{ContentState, FilePiece, FileStamp, KeptFile, RecordedFiles, Room, Workspace, WorkspaceFile};
pub use generations::{DiskOn, Generation, GenerationState, Ingredients, Proposal, TakenGeneration};
pub use history::{Compaction, Dialect, Entry, Hash, History, NewCompaction, ParseHashError, Positioned, Render};
pub use ledger::{By, LedgerEntry, Tokens, UsageFilter, UsageSum};
pub use money::{Charge, Reserved};
pub use names::Names;
pub use open::{Clock, Config, Store};
pub use prompts::{Accepted, Joined, Prompt, Target};
pub use restore::{Restored, restore};
pub use results::{EarlyResults, KeptResults};
pub use runs::{End, Ended, LastBegun, Lease, Run, TakenRun};
pub use service_writes::{NewWrite, NotMade, WRITES_TOLD, WriteEnd, WriteKey, WriteResult};
pub use session_tokens::{SessionToken, TokenState};
pub use sessions::{Cursor, Page, Session, SessionFilter};
pub use snapshots::{Fork, NewSnapshot, Snapshot, SnapshotKind};
pub use tokens::{Identity, NewToken, Token};
pub use turns::{BeginTurn, Begun, FinishTurn, Finished, LastTurn, TurnOutcome};
pub use users::User;
