-- Calls of services that may change something: a row stands before the request leaves, and is settled after it. `sha256` is of
-- service, method and arguments; `run_id` is empty where no run was under way. `state` is begun, done, failed (nothing was done)
-- or unknown (it may have taken effect, and no answer tells); `result` what it gave, where that is short.
CREATE TABLE service_writes (
    number INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    key TEXT NOT NULL,
    sha256 BLOB NOT NULL,
    call_id TEXT,
    service TEXT NOT NULL,
    method TEXT NOT NULL,
    state TEXT NOT NULL,
    code TEXT,
    media_type TEXT,
    begun BIGINT NOT NULL,
    result BLOB
);
CREATE UNIQUE INDEX service_writes_by_key ON service_writes (session_id, run_id, key);
CREATE INDEX service_writes_of_session ON service_writes (session_id, number);
CREATE INDEX service_writes_by_age ON service_writes (begun);
CREATE INDEX service_writes_open ON service_writes (number) WHERE state = 'begun';
