"""`smart_compact_get`: the full text of a shortened result or of any stored message, in pieces."""

from __future__ import annotations

import hashlib
from contextlib import suppress

from openmem_hook.compaction.wording import quote
from openmem_hook.store.database import read_only
from openmem_hook.store.search import messages, tenant
from openmem_hook.store.search.messages import ShortenedResult
from openmem_hook.store.search.values import Message
from openmem_hook.tools import arguments
from openmem_hook.tools.answers import format_moment
from openmem_hook.tools.arguments import ArgumentError
from openmem_hook.tools.tool import META, SESSION, Call, NotFoundError, Tool, no_session_error

GET_CHARS = 100_000
"""Characters of a text that one call gets."""
RESULT_CHARS = 120_000
"""Characters that Claude Code is asked to take without putting the answer into a file: a piece and its frame."""


async def _answer(call: Call) -> str:
    result_id = arguments.read_identifier(call.arguments, "id")
    session = arguments.read_identifier(call.arguments, "session_id")
    offset = arguments.read_whole(call.arguments, "offset", 0, 0, 2**53)
    if result_id:
        session, message, text = await _read_shortened_result(call, result_id, session)
        again = f'id="{result_id}"'
    elif session and "seq" in call.arguments:
        seq = arguments.read_whole(call.arguments, "seq", 0, 1, 2**38)
        message, text = await _read_message(call, session, seq)
        again = f'session_id="{session}", seq={seq}'
    else:
        raise ArgumentError("send id (16 hex characters, of a shortened result), or session_id and seq of a message")
    if offset > len(text):
        raise ArgumentError(f"offset is beyond the end: the text has {len(text)} characters")
    return _format_piece(again, message, session, text, offset)


async def _read_message(call: Call, session: str, seq: int) -> tuple[Message, str]:
    try:
        async with read_only(call.session_path(session)) as db:
            message_and_text = await messages.read_full_text(db, seq)
    except FileNotFoundError:
        raise no_session_error(session) from None
    if message_and_text is None:
        raise NotFoundError(f"session {session} has no message {seq}; smart_compact_search shows seq of each row")
    return message_and_text


async def _read_shortened_result(call: Call, result_id: str, session: str) -> tuple[str, Message, str]:
    """The session that holds it, its message and its whole text. `session` may be empty: then the catalog tells."""
    names = [session] if session else []
    if not names:
        with suppress(FileNotFoundError):  # a tenant without a catalog has no results either
            async with read_only(call.catalog_path) as db:
                names = await tenant.find_sessions_of_result(db, result_id)
    for name in names:
        result: ShortenedResult | None = None
        with suppress(FileNotFoundError):  # deleted since
            async with read_only(call.session_path(name)) as db:
                result = await messages.read_shortened_result(db, result_id)
        # A fork's copy may have been lost, or be of a format that is no longer read: then another session has it.
        text = None if result is None else await call.run_in_worker(result.read_original)
        if result is not None and text is not None:
            return name, result.message, text
    raise NotFoundError(
        f"no shortened result {result_id} is stored for you; smart_compact_search finds its text by words"
    )


def _format_piece(again: str, message: Message, session: str, text: str, offset: int) -> str:
    """A piece of a text, and where the next one begins. `again`: the arguments that call for it again.

    It stands between two marks that hold a hash of it, so that the text itself can't contain them.
    """
    piece = text[offset : offset + GET_CHARS]
    end = offset + len(piece)
    tool = f", {quote(message.tool_name, 60)}" if message.tool_name else ""
    about = f"{message.role}, {message.kind}{tool}, {format_moment(message.created_at)}"
    position = f"characters {offset} to {end} of {len(text)}"
    if end < len(text):
        position += f"; next_offset: {end}, call smart_compact_get({again}, offset={end})"
    raw = piece.encode("utf-8", "surrogatepass")
    mark = hashlib.blake2b(raw, digest_size=8).hexdigest()
    while mark in piece:
        mark = hashlib.blake2b(raw + mark.encode(), digest_size=8).hexdigest()
    return f"session_id={session} seq={message.seq} ({about})\n{position}\n[begin {mark}]\n{piece}\n[end {mark}]"


TOOL = Tool(
    name="smart_compact_get",
    description="The full text of a shortened tool result (id) or of any stored message (session_id and seq), at most "
    "100,000 characters a call; next_offset says where to read on.",
    properties={
        "id": {"type": "string", "description": "16 hex characters, from the header of a shortened result"},
        "session_id": SESSION,
        "seq": {"type": "integer", "minimum": 1, "description": "Number of the message in its session"},
        "offset": {"type": "integer", "minimum": 0, "description": "Character to begin at; default 0"},
    },
    meta=META | {"anthropic/maxResultSizeChars": RESULT_CHARS},
    answer=_answer,
)
