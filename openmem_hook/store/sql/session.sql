-- database: session

-- name: data_version
-- Changes whenever another connection committed.
PRAGMA data_version;

-- name: row_names
SELECT key, past, digest, thread, tokens FROM records ORDER BY seq;

-- name: edits
SELECT kind, name, key, call_id, reason, generation, state, payload, detail FROM edits ORDER BY id;

-- name: threads
SELECT id, name, agent, root, tip, has_tools, note, result_chars, "offset" FROM threads ORDER BY id;

-- name: newest_reports
-- Forks and rewinds reach back, but not over thousands of requests.
SELECT key, cut, tokens, overhead, chars_per_token FROM reports WHERE tokens >= 0 ORDER BY id DESC LIMIT :count;

-- name: insert_thread
INSERT INTO threads (name, agent, root, tip, has_tools, note, result_chars, "offset", created_at)
VALUES (:name, :agent, :root, :last_key, :has_tools, :note, :result_chars, :offset, :now);

-- name: name_thread
UPDATE threads SET name = :name WHERE id = :id;

-- name: update_thread
UPDATE threads SET tip = :last_key, has_tools = :has_tools WHERE id = :id;

-- name: set_thread_offset
UPDATE threads SET "offset" = :offset WHERE id = :id;

-- name: last_seq
SELECT coalesce(max(seq), 0) FROM records;

-- name: insert_record
-- A key that is there already keeps its row.
INSERT OR IGNORE INTO records
(seq, key, past, digest, thread, role, kind, tool_name, in_context, created_at, format, body)
VALUES (:seq, :key, :past, :digest, :thread, :role, :kind, :tool_name, :in_context, :now, :format, :body);

-- name: insert_line
INSERT INTO lines (id, text) VALUES (?, ?);

-- name: put_edit
INSERT OR REPLACE INTO edits
(kind, name, key, call_id, reason, generation, state, created_at, payload, detail)
VALUES (:kind, :name, :key, :part, :reason, :generation, :state, :now, :payload, :detail);

-- name: restore_edit
UPDATE edits
SET name = :name, reason = :reason, generation = :generation, state = :state, payload = :payload, detail = :detail
WHERE kind = :kind AND key = :key AND call_id = :part;

-- name: abandon_edit
UPDATE edits SET state = 'abandoned' WHERE kind = :kind AND key = :key AND call_id = :part;

-- name: set_record_tokens
UPDATE records SET tokens = :tokens WHERE key = :key;

-- name: show_record
UPDATE records SET in_context = 1 WHERE key = ?;

-- name: set_in_context
-- An agent's line may have begun as another of its threads.
UPDATE records SET in_context = :value
WHERE key = :key AND in_context <> :value AND thread IN (SELECT id FROM threads WHERE agent = :agent);

-- name: hide_thread
UPDATE records SET in_context = 0 WHERE thread = ? AND in_context <> 0;

-- name: insert_event
INSERT INTO events (kind, created_at, data) VALUES (?, ?, ?);

-- name: delete_events_of_decision
DELETE FROM events WHERE created_at = :now AND kind <> 'usage';

-- name: insert_report
INSERT OR IGNORE INTO reports (call_id, key, cut, tokens, overhead, chars_per_token)
VALUES (:report_id, :key, :cut, :tokens, :overhead, :family_rate);
