-- What every entry says in the same words, and is found by. The chain counts it where there is any of it.
ALTER TABLE audit ADD COLUMN owner TEXT;
ALTER TABLE audit ADD COLUMN session_id TEXT;
ALTER TABLE audit ADD COLUMN run_id TEXT;
ALTER TABLE audit ADD COLUMN service TEXT;
ALTER TABLE audit ADD COLUMN host TEXT;
ALTER TABLE audit ADD COLUMN decision TEXT;
ALTER TABLE audit ADD COLUMN layer TEXT;
ALTER TABLE audit ADD COLUMN rule TEXT;
ALTER TABLE audit ADD COLUMN bytes BIGINT;
ALTER TABLE audit ADD COLUMN micros BIGINT;
ALTER TABLE audit ADD COLUMN cost BIGINT;
CREATE INDEX audit_by_session ON audit (session_id) WHERE session_id IS NOT NULL;
CREATE INDEX audit_by_owner ON audit (owner) WHERE owner IS NOT NULL;
CREATE INDEX audit_by_service ON audit (service) WHERE service IS NOT NULL;
CREATE INDEX audit_by_host ON audit (host) WHERE host IS NOT NULL;
CREATE INDEX audit_refused ON audit (decision) WHERE decision <> 'allow';
