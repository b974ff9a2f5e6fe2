-- Questions to people, and what came of them. `request` is canonical JSON, and `sha256` its hash: what is approved is exactly that.
-- `used` is when what was approved was begun, or a refusal was handed on.
CREATE TABLE approvals (
    id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    owner TEXT NOT NULL,
    run_id TEXT,
    call_id TEXT,
    kind TEXT NOT NULL,
    subject TEXT NOT NULL,
    proposal BIGINT NOT NULL,
    admins_only BIGINT NOT NULL,
    request TEXT NOT NULL,
    sha256 BLOB NOT NULL,
    layer TEXT NOT NULL,
    rule TEXT NOT NULL,
    why TEXT NOT NULL,
    state TEXT NOT NULL,
    decided_by TEXT,
    words TEXT,
    created BIGINT NOT NULL,
    decided BIGINT,
    used BIGINT,
    expires BIGINT NOT NULL
);
CREATE INDEX approvals_by_session ON approvals (session_id, created);
CREATE INDEX approvals_open ON approvals (state, expires) WHERE state IN ('pending', 'approved_once');

-- Milliseconds that a run waited for people, and since when it waits.
ALTER TABLE runs ADD COLUMN waited BIGINT NOT NULL DEFAULT 0;
ALTER TABLE runs ADD COLUMN waiting_since BIGINT;
