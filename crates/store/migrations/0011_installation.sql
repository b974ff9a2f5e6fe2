-- Which installation this store is, in one row.
CREATE TABLE installation (
    only_one BIGINT PRIMARY KEY CHECK (only_one = 1),
    id TEXT NOT NULL
);
