-- database: catalog
-- What the tools read of a tenant's catalog: its sessions, its shortened results, its events.

-- name: recent_sessions
-- The sessions used last, those of this project first; project '' names none.
SELECT name
FROM sessions
ORDER BY project <> '' AND project = :project DESC, last_seen DESC, name
LIMIT :limit;

-- name: sessions_of_result
-- Those that hold this shortened result, a fork and its parent for one, the one used last first.
SELECT r.session
FROM results r
LEFT JOIN sessions s ON s.name = r.session
WHERE r.id = :result_id
ORDER BY s.last_seen DESC;

-- name: events_since
SELECT kind, created_at, data
FROM events
WHERE created_at >= :since
ORDER BY id;
