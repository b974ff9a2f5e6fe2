-- Which synthetic address stands for which name in a session: the number is that of the address.
CREATE TABLE addresses (
    session_id TEXT NOT NULL REFERENCES sessions (id),
    number BIGINT NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (session_id, number)
) WITHOUT ROWID;
CREATE UNIQUE INDEX addresses_by_name ON addresses (session_id, name);
