-- database: session

-- name: is_behind
-- Whether some messages are not in the full-text index yet.
SELECT coalesce((SELECT max(seq) FROM records), 0) > coalesce((SELECT max(id) FROM messages_fts_docsize), 0);

-- name: last_indexed
SELECT coalesce(max(id), 0) FROM messages_fts_docsize;

-- name: messages_after
SELECT seq, text FROM messages WHERE seq > ? ORDER BY seq;

-- name: index_message
INSERT INTO messages_fts (rowid, text) VALUES (?, ?);

-- name: mark_unspaced
INSERT OR IGNORE INTO unspaced (seq) VALUES (?);

-- name: index_lines
INSERT INTO lines_fts (rowid, text) SELECT id, text FROM lines WHERE id > ? AND id < ?;

-- name: merge_messages
INSERT INTO messages_fts (messages_fts, rank) VALUES ('merge', ?);

-- name: merge_lines
INSERT INTO lines_fts (lines_fts, rank) VALUES ('merge', ?);
