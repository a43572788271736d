"""`smart_compact_sql`: one SELECT over a session, for counts and joins."""

from __future__ import annotations

import json

from openmem_hook.store import fulltext, sandbox
from openmem_hook.store.database import read_only_blocking
from openmem_hook.store.sandbox import Table
from openmem_hook.tools import answers, arguments
from openmem_hook.tools.arguments import ArgumentError
from openmem_hook.tools.tool import SESSION, Call, Tool

CATCH_UP_S = 2.0
"""Seconds to wait for the full-text index to hold everything."""


def _answer(call: Call) -> str:
    session, sql = arguments.read_identifier(call.arguments, "session_id"), arguments.read_text(call.arguments, "sql")
    if not session or not sql.strip():
        raise ArgumentError("send session_id (16 hex characters, from the pointer) and sql (one SELECT)")
    path = call.existing_session_path(session)
    # The statement may ask the full-text tables. Only a session that they lag behind needs the writer's connection.
    with read_only_blocking(path) as db:
        is_behind = fulltext.is_behind(db)
    is_whole = not is_behind or call.pool.session(call.caller.tenant, session).index_all(CATCH_UP_S)
    answer = _format_table(sandbox.select(path, sql))
    return answer if is_whole else f"{answer}\nnote: the newest messages are not in the full-text tables yet; ask again"


def _format_table(table: Table) -> str:
    """Columns and rows are JSON, one a line."""
    lines = [f"columns: {json.dumps(table.columns, ensure_ascii=False)}"]
    for row in table.rows:
        text = json.dumps(row, ensure_ascii=False)
        lines.append(answers.BREAKS.sub(lambda sign: f"\\u{ord(sign[0]):04x}", text))
    summary = f"rows: {len(table.rows)}"
    if table.more:
        summary += ", and there are more: count in SQL, or use LIMIT and OFFSET"
    if table.cut:
        summary += "; cells that end in … are cut: substr(column, start, length) reads on"
    return "\n".join([*lines, summary])


TOOL = Tool(
    name="smart_compact_sql",
    description="Runs one read-only SELECT (SQLite) over a session, for counts and joins: messages(seq, role, kind, "
    "tool_name, text, in_context, thread, created_at), lines(seq, line_no, text), messages_fts and lines_fts "
    "(FTS5; rowid = messages.seq, lines.id), events(kind, created_at, data as JSON). At most 200 rows, 2 s.",
    properties={
        "session_id": SESSION,
        "sql": {"type": "string", "description": "One SELECT, or WITH … SELECT"},
    },
    required=("session_id", "sql"),
    answer=_answer,
)
