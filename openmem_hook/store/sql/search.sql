-- database: session
-- Where words and patterns match. Conditions (filters, pieces of a query as they are written) and the order are
-- appended at run time, so these end in a FROM or a WHERE. They use positional parameters, as what is appended does.
-- CROSS JOIN keeps the order of the tables: the one that narrows comes first.
-- A line's id is its message's seq shifted by 24 bits, and its number from 1.

-- name: messages_with_words
SELECT f.rowid
FROM messages_fts f
CROSS JOIN records r ON r.seq = f.rowid
WHERE messages_fts MATCH ?;

-- name: count_of_messages_with_words
SELECT count(*)
FROM messages_fts f
CROSS JOIN records r ON r.seq = f.rowid
WHERE messages_fts MATCH ?;

-- name: scores_of_messages_with_words
-- The lower, the better; what is appended orders by them.
SELECT f.rowid, f.rank
FROM messages_fts f
CROSS JOIN records r ON r.seq = f.rowid
WHERE messages_fts MATCH ?;

-- name: count_of_lines_with_words
SELECT count(*)
FROM lines_fts f
CROSS JOIN records r ON r.seq = f.rowid >> 24
WHERE lines_fts MATCH ?;

-- name: lines_with_words_by_message
-- With the lines' texts, for pieces that have to stand there as they are written; grouped by what is appended.
SELECT r.seq, count(*)
FROM lines_fts f
CROSS JOIN records r ON r.seq = f.rowid >> 24
CROSS JOIN lines l ON l.id = f.rowid
WHERE lines_fts MATCH ?;

-- name: lines_of_message_with_words
SELECT f.rowid
FROM lines_fts f
CROSS JOIN records r ON r.seq = f.rowid >> 24
CROSS JOIN lines l ON l.id = f.rowid
WHERE lines_fts MATCH ? AND f.rowid > ? AND f.rowid < ?;

-- name: lines_of_message_with_any_word
SELECT rowid
FROM lines_fts
WHERE lines_fts MATCH ? AND rowid > ? AND rowid < ?
LIMIT ?;

-- name: has_unspaced
-- Whether the full-text index holds messages that it can't be trusted with.
SELECT EXISTS (SELECT 1 FROM unspaced);

-- name: unindexed_messages
-- Those that it can't be trusted with, and those that it doesn't hold yet: messages are indexed in their order.
WITH unindexed (seq) AS (
    SELECT seq FROM unspaced
    UNION
    SELECT seq FROM records WHERE seq > (SELECT coalesce(max(id), 0) FROM messages_fts_docsize)
)
SELECT r.seq
FROM unindexed
CROSS JOIN records r ON r.seq = unindexed.seq;

-- name: newest_message
SELECT coalesce(max(seq), 0) FROM records;

-- name: symbols_by_message
-- Lines that hold a text without any word, which no index has; grouped by what is appended.
SELECT r.seq, count(*)
FROM lines l
CROSS JOIN records r ON r.seq = l.id >> 24
WHERE instr(l.text, ?);

-- name: symbols_in_message
SELECT id
FROM lines l
WHERE l.id > ? AND l.id < ? AND instr(l.text, ?);

-- name: lines_with_literal
-- In whatever case of ASCII letters.
SELECT l.id, l.text
FROM lines l
CROSS JOIN records r ON r.seq = l.id >> 24
WHERE l.text LIKE ? ESCAPE '\';

-- name: texts
SELECT m.seq, m.text
FROM records r
CROSS JOIN messages m ON m.seq = r.seq;

-- name: results_after_call
-- Messages after an output in its thread, among which the results of its calls are.
SELECT seq, kind
FROM records
WHERE seq > ?1 AND thread = (SELECT thread FROM records WHERE seq = ?1)
ORDER BY seq
LIMIT ?2;

-- name: record
-- One message, to be held against filters.
SELECT 1 FROM records r WHERE r.seq = ?;
