"""Public bug reports about what messages hold."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from openmem_hook import config, fingerprint
from openmem_hook.compaction import wording
from openmem_hook.compaction.wording import NOTE
from openmem_hook.compactor import Compactor, Request
from openmem_hook.facts import INTERJECTION_PREFIX
from openmem_hook.formats import anthropic
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.limits import ModelFacts, derive_limits
from openmem_hook.settings import Settings
from openmem_hook.store import fulltext, names
from openmem_hook.store.database import transaction
from openmem_hook.store.session import unpack
from openmem_hook.text import split_lines
from tests.conftest import CALL_TYPES, make_key
from tests.harness.conversation import POINTER, SESSION_HEADER, Conversation, messages_of
from tests.kit import builders as a
from tests.kit.builders import FORMATS, Format, Json, chat, responses
from tests.kit.filler import listing, prose
from tests.kit.histories import growth
from tests.kit.prefix import assert_untouched, check

NewHook = Callable[..., ContextHook]
formats = pytest.mark.parametrize("fmt", FORMATS)
CAP = 0.5
"""Share of the limit that a short form may have (the limit is in tokens of 2.5 characters here)."""


def words(fmt: Format) -> Any:
    return {"anthropic": a, "chat": chat, "responses": responses}[fmt]


def wrap(fmt: Format, *messages: Json, **fields: Any) -> Json:
    return words(fmt).body(*messages, **fields)


def exchange(fmt: Format, call: str, output: Any, name: str = "Read", **arguments: Any) -> list[Json]:
    """A call with its result; `output` is text or parts in the format's own words."""
    if fmt == "anthropic":
        return [a.assistant(a.tool_use(call, name, **arguments)), a.results(a.tool_result(call, output))]
    if fmt == "chat":
        return [chat.assistant("", chat.call(call, name, **arguments)), chat.result(call, output)]
    return [responses.call(call, name, **arguments), responses.output(call, output)]


def text_part(fmt: Format, said: str) -> Json:
    return {"type": "input_text" if fmt == "responses" else "text", "text": said}


def picture(fmt: Format, data: str) -> Json:
    return {"anthropic": a.image, "chat": chat.image, "responses": responses.image}[fmt](data)


def output_of(message: Json) -> Any:
    """What a result message holds, text or parts."""
    if "output" in message:
        return message["output"]
    content = message["content"]
    return content[0]["content"] if isinstance(content, list) and content[0].get("type") == "tool_result" else content


def text_of(output: Any) -> str:
    return output if isinstance(output, str) else "\n".join(p["text"] for p in output if "text" in p)


def database(talk: Conversation) -> contextlib.closing[sqlite3.Connection]:
    path = next(talk.hook.compactor.store.pool.folder.glob("*/sessions/*.db"))
    return contextlib.closing(sqlite3.connect(path, isolation_level=None))


# --- NUL and control characters ---------------------------------------------------------------------------------

CONTROLS = {
    "one NUL": "alpha \0 omegaword",
    "5,000 NULs": "alpha " + "\0" * 5_000 + " omegaword",
    "20,000 NULs": ("alpha\n" + "\0" * 20_000 + "\n") * 3 + "omegaword",
    "ANSI escapes": "\x1b[31mred\x1b[0m\x07\x08\n" * 400 + "omegaword",
    "a binary dump": Random(50).randbytes(1_000_000).decode("latin-1") + " omegaword",
    "CR only": "alpha\r" * 3_000 + "omegaword",
    "CR LF and both": "alpha\r\nbeta\rgamma\n" * 800 + "omegaword",
    "line separators": "alpha\u2028beta\u2029gamma\x85delta\x0b\x0c" * 500 + " omegaword",
    "a byte order mark": "\ufeffalpha " + "beta\n" * 2_000 + "omegaword",
}


@pytest.mark.parametrize("kind", CONTROLS)
@formats
async def test_control_characters_harm_no_index_no_count_and_no_byte(new_hook: NewHook, fmt: Format, kind: str) -> None:
    text = CONTROLS[kind]
    talk = Conversation(new_hook(compress_over_tokens=1000, chars_per_token=2.5, deadline_s=20), "one")
    body = wrap(fmt, words(fmt).user("Look."), *exchange(fmt, "call_1", text))
    out = await talk.send(body)
    stored = talk.rows()[-1]
    assert stored.raw == messages_of(body)[-1]
    lines = split_lines(text)
    with database(talk) as db:
        with transaction(db):
            assert fulltext.index(db, 10_000_000)
        for table in ("messages", "lines"):
            db.execute(f"INSERT INTO {table}_fts ({table}_fts, rank) VALUES ('integrity-check', 1)")
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        seq = db.execute("SELECT max(seq) FROM messages").fetchone()[0]
        assert db.execute("SELECT rowid FROM messages_fts WHERE messages_fts MATCH 'omegaword'").fetchall() == [(seq,)]
        found = "SELECT line_no FROM lines WHERE id IN (SELECT rowid FROM lines_fts WHERE lines_fts MATCH 'omegaword')"
        assert db.execute(f"{found} ORDER BY line_no DESC LIMIT 1").fetchone() == (len(lines),)
        assert db.execute("SELECT count(*) FROM lines WHERE seq = ?", (seq,)).fetchone() == (len(lines),)
        size = db.execute("SELECT length(text) FROM messages WHERE seq = ?", (seq,)).fetchone()[0]
        assert size == len("\n".join(lines)), "length() does not stop at a NUL"
    sent = text_of(output_of(messages_of(out)[-1]))
    assert (sent != text) == (len(text) > 2_500)
    if sent != text:
        assert f" {len(lines)} lines, {len(text)} characters" in sent.splitlines()[0]


@formats
async def test_lone_surrogates_pass_and_are_stored_as_they_came(new_hook: NewHook, key: Any, fmt: Format) -> None:
    hook = new_hook(compress_over_tokens=500, chars_per_token=2.5)
    text = "alpha \ud800 beta \udfff\n" * 500 + "omegaword"
    for session, output in (("a spoilt result", text), ("a spoilt path", "ok")):
        body = wrap(fmt, words(fmt).user("Look."), *exchange(fmt, "call_1", output, path="\ud83d.py"))
        data = {**body, "proxy_server_request": {"headers": {SESSION_HEADER[fmt]: session}}}
        out = await hook.async_pre_call_hook(key, None, data, CALL_TYPES[fmt])
        assert hook.notices.failures == 0
        assert (text_of(output_of(messages_of(out)[-1])) == output) == (output == "ok")
        assert stored(hook, session) == messages_of(body)


def stored(hook: ContextHook, session: str) -> list[Json]:
    """What is read back of the first user's session."""
    path = hook.compactor.store.pool.session_path(
        names.tenant_folder("user:user-1"), names.session_name("user:user-1", session)
    )
    with contextlib.closing(sqlite3.connect(path)) as db:
        rows = db.execute("SELECT r.body, m.text FROM records r JOIN messages m USING (seq) ORDER BY seq").fetchall()
    return [fingerprint.load(unpack(body, text)) for body, text in rows]


# --- pictures and base64: size in tokens ------------------------------------------------------------------------

THREE_MB = a.picture(800, 2_250_000)
BLOB = base64.b64encode(Random(51).randbytes(750_000)).decode()
DATA_URL = f"data:image/png;base64,{a.picture(20, 30_000)}"


def one_chat(fmt: Format, *parts: Any) -> Json:
    return wrap(fmt, words(fmt).user("Look at this.", *parts))


def one_result(fmt: Format, output: Any) -> Json:
    return wrap(fmt, words(fmt).user("Look."), *exchange(fmt, "call_1", output))


DOCUMENT = {"anthropic": a.document("page " * 100_000)}
MEDIA: dict[str, tuple[Json, int, int]] = {
    "A picture typed": (one_chat("anthropic", a.image(THREE_MB)), 1_000, 3_000),
    "A picture in a result": (one_result("anthropic", [a.text("see"), a.image(THREE_MB)]), 1_000, 3_000),
    "A document": (one_chat("anthropic", a.document("page " * 100_000)), 5_000, 20_000),
    "A picture by address": (
        one_chat("anthropic", {"type": "image", "source": {"type": "url", "url": "https://example.org/a.png"}}),
        1_000,
        3_000,
    ),
    "A document by file id": (
        one_chat("anthropic", {"type": "document", "source": {"type": "file", "file_id": "file_1"}}),
        5_000,
        20_000,
    ),
    "C picture": (one_chat("chat", chat.image(THREE_MB)), 1_000, 3_000),
    "C picture by address": (
        one_chat("chat", {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}),
        1_000,
        3_000,
    ),
    "C file": (one_chat("chat", {"type": "file", "file": {"file_data": BLOB, "filename": "a.pdf"}}), 5_000, 20_000),
    "R picture": (one_chat("responses", responses.image(THREE_MB)), 1_000, 3_000),
    "R picture in an output": (one_result("responses", [responses.image(THREE_MB)]), 1_000, 3_000),
    "R file": (one_chat("responses", {"type": "input_file", "filename": "a.pdf", "file_data": BLOB}), 5_000, 20_000),
    "R file by id": (one_chat("responses", {"type": "input_file", "file_id": "file_1"}), 5_000, 20_000),
    "A base64 as text": (one_result("anthropic", BLOB), 500_000, 1_000_000),
    "A base64 in lines": (one_result("anthropic", re.sub("(.{76})", r"\1\n", BLOB)), 500_000, 1_000_000),
    "C base64 as text": (one_result("chat", BLOB), 500_000, 1_000_000),
    "R base64 as text": (one_result("responses", BLOB), 500_000, 1_000_000),
    "A base64 in typed words": (one_chat("anthropic", BLOB), 500_000, 1_000_000),
}  # fmt: skip


@pytest.mark.parametrize("kind", MEDIA)
async def test_media_and_base64_are_counted_at_what_they_cost(new_hook: NewHook, kind: str) -> None:
    body, least, most = MEDIA[kind]
    talk = Conversation(new_hook(compress_over_tokens=0, trim_at_tokens=10_000_000), "one")
    out = await talk.send(body)
    await talk.report(1000)
    assert least <= talk.events("usage")[0]["estimate"] <= most
    assert_untouched(messages_of(body)[-1], messages_of(out)[-1])
    assert talk.trims() == 0


@formats
async def test_a_fresh_chat_with_a_big_picture_is_not_trimmed(new_hook: NewHook, fmt: Format) -> None:
    talk = Conversation(new_hook(), "one")
    body = one_chat(fmt, picture(fmt, THREE_MB))
    out = await talk.send(body)
    assert_untouched(messages_of(body)[-1], messages_of(out)[-1])
    assert POINTER not in json.dumps(out)


@pytest.mark.parametrize("with_picture", [False, True])
async def test_media_teach_no_rate(new_hook: NewHook, with_picture: bool) -> None:
    talk = Conversation(new_hook(), "one")
    history = [a.user("Look.")]
    for step in range(4):
        await talk.send(a.body(*history, model="claude-sonnet-4-5"))
        await talk.report(1000 + (3600 if with_picture else 2000) * step)
        shown = [a.text(prose(4000, step)), *([a.image()] if with_picture else [])]
        history += exchange("anthropic", f"toolu_{step}", shown)
    catalog = next(talk.hook.compactor.store.pool.folder.glob("*/catalog.db"))
    with contextlib.closing(sqlite3.connect(catalog)) as db:
        (rate,) = db.execute("SELECT data FROM rates").fetchone()
    assert (json.loads(rate)["seen"] > 0) == (not with_picture)


@formats
async def test_results_of_text_and_media_are_shortened_in_their_text_alone(new_hook: NewHook, fmt: Format) -> None:
    talk = Conversation(new_hook(compress_over_tokens=500, chars_per_token=2.5), "one")
    parts = [text_part(fmt, listing(3000, 1)), text_part(fmt, listing(3000, 2))]
    if fmt != "chat":  # results of chat completions hold text alone
        parts.insert(1, picture(fmt, a.picture(20, 20_000)))
    body = one_result(fmt, parts)
    out = await talk.send(body)
    sent = output_of(messages_of(out)[-1])
    assert len(text_of(sent)) < 2000
    assert [p for p in sent if "text" not in p] == [p for p in parts if "text" not in p]
    assert talk.rows()[-1].raw == messages_of(body)[-1]


@pytest.mark.parametrize("where", ["head", "middle", "tail", "everywhere", "one line"])
@formats
async def test_a_data_url_in_text_is_never_cut_in_half(new_hook: NewHook, fmt: Format, where: str) -> None:
    talk = Conversation(new_hook(compress_over_tokens=1000, chars_per_token=2.5), "one")
    link, filler = f"![a picture]({DATA_URL})", listing(4000, where)
    texts = {
        "head": f"{link}\n{filler}",
        "middle": f"{filler}\n{link}\n{filler}",
        "tail": f"{filler}\n{link}",
        "everywhere": "\n".join([link, filler, link, filler, link]),
        "one line": f"<img src='{DATA_URL}'>" + filler.replace("\n", " ") + f"<img src='{DATA_URL}'>",
    }
    out = await talk.send(one_result(fmt, texts[where]))
    sent = text_of(output_of(messages_of(out)[-1]))
    assert len(sent) <= 1000 * 2.5 * CAP
    assert "base64," not in sent
    if where in ("head", "tail", "everywhere"):
        assert f"data URL of {len(DATA_URL)} characters left out" in sent
    assert len(re.findall(r"[A-Za-z0-9+/=]{100,}", sent)) == 0


# --- byte limit and picture limits, not tokens ------------------------------------------------------------------


def screenshots(fmt: Format, count: int, size: int) -> Json:
    """Exchanges of a running turn, each with a picture; in chat the pictures stand in typed messages."""
    made = [words(fmt).user("Click through it.")]
    for step in range(count):
        shot = picture(fmt, a.picture(10 + step, size))
        if fmt == "chat":
            made += exchange(fmt, f"call_{step}", "done", "click", n=step)
            made += [chat.assistant(f"Screen {step}."), chat.user(chat.text("Here."), shot)]
        else:
            made += exchange(fmt, f"call_{step}", [text_part(fmt, f"Screen {step}."), shot], "click", n=step)
    return wrap(fmt, *made)


async def test_a_body_over_the_providers_size_goes_out_below_it(new_hook: NewHook) -> None:
    talk = Conversation(new_hook(deadline_s=20), "one")
    body = screenshots("anthropic", 45, 800_000)
    assert len(orjson.dumps(body)) > 32 * 2**20
    out = await talk.send(body)
    assert len(orjson.dumps(out)) < 32_000_000 / 2
    assert check(out, "anthropic") == []


@formats
async def test_more_pictures_than_the_provider_takes_go_out_as_fewer(new_hook: NewHook, fmt: Format) -> None:
    talk, sizes = Conversation(new_hook(trim_at_tokens=1_000_000), "one"), []
    requests = growth(screenshots(fmt, 120, 100))
    for request in [*requests[len(requests) // 2 : -20 : 7], *requests[-20:]]:
        out = await talk.send(request)
        sizes.append(pictures_in(out))
        assert check(out, fmt) == []
    assert max(sizes) <= 90 < pictures_in(request)
    assert talk.trims() <= 3


@formats
async def test_bytes_trim_a_session_once_in_a_while_and_keep_its_prefix_between(new_hook: NewHook, fmt: Format) -> None:
    talk = Conversation(new_hook(max_body_bytes=300_000), "one")
    for request in growth(screenshots(fmt, 60, 15_000)):
        out = await talk.send(request)
        assert len(orjson.dumps(out)) <= 300_000
    assert 2 <= talk.trims() <= 8
    assert {event["reason"] for event in talk.events("trim")} == {"hard"}


async def test_documents_in_a_head_count_like_pictures_in_the_tail(new_hook: NewHook) -> None:
    talk = Conversation(new_hook(trim_at_tokens=1_000_000, max_media=40), "one")
    papers = [a.document(f"page {n}") for n in range(25)]
    messages = [a.user(a.text("Compare these."), *papers)]
    for step in range(20):
        shots = [picture("anthropic", a.picture(step * 5 + n, 100)) for n in range(3)]
        messages += exchange("anthropic", f"call_{step}", [a.text("Screen."), *shots], "click", n=step)
    for request in growth(a.body(*messages)):
        out = await talk.send(request)
        held = re.findall(rb'"type":"(?:image|document)"', orjson.dumps(messages_of(out)))
        assert len(held) <= 40
    assert talk.trims() >= 1


@formats
async def test_over_a_hard_limit_that_cannot_be_met_any_gain_counts(new_hook: NewHook, fmt: Format) -> None:
    """What the person pasted alone is more than the provider takes: only what has to stay goes with it."""
    talk = Conversation(new_hook(max_body_bytes=100_000), "one")
    body = a.session(fmt, exchanges=12, size=4_000)
    messages_of(body)[0] = {"role": "user", "content": "x" * 120_000}
    for request in growth(body):
        out = await talk.send(request)
        assert len(orjson.dumps(out)) < 120_000 + 4 * 7_000


@formats
async def test_results_that_went_out_short_stay_short_when_an_old_one_is_cleared_in_place(
    new_hook: NewHook, fmt: Format
) -> None:
    talk = Conversation(new_hook(compress_over_tokens=500, chars_per_token=2.5), "one")
    *_, body = growth(a.session(fmt, exchanges=6, size=8_000))
    for request in growth(body):
        out = await talk.send(request)
    cleared = a.session(fmt, exchanges=6, size=8_000)
    short = messages_of(a.session(fmt, exchanges=1, size=40))
    at = next(i for i, message in enumerate(short) if message != messages_of(cleared)[i])
    messages_of(cleared)[at] = short[at]
    again = await talk.send(cleared)
    assert len(orjson.dumps(again)) < len(orjson.dumps(out))
    assert len(talk.events("compression")) == 6


async def test_a_result_that_no_text_can_stand_for_goes_out_as_it_came(new_hook: NewHook) -> None:
    talk = Conversation(new_hook(compress_over_tokens=500), "one")
    found = {"type": "search_result", "source": "x", "title": "t", "content": [a.text(listing(20_000))]}
    for n, parts in enumerate(([found], [a.text("See:"), found])):
        history = [a.user("Look."), a.assistant(a.tool_use(f"t{n}")), a.results(a.tool_result(f"t{n}", parts))]
        body = a.body(*history)
        out = await talk.send(body)
        assert messages_of(out) == messages_of(body)
        talk.last = None
    assert talk.events("compression") == []
    assert all(row.shown for row in talk.rows())


def pictures_in(body: Json) -> int:
    return len(re.findall(rb'"type":"(?:image|image_url|input_image)"', orjson.dumps(messages_of(body))))


# --- one enormous line ------------------------------------------------------------------------------------------


def numbered(lines: int, size: int, end: str = "\n") -> str:
    return end.join(f"{n:06d}" + "".join(f" {n}.{i}" for i in range(size // 8)) for n in range(lines))


HUGE = {
    "1 line": numbered(1, 100_000),
    "30 lines": numbered(30, 60_000),
    "45 lines": numbered(45, 3_000),
    "60 lines": numbered(60, 30_000),
    "61 lines": numbered(61, 30_000),
    "62 short lines": numbered(62, 80),
    "5,000 lines": numbered(5_000, 40),
    "5,000 empty lines": "\n" * 5_000,
    "CR LF": numbered(61, 30_000, "\r\n"),
    "CR": numbered(61, 3_000, "\r"),
}
SHAPES: dict[str, tuple[Format, Callable[[str], Any]]] = {
    "A text": ("anthropic", lambda text: text),
    "A parts": ("anthropic", lambda text: [a.text(text)]),
    "A several parts": ("anthropic", lambda text: [a.text(half) for half in halves(text)]),
    "C text": ("chat", lambda text: text),
    "C parts": ("chat", lambda text: [chat.text(half) for half in halves(text)]),
    "R text": ("responses", lambda text: text),
    "R parts": ("responses", lambda text: [text_part("responses", half) for half in halves(text)]),
}


def halves(text: str) -> list[str]:
    at = text.find("\n", len(text) // 2)
    return [text[:at], text[at + 1 :]] if 0 < at < len(text) - 1 else [text]


@pytest.mark.parametrize("kind", HUGE)
@pytest.mark.parametrize("shape", SHAPES)
async def test_the_short_form_of_huge_lines_is_short_and_overlaps_nowhere(
    new_hook: NewHook, shape: str, kind: str
) -> None:
    fmt, shaped = SHAPES[shape]
    talk = Conversation(new_hook(compress_over_tokens=1200, chars_per_token=2.5, deadline_s=20), "one")
    body = one_result(fmt, shaped(HUGE[kind]))
    out = await talk.send(body)
    sent, original = text_of(output_of(messages_of(out)[-1])), text_of(output_of(messages_of(body)[-1]))
    assert len(sent) <= 1200 * 2.5 * CAP
    assert_ends_of(sent, original)
    assert talk.rows()[-1].raw == messages_of(body)[-1]
    assert without_text(messages_of(out)[-1]) == without_text(messages_of(body)[-1])


GAP = re.compile(r"\n\[openmem: (\d+) characters left out here\]\n")


def assert_ends_of(sent: str, original: str) -> None:
    """Header, beginning, what is left out, end: together as long as the original, and never the same twice."""
    header, _, rest = sent.partition("\n")
    plain = "\n".join(split_lines(original))
    assert f"{len(split_lines(original))} lines, {len(original)} characters" in header
    assert re.search(r'smart_compact_get\(id="[0-9a-f]{16}"\)', header)
    found = GAP.search(f"\n{rest}")
    assert found is not None
    head, tail = rest[: max(found.start() - 1, 0)], rest[found.end() - 1 :]
    assert plain.startswith(head)
    assert plain.endswith(tail)
    assert len(head) + int(found[1]) + len(tail) == len(original)
    assert int(found[1]) > 0
    assert len(split_lines(head)) <= 40
    assert len(split_lines(tail)) <= 20


def without_text(message: Json) -> Any:
    """The message with its result's text blanked and its text parts counted as one."""
    output = output_of(message)
    rest = orjson.loads(orjson.dumps(message).replace(orjson.dumps(output), b'"RESULT"'))
    return rest, type(output), [p for p in output if "text" not in p] if isinstance(output, list) else None


async def test_a_line_of_two_megabytes_is_shortened_and_kept_whole(new_hook: NewHook) -> None:
    hook = new_hook(deadline_s=20)
    talk, body = Conversation(hook, "one"), one_result("anthropic", numbered(1, 2_000_000))
    out = await talk.send(body)
    assert len(orjson.dumps(out)) < 20_000
    assert stored(hook, "one") == body["messages"]


async def test_a_shortened_result_keeps_its_error_flag_its_place_and_its_neighbours(new_hook: NewHook) -> None:
    talk = Conversation(new_hook(compress_over_tokens=1200, chars_per_token=2.5), "one")
    calls = [a.tool_use(f"toolu_{n}", path=f"{n}") for n in range(3)]
    answers = [
        a.tool_result("toolu_2", "short"),
        a.tool_result("toolu_0", numbered(45, 3_000), is_error=True),
        a.tool_result("toolu_1", [a.text("first"), a.text("second")]),
    ]
    out = await talk.send(a.body(a.user("Go."), a.assistant(*calls), a.results(*answers), model="claude-sonnet-4-5"))
    sent = out["messages"][-1]["content"]
    assert [sent[0], sent[2]] == [answers[0], answers[2]]
    assert {**sent[1], "content": ""} == {**answers[1], "content": ""}
    assert len(sent[1]["content"]) <= 1500


# --- huge call arguments ----------------------------------------------------------------------------------------


@formats
async def test_huge_arguments_count_and_leave_with_their_exchange_and_are_never_edited(
    new_hook: NewHook, fmt: Format
) -> None:
    talk = Conversation(new_hook(), "one")
    made = [words(fmt).user("Write twenty files.")]
    for step in range(20):
        made += exchange(fmt, f"call_{step}", "written", "Write", path=f"src/{step}.py", content=prose(60_000, step))
    for request in growth(wrap(fmt, *made, model="claude-sonnet-4-5")):
        out = await talk.send(request)
        assert len(orjson.dumps(messages_of(out))) < 125_000 * 2.6 + 10_000
        kept, given = (with_calls(one) for one in (out, request))
        assert kept == given[len(given) - len(kept) :]
        assert len(kept) >= min(len(given), 6), "the last three exchanges stay"
    assert 1 <= talk.trims() <= 7


def with_calls(body: Json) -> list[Json]:
    return [message for message in messages_of(body) if b"call_" in orjson.dumps(message)]


# --- nothing can be trimmed, and one endless turn ---------------------------------------------------------------


@formats
async def test_one_endless_turn_loses_its_oldest_exchanges_and_keeps_at_least_three(
    new_hook: NewHook, fmt: Format
) -> None:
    talk = Conversation(new_hook(trim_at_tokens=20_000, compress_over_tokens=0, chars_per_token=2.5), "one")
    made = [words(fmt).user("Go on until it works.")]
    for step in range(410):
        made += exchange(fmt, f"call_{step}", listing(1200, step), path=f"src/{step}.py")
    requests = growth(wrap(fmt, *made))
    for request in [*requests[2:400:90], *requests[401:]]:
        out = await talk.send(request)
        assert len(orjson.dumps(out)) < 22_000 * 2.5
        assert messages_of(out)[-4:] == messages_of(request)[-4:]
    assert talk.trims() <= 20
    assert len(messages_of(out)) < len(messages_of(request)) / 2


def unshrinkable(fmt: Format, kind: str) -> Json:
    said, big = words(fmt), prose(750_000, kind)
    if kind == "a typed message":
        return wrap(fmt, said.user(big))
    if kind == "the tools":
        tool = {**said.tool("Read"), "description": big}
        if fmt == "chat":
            tool = {**said.tool("read"), "function": {**said.tool("read")["function"], "description": big}}
        return wrap(fmt, said.user("Go."), tools=[tool])
    if fmt == "anthropic":
        return wrap(fmt, said.user("Go."), system=big)
    return wrap(fmt, chat.system(big) if fmt == "chat" else said.developer(big), said.user("Go."))


@pytest.mark.parametrize("kind", ["a typed message", "the tools", "the system prompt"])
@formats
async def test_what_can_not_be_trimmed_passes_as_it_is_and_is_told(new_hook: NewHook, fmt: Format, kind: str) -> None:
    talk, body = Conversation(new_hook(), "one"), unshrinkable(fmt, kind)
    key = "input" if fmt == "responses" else "messages"
    requests = [body]
    for step in range(10):
        requests.append({**body, key: [*requests[-1][key], *exchange(fmt, f"call_{step}", f"output {step}")]})
    for request in requests:
        out = await talk.send(request)
        lead = 1 if messages_of(out)[0].get("role") in ("system", "developer") else 0
        assert_untouched(messages_of(request)[lead:], messages_of(out)[lead:])
        told = out["system"] if fmt == "anthropic" else out.get("instructions") or messages_of(out)[0]["content"]
        assert json.dumps(NOTE)[1:-1] in json.dumps(told)
        others = {k: v for k, v in out.items() if k not in (key, "system", "instructions")}
        assert others == {k: v for k, v in request.items() if k in others}
    assert talk.trims() == 0
    told = talk.events("nothing_to_trim")
    assert 1 <= len(told) <= len(requests)
    await talk.send(requests[-1])
    assert talk.events("nothing_to_trim") == told


@formats
async def test_when_what_must_stay_is_over_the_limit_there_is_one_cut_and_no_other_without_a_gain(
    new_hook, fmt: Format
) -> None:
    talk = Conversation(new_hook(trim_at_tokens=20_000, compress_over_tokens=0, chars_per_token=2.5), "one")
    made = [words(fmt).user("Go.")]
    for step in range(3):
        made += exchange(fmt, f"early_{step}", listing(8_000, step))
    for step in range(3):
        made += exchange(fmt, f"big_{step}", listing(30_000, step))
    for step in range(10):
        made += exchange(fmt, f"small_{step}", f"output {step}")
    cuts = []
    for request in growth(wrap(fmt, *made))[6:]:
        await talk.send(request)
        cuts.append(talk.trims())
    assert cuts[0] == 1
    assert cuts[-1] <= 3, "each further cut gained at least 20 % of the limit"
    gains = [event["tokens_before"] - event["tokens_after"] for event in talk.events("trim")]
    assert all(gain >= 4_000 for gain in gains[1:])


# --- windows of different size ----------------------------------------------------------------------------------


def deployment(model: str, **info: Any) -> Json:
    return {"litellm_params": {"model": model, "api_key": "x"}, "model_info": info}


class Router:
    """As much of LiteLLM's router as a look-up uses."""

    def __init__(self, groups: dict[str, list[Json]], fallbacks: list[Json] | None = None) -> None:
        self.groups, self.fallbacks = groups, fallbacks or []
        self.model_list = [row for rows in groups.values() for row in rows]
        self.model_group_alias: Json = {}

    def get_model_list(self, model_name: str, team_id: str | None = None) -> list[Json]:
        return self.groups.get(model_name, [])


GROUPS = {
    "my-haiku-alias": [deployment("anthropic/claude-sonnet-4-5")],
    "cheap": [deployment("anthropic/claude-haiku-4-5")],
    "local-8k": [deployment("openai/local", max_input_tokens=8192)],
    "big-local": [deployment("openai/local", max_input_tokens=64_000, openmem={"trim_at_tokens": 40_000})],
    "told-too-much": [deployment("openai/local", max_input_tokens=64_000, openmem={"trim_at_tokens": 500_000})],
    "mixed": [deployment("anthropic/claude-sonnet-4-5"), deployment("openai/local", max_input_tokens=64_000)],
    "with-fallback": [deployment("anthropic/claude-sonnet-4-5")],
}
THRESHOLDS: dict[str, tuple[str | None, Json, int]] = {
    "haiku by name": ("claude-haiku-4-5", {}, 95_000),
    "an unknown haiku": ("claude-haiku-x", {}, 95_000),
    "sonnet": ("claude-sonnet-4-5", {}, 125_000),
    "with a provider and one million": ("anthropic/claude-sonnet-4-5[1m]", {}, 125_000),
    "one million and a limit of its own": ("claude-sonnet-4-5[1m]", {"header": "trim_at_tokens=700000"}, 700_000),
    "a limit above the window": ("claude-sonnet-4-5", {"header": "trim_at_tokens=700000"}, 180_000),
    "bedrock": ("bedrock/anthropic.claude-3-5-haiku-20241022-v1:0", {}, 95_000),
    "an alias that lies": ("my-haiku-alias", {}, 125_000),
    "an alias that hides": ("cheap", {}, 95_000),
    "a small local model": ("local-8k", {}, 8192 - 2048),
    "its own setting": ("big-local", {}, 40_000),
    "a setting above its window": ("told-too-much", {}, 64_000 - 16_000),
    "a group of two windows": ("mixed", {}, 64_000 - 16_000),
    "a smaller fallback": ("with-fallback", {}, 8192 - 2048),
    "a list of fallbacks": (None, {"models": ["claude-sonnet-4-5", "local-8k"]}, 8192 - 2048),
    "nobody knows": ("who-knows", {}, 125_000),
    "no model": (None, {}, 125_000),
    "by file": ("who-knows", {"file": {"trim_at_tokens": 60_000}}, 60_000),
    "by key": ("who-knows", {"file": {"trim_at_tokens": 60_000}, "key": {"trim_at_tokens": 70_000}}, 70_000),
    "by team": ("who-knows", {"file": {"trim_at_tokens": 60_000}, "team": {"trim_at_tokens": 70_000}}, 70_000),
    "header over key": ("big-local", {"key": {"trim_at_tokens": 30_000}, "header": "trim_at_tokens=20000"}, 20_000),
    "key over model": ("big-local", {"key": {"trim_at_tokens": 30_000}}, 30_000),
}


@pytest.fixture
def router(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Router(GROUPS, [{"with-fallback": ["local-8k"]}])
    proxy = SimpleNamespace(llm_router=made, master_key="sk-x", general_settings={}, user_custom_auth=None)
    monkeypatch.setitem(sys.modules, "litellm.proxy.proxy_server", proxy)


@pytest.mark.usefixtures("router")
@pytest.mark.parametrize("row", THRESHOLDS)
async def test_the_limit_of_a_model_is_the_one_the_documented_order_gives(new_hook: NewHook, row: str) -> None:
    model, said, expected = THRESHOLDS[row]
    key = make_key(metadata={"openmem": said.get("key")}, team_metadata={"openmem": said.get("team")})
    talk = Conversation(new_hook(**said.get("file", {})), "one", key=key, settings=said.get("header", ""))
    body = a.session("anthropic", turns=3, exchanges=6, size=2000)
    forced = [*body["messages"], a.assistant("Done."), a.user("/smart-compact")]
    more = {"model": said["models"]} if "models" in said else {}
    await talk.send({**body, "messages": forced, "model": model or "", **more})
    assert [event["trim_at"] for event in talk.events("trim")] == [expected]


GARBAGE = [0, -1, "abc", 1.5]


@pytest.mark.parametrize("value", GARBAGE)
@pytest.mark.parametrize("where", ["file", "environment"])
def test_a_wrong_limit_in_file_or_environment_is_refused_by_its_name(where: str, value: Any) -> None:
    given = {"trim_at_tokens": value} if where == "file" else {}
    environ = {"CONTEXT_TRIM_AT_TOKENS": str(value)} if where == "environment" else {}
    with pytest.raises(config.SettingsError, match=r"trim_at_tokens|CONTEXT_TRIM_AT_TOKENS") as refused:
        config.load(given, environ)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("value", GARBAGE)
@pytest.mark.parametrize("where", ["key", "team", "header"])
async def test_a_wrong_limit_met_at_run_time_is_ignored_with_an_event(new_hook, where: str, value: Any, caplog) -> None:
    block = {"openmem": {"trim_at_tokens": value}}
    key = make_key(**{"metadata" if where == "key" else "team_metadata": block if where != "header" else {}})
    talk = Conversation(new_hook(), "one", key=key, settings=f"trim_at_tokens={value}" if where == "header" else "")
    for _ in range(3):
        await talk.send(a.session("anthropic"))
        await talk.report(1000)
    catalog = next(talk.hook.compactor.store.pool.folder.glob("*/catalog.db"))
    with contextlib.closing(sqlite3.connect(catalog)) as db:
        told = db.execute("SELECT data FROM events WHERE kind = 'ignored_setting'").fetchall()
    assert [(event["where"], event["key"]) for event in (json.loads(data) for (data,) in told)] == [
        (where, "trim_at_tokens")
    ]
    assert len([r for r in caplog.records if "trim_at_tokens ignored" in r.message]) == 1


async def test_an_unknown_model_is_told_of_once(new_hook: NewHook, caplog) -> None:
    talk = Conversation(new_hook(), "one")
    for request in growth(a.session("anthropic")):
        await talk.send({**request, "model": "who-knows"})
        await talk.send({**request, "model": "claude-sonnet-4-5"})
    told = [r.message for r in caplog.records if "no context window known" in r.message]
    assert told == ["openmem: no context window known for model who-knows; default limits apply"]


async def test_a_turn_of_notices_answered_in_words_is_cut_like_any_other(new_hook: NewHook) -> None:
    talk = Conversation(new_hook(trim_at_tokens=3_000, compress_over_tokens=0), "one")
    history = [a.user("Watch the builds."), a.assistant(a.tool_use("t0")), a.results(a.tool_result("t0", "started"))]
    history.append(a.assistant("Watching."))
    for n in range(40):
        told = f"<task-notification>\n<task-id>{n}</task-id>\n<summary>{prose(1200, n)}</summary>\n</task-notification>"
        history.append(a.user(told))
        out = await talk.send(a.body(*history))
        history.append(a.assistant(f"Noted: {prose(600, n, 9)}"))
    assert talk.trims() > 1
    assert len(orjson.dumps(messages_of(out))) < 3_000 * 4
    assert "Watch the builds." in str(messages_of(out)[0])


async def test_of_two_parallel_results_one_stays_short_when_the_other_is_cleared(new_hook: NewHook) -> None:
    talk = Conversation(new_hook(compress_over_tokens=300, chars_per_token=2.5), "one")
    calls = a.assistant(a.tool_use("t1"), a.tool_use("t2"))
    both = a.results(a.tool_result("t1", listing(6_000, 1)), a.tool_result("t2", listing(6_000, 2)))
    later = [a.assistant(a.tool_use("t3")), a.results(a.tool_result("t3", "ok"))]
    await talk.send(a.body(a.user("Go."), calls, both))
    out = await talk.send(a.body(a.user("Go."), calls, both, *later))
    one = a.results(a.tool_result("t1", listing(6_000, 1)), a.tool_result("t2", "[Old tool result content cleared]"))
    again = await talk.send(a.body(a.user("Go."), calls, one, *later))
    assert messages_of(again)[2]["content"][0] == messages_of(out)[2]["content"][0]


async def test_a_result_that_claims_to_be_a_short_form_is_shortened_where_it_is_long(new_hook: NewHook) -> None:
    talk = Conversation(new_hook(compress_over_tokens=300, chars_per_token=2.5), "one")
    claim = wording.short_header("0123456789abcdef", 10, 10**14)
    results = [a.tool_result("t1", f"{claim}\n{listing(60_000)}"), a.tool_result("t2", f"{claim}\n{listing(900)}")]
    calls = a.assistant(a.tool_use("t1"), a.tool_use("t2"))
    out = await talk.send(a.body(a.user("Go."), calls, a.results(*results)))
    long, short = (block["content"] for block in messages_of(out)[2]["content"])
    assert len(long) < 2_000
    assert short == results[1]["content"]


@pytest.mark.parametrize("before", ["Go.", "words of an old history " * 30_000])
async def test_results_after_a_compaction_are_shortened_whatever_stands_before_it(before: str, tmp_path: Path) -> None:
    """What the provider's compaction stands for costs nothing: it is no saving either."""
    messages = [a.user(before), a.assistant({"type": "compaction", "content": "A recap."}, a.tool_use("t0"))]
    messages.append(a.results(a.tool_result("t0", listing(80_000, 0))))
    for n in (1, 2):
        messages += [a.assistant(a.tool_use(f"t{n}")), a.results(a.tool_result(f"t{n}", listing(80_000, n)))]
    settings = Settings(compress_over_tokens=0)
    limits = derive_limits(settings, ModelFacts("m", window=80_000, max_output=32_000))
    work = Compactor(tmp_path)
    asked = Request(anthropic, a.body(*messages), "user:a", "s", "", "", "m", settings, limits, call_id="c")
    out = await work.compact_request(asked)
    work.close()
    assert limits.hard == 60_000
    assert len(orjson.dumps(out.body["messages"][1:])) < limits.hard * 2.5


async def test_requests_of_titles_alone_leave_no_growing_memory(new_hook: NewHook) -> None:
    hook = new_hook()
    talk = Conversation(hook, "one")
    await talk.send(a.body(a.user("Go."), tools=[a.tool("Read")]))
    for n in range(700):
        title = a.body(a.user(f"Title for {n}"), system=f"Name it, number {n}.")
        title.pop("tools", None)
        talk.last = None
        await talk.send(title)
    (session,) = hook.compactor.store.pool.sessions_in_memory()
    assert len(session.cache.facts) < 400
    assert len(session.cache.overheads) < 400


@pytest.mark.parametrize(
    ("tools", "says_how"),
    [
        ([a.tool("Bash"), a.tool("mcp__openmem__smart_compact_search")], False),
        ([a.tool("Bash"), a.tool("ToolSearch")], True),
    ],
)
async def test_a_pointer_says_how_to_reach_tools_that_the_client_put_off(
    new_hook: NewHook, tools: list[Json], says_how: bool
) -> None:
    """Newer clients offer MCP tools only when the model looks for them: else it would be told to ask the person."""
    talk = Conversation(new_hook(trim_at_tokens=3000), "one")
    history = [a.user("Go.")]
    while not talk.trims():
        call = f"t{len(history)}"
        history += [a.assistant(a.tool_use(call)), a.results(a.tool_result(call, listing(900, call)))]
        out = await talk.send(a.body(*history, tools=tools))
    assert ("look for them with your tool search" in str(messages_of(out)[0])) is says_how


ORDER = "Touch nothing below vendor, whatever happens, and say so at the end. " * 4
BESIDE = {
    "beside a result": ([a.text(ORDER)], None),
    "in two blocks": (
        [a.text(f"{INTERJECTION_PREFIX}\nFirst of all be quick."), a.text(f"{INTERJECTION_PREFIX}\n{ORDER}")],
        None,
    ),
    "in a system message": ([], f"{INTERJECTION_PREFIX}\n{ORDER}\n\nIMPORTANT: look at it."),
    "in a system message of blocks": ([], [a.text(f"{INTERJECTION_PREFIX}\n{ORDER}")]),
}


def working(blocks: list[Json], system: Any, calls: int, result: int = 900) -> list[Json]:
    """A running turn with a person's words behind its first call, and so many calls after it."""
    history = [a.user("Begin."), a.assistant(a.tool_use("t0"))]
    history.append({"role": "user", "content": [a.tool_result("t0", listing(result, "t0")), *blocks]})
    history += [{"role": "system", "content": system}] if system else []
    for n in range(1, calls):
        history += [a.assistant(a.tool_use(f"t{n}")), a.results(a.tool_result(f"t{n}", listing(900, n)))]
    return history


@pytest.mark.parametrize("form", BESIDE)
async def test_what_a_person_says_while_the_model_works_stays_as_long_as_the_turn_runs(
    new_hook: NewHook, form: str
) -> None:
    talk = Conversation(new_hook(trim_at_tokens=6000), "one")
    for calls in range(2, 60):
        out = await talk.send(a.body(*working(*BESIDE[form], calls)))
        assert ORDER.strip() in json.dumps(out["messages"])
    assert talk.trims() > 2
    assert [row.role for row in talk.rows() if ORDER.strip() in row.text] == ["user"]


async def test_of_what_a_person_said_before_that_the_pointer_keeps_the_first_words(new_hook: NewHook) -> None:
    talk = Conversation(new_hook(trim_at_tokens=6000), "one")
    history = working([a.text(f"{INTERJECTION_PREFIX}\nUse the blue one.")], None, 6)
    history[-1]["content"].append(a.text(f"{INTERJECTION_PREFIX}\nNo, the green one."))
    for n in range(40):
        history += [a.assistant(a.tool_use(f"u{n}")), a.results(a.tool_result(f"u{n}", listing(900, n)))]
        out = await talk.send(a.body(*history))
    shown = json.dumps(out["messages"])
    assert f"{INTERJECTION_PREFIX}\\nNo, the green one." in shown
    assert f"{INTERJECTION_PREFIX}\\nUse the blue one." not in shown
    assert "Use the blue one." in str(out["messages"][0])


async def test_words_beside_a_result_that_fills_the_window_leave_with_it(new_hook: NewHook) -> None:
    """What may not stay must not keep the request over its limit."""
    talk = Conversation(new_hook(trim_at_tokens=6000, compress_over_tokens=0), "one")
    out = await talk.send(a.body(*working([a.text(ORDER)], None, 8, result=40_000)))
    assert talk.trims() == 1
    assert len(orjson.dumps(out["messages"])) < 18_000
    assert ORDER[:60] in str(out["messages"][0])


@pytest.mark.parametrize(
    "behind",
    [
        ["Another language model started to solve this problem and produced a summary of it: all is well.", "Go on."],
        ["One.", "Two."],
    ],
    ids=["a summary", "two others"],
)
async def test_a_trim_that_was_asked_for_long_ago_is_not_made_again(new_hook: NewHook, behind: list[str]) -> None:
    """After its own compaction Codex sends all that was typed in one run, an old command among it."""
    talk = Conversation(new_hook(trim_at_tokens=50_000), "one")
    history = [responses.user("Begin.")]
    for n in range(6):
        history += [responses.call(f"c{n}"), responses.output(f"c{n}", listing(900, n))]
    history += [responses.user("/smart-compact"), *map(responses.user, behind)]
    await talk.send(responses.body(*history))
    assert not talk.events("forced")
    await talk.send(responses.body(*history, responses.assistant("Done."), responses.user("/smart-compact")))
    assert len(talk.events("forced")) == 1
