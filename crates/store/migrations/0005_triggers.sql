-- By what a run was caused: a door, and a name where the door has one (`api:nightly`).
ALTER TABLE runs ADD COLUMN triggered_by TEXT NOT NULL DEFAULT '';
UPDATE runs SET triggered_by = (SELECT s.door FROM sessions s WHERE s.id = runs.session_id);

-- Running sums of each day and trigger, `trigger:day:…`, beside those of users and days.
INSERT INTO spend (name, spent, reserved)
SELECT name, SUM(spent), SUM(reserved) FROM (
    SELECT 'trigger:' || l.day || ':' || r.triggered_by AS name, l.cost AS spent, 0 AS reserved
    FROM ledger l JOIN runs r ON r.id = l.run_id
    UNION ALL
    SELECT 'trigger:' || v.day || ':' || r.triggered_by AS name, 0 AS spent, v.amount AS reserved
    FROM reservations v JOIN runs r ON r.id = v.run_id
) AS sums GROUP BY name;

-- No entry is looked for by its turn, and none corrects another.
DROP INDEX ledger_by_turn;
ALTER TABLE ledger DROP COLUMN correction;
