-- One tenant: its sessions, and what is looked up across them.

CREATE TABLE sessions (
    name       TEXT PRIMARY KEY,               -- 16 hex, also the file's name
    created_at REAL NOT NULL,
    last_seen  REAL NOT NULL,
    agent      TEXT NOT NULL DEFAULT '',
    model      TEXT NOT NULL DEFAULT '',
    project    TEXT NOT NULL DEFAULT '',
    last_sent  REAL,                           -- when a request last went out, for the cache's lifetime
    lane       TEXT NOT NULL DEFAULT ''        -- cache lifetime asked for: 5m, 1h
);
CREATE INDEX sessions_last_seen ON sessions (last_seen);

-- Where a session has edits: anchors of its cuts, messages with a shortened result.
CREATE TABLE anchors (
    anchor  BLOB NOT NULL,
    session TEXT NOT NULL,
    PRIMARY KEY (anchor, session)
) WITHOUT ROWID;
CREATE INDEX anchors_session ON anchors (session);

CREATE TABLE results (
    id      TEXT NOT NULL,                     -- 16 hex
    session TEXT NOT NULL,
    PRIMARY KEY (id, session)
) WITHOUT ROWID;
CREATE INDEX results_session ON results (session);

CREATE TABLE rates (
    model      TEXT PRIMARY KEY,
    data       TEXT NOT NULL,                  -- a calibration as JSON
    updated_at REAL NOT NULL
) WITHOUT ROWID;

CREATE TABLE events (
    id         INTEGER PRIMARY KEY,
    kind       TEXT NOT NULL,
    created_at REAL NOT NULL,
    session    TEXT NOT NULL,
    data       TEXT NOT NULL
);
-- What one worker does for all: when it was last begun.
CREATE TABLE chores (
    name     TEXT PRIMARY KEY,
    begun_at REAL NOT NULL
) WITHOUT ROWID;
CREATE INDEX events_created_at ON events (created_at);
