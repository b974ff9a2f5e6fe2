-- Results of the session's open calls that came before the turn that brings the others. They stand in the history, all in one
-- message, when that turn begins or their run ends, and here no longer.
CREATE TABLE results (
    session_id TEXT NOT NULL REFERENCES sessions (id),
    call TEXT NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (session_id, call)
) WITHOUT ROWID;
