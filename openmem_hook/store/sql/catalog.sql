-- database: catalog

-- name: touch_session
INSERT INTO sessions (name, created_at, last_seen, agent, model, project)
VALUES (:session, :now, :now, :agent, :model, :project)
ON CONFLICT (name) DO UPDATE SET
    last_seen = max(last_seen, excluded.last_seen),
    model = excluded.model,
    project = excluded.project;

-- name: put_anchor
INSERT OR REPLACE INTO anchors VALUES (?, ?);

-- name: put_result
INSERT OR REPLACE INTO results VALUES (?, ?);

-- name: sessions_of_anchors
-- Of other sessions; the newest of several comes last. The second mark stands for a batch of anchors.
SELECT a.anchor, a.session
FROM anchors a LEFT JOIN sessions s ON s.name = a.session
WHERE a.session <> ? AND a.anchor IN (?)
ORDER BY s.last_seen;

-- name: rate
SELECT data FROM rates WHERE model = ?;

-- name: put_rate
INSERT OR REPLACE INTO rates VALUES (?, ?, ?);

-- name: insert_event
INSERT INTO events (kind, created_at, session, data) VALUES (?, ?, ?, ?);

-- name: note_sent
UPDATE sessions SET last_seen = max(last_seen, :now), last_sent = :now, lane = :lane, model = :model
WHERE name = :session;

-- name: idle_sessions
SELECT name FROM sessions WHERE last_seen < ? ORDER BY last_seen LIMIT ?;

-- name: last_seen
SELECT last_seen FROM sessions WHERE name = ?;

-- name: delete_session
DELETE FROM sessions WHERE name = ?;

-- name: delete_anchors
DELETE FROM anchors WHERE session = ?;

-- name: delete_results
DELETE FROM results WHERE session = ?;

-- name: delete_events
DELETE FROM events WHERE created_at < ?;

-- name: session_names
SELECT name FROM sessions;

-- name: chore_begun
SELECT begun_at FROM chores WHERE name = ?;

-- name: put_chore
INSERT OR REPLACE INTO chores VALUES (?, ?);
