-- Files of workspaces as they are kept in the object store. `version` grows with each record; `full` says that its owner was
-- told that there is no more room; `weight` is about what its rows take in this file, and `contents` how many it has; `archived` is when its disk was removed, and null while it has one.
CREATE TABLE workspaces (
    session_id TEXT PRIMARY KEY REFERENCES sessions (id),
    version BIGINT NOT NULL,
    bytes BIGINT NOT NULL,
    full_told BIGINT NOT NULL,
    weight BIGINT NOT NULL DEFAULT 0,
    contents BIGINT NOT NULL DEFAULT 0,
    archived BIGINT
);

-- `disk` is the disk that recorded the file last, `stamp` what its runtime knows the file's state by.
CREATE TABLE files (
    session_id TEXT NOT NULL REFERENCES workspaces (session_id),
    path BLOB NOT NULL,
    kind TEXT NOT NULL,
    bytes BIGINT NOT NULL,
    target BLOB,
    mode BIGINT NOT NULL,
    changed BIGINT NOT NULL,
    stamp BIGINT NOT NULL,
    disk TEXT NOT NULL,
    version BIGINT NOT NULL,
    weight BIGINT NOT NULL,
    PRIMARY KEY (session_id, path)
);
CREATE INDEX files_by_version ON files (session_id, version);

-- What stands in files, where it is not zero.
CREATE TABLE pieces (
    session_id TEXT NOT NULL,
    path BLOB NOT NULL,
    place BIGINT NOT NULL,
    sha256 BLOB NOT NULL,
    bytes BIGINT NOT NULL,
    PRIMARY KEY (session_id, path, place)
);
CREATE INDEX pieces_by_content ON pieces (session_id, sha256);

-- What the object store has. `unused` is since when perhaps no file has it; `going` is 1 while it is being removed, and 2
-- while it was asked for and has not come.
CREATE TABLE contents (
    session_id TEXT NOT NULL REFERENCES workspaces (session_id),
    sha256 BLOB NOT NULL,
    bytes BIGINT NOT NULL,
    unused BIGINT,
    going BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (session_id, sha256)
);
CREATE INDEX contents_unused ON contents (unused) WHERE unused IS NOT NULL;
