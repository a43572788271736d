-- One session: every message once. Public: messages, lines, both full-text tables, events. Private: the rest.

-- The client's message as it came, compressed with its own text as dictionary, and its identity.
CREATE TABLE records (
    seq        INTEGER PRIMARY KEY,
    key        BLOB    NOT NULL,
    past       BLOB    NOT NULL,               -- fingerprint before it
    digest     BLOB    NOT NULL,
    thread     INTEGER NOT NULL,
    role       TEXT    NOT NULL,               -- user, assistant, tool, system
    kind       TEXT    NOT NULL,               -- typed, mixed, notice, recap, summarise, reply, call, result, ...
    tool_name  TEXT    NOT NULL,               -- tools called or answered, comma separated
    in_context INTEGER NOT NULL,               -- 1 while the thread's newest request shows it whole
    created_at REAL    NOT NULL,               -- seconds since 1970
    tokens     REAL,                           -- measured growth attributed to it
    format     TEXT    NOT NULL,
    body       BLOB    NOT NULL
);
CREATE UNIQUE INDEX records_key ON records (key);

-- A line of every message. The id holds both numbers, so that a line costs no index of its own.
CREATE TABLE lines (
    id      INTEGER PRIMARY KEY,
    text    TEXT NOT NULL,
    seq     INTEGER GENERATED ALWAYS AS (id >> 24) VIRTUAL,
    line_no INTEGER GENERATED ALWAYS AS (id & 16777215) VIRTUAL   -- from 1
);

-- A message's text is its lines, which are read in the order of their ids: no second copy on disk.
CREATE VIEW messages AS
SELECT
    seq, role, kind, tool_name,
    (SELECT group_concat(text, char(10)) FROM lines WHERE id > records.seq << 24 AND id < (records.seq + 1) << 24)
        AS text,
    in_context,
    (SELECT name FROM threads WHERE id = records.thread) AS thread,
    created_at
FROM records;

CREATE VIRTUAL TABLE messages_fts USING fts5(text, content = 'messages', content_rowid = 'seq');
-- Lines are counted and shown, not ranked: no column sizes. Positions stay, for phrases.
CREATE VIRTUAL TABLE lines_fts USING fts5(text, content = 'lines', content_rowid = 'id', columnsize = 0);
-- A request adds a small segment to each. They are merged behind it, by request (`fulltext.merge`).
INSERT INTO messages_fts (messages_fts, rank) VALUES ('automerge', 0);
INSERT INTO lines_fts (lines_fts, rank) VALUES ('automerge', 0);

CREATE TABLE events (
    id         INTEGER PRIMARY KEY,
    kind       TEXT NOT NULL,                  -- trim, compression, usage, fail_open, forced, nothing_to_trim, ...
    created_at REAL NOT NULL,
    data       TEXT NOT NULL                   -- JSON: numbers and names, never message text
);

CREATE TABLE edits (
    id         INTEGER PRIMARY KEY,
    kind       TEXT NOT NULL,                  -- cut, swap
    name       TEXT NOT NULL,                  -- 16 hex: a cut's id, a compressed result's id
    key        BLOB NOT NULL,                  -- a cut's anchor, a swap's message
    call_id    TEXT NOT NULL DEFAULT '',
    reason     TEXT NOT NULL,
    generation INTEGER NOT NULL,
    state      TEXT NOT NULL,                  -- prepared, active
    created_at REAL NOT NULL,
    payload    BLOB NOT NULL,                  -- finished JSON or text: what is sent
    detail     TEXT NOT NULL DEFAULT '{}'      -- JSON: what finds the edit again
);
CREATE UNIQUE INDEX edits_place ON edits (kind, key, call_id);
CREATE INDEX edits_name ON edits (name);

CREATE TABLE threads (
    id           INTEGER PRIMARY KEY,
    name         TEXT NOT NULL,
    agent        TEXT NOT NULL,                -- hash of the client's own name for it, '' for the main agent
    root         BLOB NOT NULL,                -- key of its first message with an identity
    tip          BLOB NOT NULL,                -- key of the newest message sent
    has_tools    INTEGER NOT NULL,
    note         INTEGER NOT NULL,             -- version of the note's wording, 0 for none
    result_chars INTEGER NOT NULL,             -- results above are compressed, 0 for none
    "offset"     REAL NOT NULL DEFAULT 0,
    created_at   REAL NOT NULL
);

CREATE TABLE reports (
    id       INTEGER PRIMARY KEY,
    call_id  TEXT NOT NULL UNIQUE,
    key      BLOB NOT NULL,
    cut      TEXT NOT NULL,
    tokens   INTEGER NOT NULL,
    overhead REAL NOT NULL
);
