-- What is kept of sessions' disks, for people (`named`), after each run (`run`), or until forks have their files (`fork`). `position` is
-- the last message that belongs to the files, `skipped` and `compacted` what the session's were then; `kept` is 0 while it is being made.
CREATE TABLE snapshots (
    id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    kind TEXT NOT NULL,
    name TEXT,
    run_id TEXT,
    position BIGINT NOT NULL,
    skipped TEXT NOT NULL,
    compacted BIGINT NOT NULL,
    created BIGINT NOT NULL,
    bytes BIGINT,
    kept BIGINT NOT NULL
);
CREATE INDEX snapshots_by_session ON snapshots (session_id, id);
CREATE UNIQUE INDEX snapshots_by_name ON snapshots (session_id, name) WHERE name IS NOT NULL;

-- Which messages are told and shown no longer since the session was rewound; which session this one is a fork of; and the snapshot that
-- its disk is still to be made from.
ALTER TABLE sessions ADD COLUMN skipped TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN parent TEXT;
ALTER TABLE sessions ADD COLUMN owed TEXT;
CREATE INDEX sessions_owed ON sessions (owed) WHERE owed IS NOT NULL;
CREATE INDEX forks_of_owner ON sessions (owner) WHERE parent IS NOT NULL;
