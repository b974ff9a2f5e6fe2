CREATE TABLE users (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    admin BIGINT NOT NULL,
    created BIGINT NOT NULL,
    removed BIGINT
);
CREATE UNIQUE INDEX users_by_name ON users (name) WHERE removed IS NULL;

CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    user_id TEXT NOT NULL REFERENCES users (id),
    label TEXT NOT NULL,
    hash BLOB NOT NULL UNIQUE,
    created BIGINT NOT NULL,
    expires BIGINT,
    revoked BIGINT
);
CREATE INDEX tokens_by_user ON tokens (user_id);

-- `hash` is the head of the history's chain; `open_calls` the tool calls of the last message that have no result (JSON). `open_turn`
-- and what follows tell of the message that a model is writing, as far as it came.
CREATE TABLE sessions (
    id TEXT PRIMARY KEY,
    owner TEXT NOT NULL REFERENCES users (id),
    name TEXT,
    door TEXT NOT NULL,
    title TEXT NOT NULL,
    created BIGINT NOT NULL,
    active BIGINT NOT NULL,
    archived BIGINT,
    epoch BIGINT NOT NULL,
    messages BIGINT NOT NULL,
    events BIGINT NOT NULL,
    hash BLOB NOT NULL,
    open_calls TEXT NOT NULL,
    compacted BIGINT NOT NULL,
    run_id TEXT,
    spent BIGINT NOT NULL,
    reserved BIGINT NOT NULL,
    sandbox TEXT,
    sandbox_state TEXT,
    open_turn TEXT,
    open_run TEXT,
    open_message TEXT,
    open_model TEXT,
    said TEXT NOT NULL DEFAULT '',
    thought TEXT NOT NULL DEFAULT ''
);
CREATE UNIQUE INDEX sessions_by_name ON sessions (name, owner) WHERE name IS NOT NULL;
CREATE INDEX sessions_of_owner ON sessions (owner, active, id) WHERE archived IS NULL;
CREATE INDEX sessions_of_all ON sessions (active, id) WHERE archived IS NULL;
CREATE INDEX archived_of_owner ON sessions (owner, active, id) WHERE archived IS NOT NULL;
CREATE INDEX archived_of_all ON sessions (active, id) WHERE archived IS NOT NULL;

-- The chain runs over digests, so that either form of a message can be verified without reading the other.
-- What is long stands last, and first what is read most: pages that only hold what follows it are not read. Messages and events
-- stand in the order in which they came: those of many sessions share the pages that a commit writes.
CREATE TABLE messages (
    session_id TEXT NOT NULL REFERENCES sessions (id),
    position BIGINT NOT NULL,
    id TEXT NOT NULL,
    role TEXT NOT NULL,
    dialect TEXT NOT NULL,
    body_digest BLOB NOT NULL,
    ready_digest BLOB NOT NULL,
    hash BLOB NOT NULL,
    ready BLOB NOT NULL,
    body BLOB NOT NULL,
    PRIMARY KEY (session_id, position)
);

CREATE TABLE compactions (
    session_id TEXT NOT NULL REFERENCES sessions (id),
    through BIGINT NOT NULL,
    summary BLOB NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (session_id, through)
) WITHOUT ROWID;

-- An event that tells of a message holds its position instead of a copy.
CREATE TABLE events (
    session_id TEXT NOT NULL REFERENCES sessions (id),
    number BIGINT NOT NULL,
    at BIGINT NOT NULL,
    message BIGINT,
    body BLOB,
    PRIMARY KEY (session_id, number)
);

CREATE TABLE runs (
    id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    owner TEXT NOT NULL,
    state TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    delivery TEXT NOT NULL,
    settings TEXT NOT NULL,
    attempts BIGINT NOT NULL,
    spent BIGINT NOT NULL,
    reserved BIGINT NOT NULL,
    created BIGINT NOT NULL,
    started BIGINT,
    ended BIGINT,
    reason TEXT,
    code TEXT,
    holder TEXT,
    lease_until BIGINT NOT NULL
);
CREATE INDEX runs_by_session ON runs (session_id, id);
CREATE INDEX runs_open ON runs (session_id, id) WHERE ended IS NULL;
CREATE INDEX runs_by_lease ON runs (lease_until) WHERE ended IS NULL;

-- Prompts that wait to enter the history with their run.
CREATE TABLE waiting (
    number INTEGER PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    run_id TEXT NOT NULL,
    body BLOB NOT NULL
);
CREATE INDEX waiting_by_session ON waiting (session_id, number);

CREATE TABLE requests (
    asker TEXT NOT NULL,
    name TEXT NOT NULL,
    digest BLOB NOT NULL,
    session_id TEXT NOT NULL,
    run_id TEXT NOT NULL,
    joined TEXT NOT NULL,
    at BIGINT NOT NULL,
    PRIMARY KEY (asker, name)
) WITHOUT ROWID;

-- From its row on, the results that a turn brought stand in the history.
CREATE TABLE turns (
    run_id TEXT NOT NULL REFERENCES runs (id),
    turn BIGINT NOT NULL,
    id TEXT NOT NULL UNIQUE,
    state TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    message_id TEXT NOT NULL,
    reply TEXT,
    PRIMARY KEY (run_id, turn)
) WITHOUT ROWID;

-- Never more than there are calls under way.
CREATE TABLE reservations (
    id TEXT PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    owner TEXT NOT NULL,
    run_id TEXT NOT NULL,
    model TEXT NOT NULL,
    price_version TEXT NOT NULL,
    day BIGINT NOT NULL,
    amount BIGINT NOT NULL
) WITHOUT ROWID;

-- Running sums of the ledger and the reservations, named `user:…:day` and `day:…`; runs and sessions hold their own.
CREATE TABLE spend (
    name TEXT PRIMARY KEY,
    spent BIGINT NOT NULL,
    reserved BIGINT NOT NULL
) WITHOUT ROWID;

CREATE TABLE ledger (
    number INTEGER PRIMARY KEY,
    owner TEXT NOT NULL,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    run_id TEXT NOT NULL,
    turn_id TEXT NOT NULL,
    model TEXT NOT NULL,
    price_version TEXT NOT NULL,
    input BIGINT NOT NULL,
    cache_read BIGINT NOT NULL,
    cache_write BIGINT NOT NULL,
    cache_write_hour BIGINT NOT NULL,
    output BIGINT NOT NULL,
    thinking BIGINT NOT NULL,
    cost BIGINT NOT NULL,
    estimated BIGINT NOT NULL,
    correction BIGINT NOT NULL,
    day BIGINT NOT NULL,
    at BIGINT NOT NULL
);
CREATE INDEX ledger_by_session ON ledger (session_id);
CREATE INDEX ledger_by_owner ON ledger (owner, day);
CREATE INDEX ledger_by_day ON ledger (day);
CREATE INDEX ledger_by_turn ON ledger (turn_id);

CREATE TABLE session_tokens (
    hash BLOB PRIMARY KEY,
    session_id TEXT NOT NULL REFERENCES sessions (id),
    expires BIGINT NOT NULL,
    replaced BIGINT,
    used BIGINT,
    revoked BIGINT
) WITHOUT ROWID;
CREATE INDEX session_tokens_by_session ON session_tokens (session_id);

CREATE TABLE audit (
    number INTEGER PRIMARY KEY,
    at BIGINT NOT NULL,
    actor TEXT NOT NULL,
    action TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail TEXT NOT NULL,
    hash BLOB NOT NULL
);
