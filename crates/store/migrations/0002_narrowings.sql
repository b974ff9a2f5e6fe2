-- What sessions may not do, though their owners might: scopes (JSON) that came with requests, in their order.
CREATE TABLE narrowings (
    number INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    scope TEXT NOT NULL
);
CREATE INDEX narrowings_by_session ON narrowings (session_id, number);
