-- Bytes of a session's messages and events, which are held to a cap.
ALTER TABLE sessions ADD COLUMN stored BIGINT NOT NULL DEFAULT 0;
UPDATE sessions SET stored =
    (SELECT COALESCE(SUM(LENGTH(m.body) + LENGTH(m.ready)), 0) FROM messages m WHERE m.session_id = sessions.id)
    + (SELECT COALESCE(SUM(LENGTH(e.body)), 0) FROM events e WHERE e.session_id = sessions.id);
