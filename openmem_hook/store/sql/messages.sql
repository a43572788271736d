-- database: session
-- Single messages and lines. A line's id is its message's seq shifted by 24 bits, and its number from 1. `:result_kinds`
-- is a JSON list: the kinds of edits that stand for a result.

-- name: message
-- A message without its text, and the id of its shortened result.
SELECT
    r.seq, r.role, r.kind, r.tool_name, r.in_context,
    coalesce((SELECT name FROM threads WHERE id = r.thread), ''),
    r.created_at,
    coalesce((SELECT max(name) FROM edits WHERE kind IN (SELECT value FROM json_each(:result_kinds)) AND key = r.key), '')
FROM records r
WHERE r.seq = :seq;

-- name: text_of_message
SELECT coalesce(text, '') FROM messages WHERE seq = :seq;

-- name: messages_before
SELECT seq
FROM records
WHERE seq < :seq AND thread = (SELECT thread FROM records WHERE seq = :seq)
ORDER BY seq DESC
LIMIT :count;

-- name: messages_after
SELECT seq
FROM records
WHERE seq > :seq AND thread = (SELECT thread FROM records WHERE seq = :seq)
ORDER BY seq
LIMIT :count;

-- name: first_line
-- The first line of a message that is not blank.
SELECT text
FROM lines
WHERE id > :seq << 24 AND id < (:seq + 1) << 24 AND trim(text) <> ''
ORDER BY id
LIMIT 1;

-- name: lines_between
SELECT line_no, text
FROM lines
WHERE id >= :seq << 24 | :first AND id <= :seq << 24 | :last
ORDER BY id;

-- name: first_lines
SELECT text
FROM lines
WHERE id > :seq << 24 AND id < (:seq + 1) << 24
ORDER BY id
LIMIT :count;

-- name: line
SELECT line_no, text FROM lines WHERE id = :id;

-- name: shortened_result
-- The message that holds it, as the client sent it, and the call that it is the result of. Body and text are one: the
-- text is the dictionary that the body was compressed with.
SELECT r.seq, r.format, r.body, (SELECT coalesce(text, '') FROM messages WHERE seq = r.seq), e.call_id
FROM edits e
JOIN records r ON r.key = e.key
WHERE e.kind IN (SELECT value FROM json_each(:result_kinds)) AND e.name = :result_id
LIMIT 1;
