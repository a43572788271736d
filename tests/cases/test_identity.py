"""Public bug reports about which conversation a request belongs to, and law L9 (alone)."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import itertools
import json
import re
import sqlite3
import subprocess
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from openmem_hook.gateway.hook import ContextHook
from openmem_hook.gateway.tenant import tenant_of
from openmem_hook.store import names
from tests.conftest import CALL_TYPES, make_key
from tests.gateway.test_identity import ACCOUNT, DEVICE, HOSTILE, ROWS
from tests.harness.conversation import POINTER, Conversation, messages_of
from tests.kit import builders as a
from tests.kit.builders import FORMATS, Format, Json, chat, responses
from tests.kit.filler import listing, prose
from tests.kit.histories import bodies, format_of, growth
from tests.kit.prefix import assert_prefix, assert_untouched, broken_at, check
from tests.laws.checked_session import checked_session

NewHook = Callable[..., ContextHook]
SMALL: Json = {"trim_at_tokens": 4000, "compress_over_tokens": 500, "chars_per_token": 2.5}
USER, TWIN = make_key("user-1"), make_key("user-2", "b" * 64)
BARE, BARE_TWIN = make_key(None, "c" * 64), make_key(None, "d" * 64)
formats = pytest.mark.parametrize("fmt", FORMATS)


async def send(
    hook: ContextHook,
    body: Json,
    headers: Any = None,
    key: SimpleNamespace = USER,
    fmt: Format | None = None,
    **fields: Any,
) -> Json:
    """What goes to the provider, of a request with just these headers; `fields` are what the gateway adds."""
    data = {
        **body,
        "litellm_call_id": f"call-{uuid.uuid4()}",
        "proxy_server_request": {"headers": headers or {}},
        **fields,
    }
    out = await hook.async_pre_call_hook(key, None, data, CALL_TYPES[fmt or format_of(body)])
    assert hook.notices.failures == 0, hook.notices.take_events()
    return {k: v for k, v in out.items() if k in body or k in ("system", "instructions")}


def stores(hook: ContextHook, key: SimpleNamespace | None = None) -> set[str]:
    """Names of the session databases on disk, of this key's tenant or of all."""
    folder = names.tenant_folder(tenant_of(key)) if key else "*"
    return {path.stem for path in hook.compactor.store.pool.folder.glob(f"{folder}/sessions/*.db")}


def rows(hook: ContextHook, sql: str, key: SimpleNamespace = USER) -> list[tuple[Any, ...]]:
    """Rows of all this key's sessions."""
    found: list[tuple[Any, ...]] = []
    for path in sorted(hook.compactor.store.pool.folder.glob(f"{names.tenant_folder(tenant_of(key))}/sessions/*.db")):
        db = sqlite3.connect(path)
        found += db.execute(sql).fetchall()
        db.close()
    return found


def grown(fmt: Format, turns: int = 2, seed: object = 0) -> list[Json]:
    """The requests of a session whose results `SMALL` compresses, and which is over its limit in the last half."""
    body = a.session(fmt, turns=turns, exchanges=12, size=1500, seed=seed)
    return growth({**body, "model": "claude-sonnet-4-5"})


def trimmed(out: Json) -> bool:
    return POINTER in orjson.dumps(out).decode().replace("\\n", "\n")


# --- session id in many places and formats ------------------------------------------------------------------


@pytest.mark.parametrize(("headers", "body", "expected", "thread"), ROWS.values(), ids=ROWS.keys())
@formats
async def test_requests_of_one_session_meet_in_the_file_of_the_id_that_the_client_said(
    new_hook: NewHook, caplog, fmt: Format, headers: Any, body: Json, expected: str | None, thread: str
) -> None:
    hook = new_hook()
    one, two = growth(a.session(fmt, exchanges=2))[-2:]
    for request in (one, two):
        await send(hook, request, headers, fmt=fmt, **copy.deepcopy(body))
    assert len(stores(hook)) == 1
    if expected is not None:
        assert stores(hook) == {names.session_name("user:user-1", expected)}
    everything = b"".join(p.read_bytes() for p in hook.compactor.store.pool.folder.rglob("*") if p.is_file())
    for canary in (ACCOUNT, DEVICE, "user-1", expected or ACCOUNT):
        assert canary.encode() not in everything
        assert canary not in caplog.text


@formats
async def test_ids_that_the_gateway_makes_for_each_request_name_no_session(new_hook: NewHook, fmt: Format) -> None:
    hook = new_hook()
    for request in growth(a.session(fmt, exchanges=4))[1:]:
        made = str(uuid.uuid4())
        inner = {"session_id": made, "litellm_session_id_generated": True, "trace_id": made}
        told = {
            "litellm_session_id": made,
            "litellm_trace_id": made,
            "litellm_call_id": made,
            "litellm_metadata": inner,
        }
        await send(hook, request, {"x-request-id": made, "x-litellm-trace-id": made}, **told)
    assert len(stores(hook)) == 1


# --- title and helper requests in the same session, at the same time --------------------------------------------


def title(fmt: Format, words: str) -> Json:
    asks = f"Write a title for this conversation: <quote>{words}</quote>"
    small: Json = {"tools": None, "model": "claude-haiku-4-5"}
    make = {
        "anthropic": lambda: a.body(a.user(asks), system="You write titles.", max_tokens=64, **small),
        "chat": lambda: chat.body(chat.system("You write titles."), chat.user(asks), max_tokens=64, **small),
        "responses": lambda: responses.body(responses.developer("You write titles."), responses.user(asks), **small),
    }
    return make[fmt]()


def quota(fmt: Format) -> Json:
    make = {
        "anthropic": lambda: a.body(a.user("quota"), system=None, tools=None, max_tokens=1),
        "chat": lambda: chat.body(chat.user("quota"), tools=None, max_tokens=1),
        "responses": lambda: responses.body(responses.user("quota"), tools=None, max_output_tokens=1),
    }
    return make[fmt]()


def compaction(fmt: Format, request: Json) -> Json:
    """A client's own compaction as Codex and OpenCode make it: the history and a wish, no tools."""
    asks = "Provide a detailed prompt for continuing our conversation above."
    said = responses.user(asks) if fmt == "responses" else a.user(asks)
    key = "input" if fmt == "responses" else "messages"
    return {k: v for k, v in request.items() if k != "tools"} | {key: [*request[key], said]}


@formats
async def test_titles_probes_and_a_clients_compaction_beside_a_session_leave_it_alone(new_hook, fmt: Format) -> None:
    requests = grown(fmt)
    quiet, noisy = new_hook(**SMALL), new_hook(**SMALL)
    said = {"x-session-id": "one"}
    alone = [await send(quiet, request, {"x-session-id": "quiet"}) for request in requests]
    beside = []
    for number, request in enumerate(requests):
        asides = [title(fmt, f"title-canary-{number}"), quota(fmt), compaction(fmt, request)]
        started = time.monotonic()
        got = await asyncio.gather(*(send(noisy, body, said) for body in (request, *asides)))
        assert time.monotonic() - started < 2
        beside.append(got[0])
        for body, out in zip(asides[:2], got[1:3], strict=True):
            assert not trimmed(out)
            assert messages_of(out)[-1] == messages_of(body)[-1]
    assert [bare(out) for out in beside] == [bare(out) for out in alone]
    assert trimmed(alone[-1])
    shown = "SELECT text FROM messages WHERE in_context AND text LIKE '%title-canary%'"
    assert rows(noisy, shown) == []


@formats
@pytest.mark.parametrize("headers", [{"x-session-id": "one"}, {}])
async def test_a_title_alone_has_a_usage_record_and_no_session(
    new_hook: NewHook, state_dir: Path, fmt: Format, headers: Json
) -> None:
    hook, body = new_hook(**SMALL), title(fmt, "A title")
    out = await send(hook, body, headers, litellm_call_id="call-title")
    assert messages_of(out) == messages_of(body)
    kwargs = {"litellm_call_id": "call-title", "call_type": CALL_TYPES[fmt]}
    await hook.async_log_success_event(kwargs, {"usage": {"prompt_tokens": 321}}, None, None)
    assert [one["prompt_tokens"] for one in usages_of_tenants(state_dir)] == [321]
    assert sessions_below(state_dir) == []


@formats
async def test_a_fork_without_a_cut_keeps_its_parents_short_results(new_hook: NewHook, fmt: Format) -> None:
    """Whatever rate was learned meanwhile: the fork's limit would be another one."""
    body = a.session(fmt, exchanges=4, size=9_000)
    out = await send(new_hook(compress_over_tokens=1000, chars_per_token=2.0), body, {"x-session-id": "parent"})
    twin = await send(new_hook(compress_over_tokens=4000, chars_per_token=4.0), body, {"x-session-id": "fork"})
    assert messages_of(twin) == messages_of(out) != messages_of(body)


def usages_of_tenants(state_dir: Path) -> list[Json]:
    found: list[Json] = []
    for catalog in state_dir.glob("context/*/catalog.db"):
        with contextlib.closing(sqlite3.connect(catalog)) as db:
            found += [orjson.loads(data) for (data,) in db.execute("SELECT data FROM events WHERE kind = 'usage'")]
    return found


def sessions_below(state_dir: Path) -> list[Path]:
    return list(state_dir.glob("context/*/sessions/*.db"))


def bare(out: Json) -> str:
    """The body without what names its session."""
    return re.sub(r"[0-9a-f]{16}", "", orjson.dumps(messages_of(out)).decode())


@formats
async def test_title_and_main_turn_that_start_a_session_together_never_mix(new_hook: NewHook, fmt: Format) -> None:
    hook = new_hook()
    first = grown(fmt)[0]
    for number in range(50):
        said = {"x-session-id": f"session-{number}"}
        pair = [first, title(fmt, f"title-canary-{number}")]
        main, aside = await asyncio.gather(*(send(hook, body, said) for body in pair[:: 1 if number % 2 else -1]))
        if not number % 2:
            main, aside = aside, main
        assert messages_of(main)[-1] == messages_of(first)[-1]
        assert messages_of(aside)[-1] == messages_of(pair[1])[-1]
    stored = [text for (text,) in rows(hook, "SELECT text FROM messages")]
    assert not any("title-canary" in text for text in stored)
    assert Counter(stored).most_common(1)[0][1] == 50


@formats
async def test_a_side_question_that_is_not_continued_changes_nothing_in_the_thread(new_hook, fmt: Format) -> None:
    requests = grown(fmt)
    quiet, noisy = new_hook(**SMALL), new_hook(**SMALL)
    said = {"x-session-id": "one"}
    alone = [await send(quiet, request, {"x-session-id": "quiet"}) for request in requests]
    beside = []
    for number, request in enumerate(requests):
        beside.append(await send(noisy, request, said))
        asks = a.user(f"By the way, what is {number}?") if fmt != "responses" else responses.user(f"And {number}?")
        key = "input" if fmt == "responses" else "messages"
        await send(noisy, {**request, key: [*request[key], asks]}, said)
    assert [bare(out) for out in beside] == [bare(out) for out in alone]


# --- no session id at all ---------------------------------------------------------------------------------------


def chat_pairs() -> dict[str, tuple[tuple[SimpleNamespace, list[Json]], tuple[SimpleNamespace, list[Json]]]]:
    hello, other = chat.assistant("Hello, what shall I do?"), chat.assistant("Good morning. Where do we start?")
    reminder = chat.user("<system-reminder>\nThe project is big. " + "Be brief. " * 400 + "\n</system-reminder>")
    pictures = [chat.user(chat.image(a.picture(side))) for side in (2, 3)]
    go_on = chat.user("Go on.")
    return {
        "two keys": ((USER, [chat.user("Fix it."), hello, go_on]), (TWIN, [chat.user("Fix it."), hello, go_on])),
        "keys without users": (
            (BARE, [chat.user("Fix it."), hello, go_on]),
            (BARE_TWIN, [chat.user("Fix it."), hello, go_on]),
        ),
        "first answers": ((USER, [chat.user("Fix it."), hello, go_on]), (USER, [chat.user("Fix it."), other, go_on])),
        "tasks after the same reminders": (
            (USER, [reminder, chat.user("Fix the parser."), hello, go_on]),
            (USER, [reminder, chat.user("Fix the writer."), hello, go_on]),
        ),
        "pictures": ((USER, [pictures[0], hello, go_on]), (USER, [pictures[1], hello, go_on])),
        "hi": ((USER, [chat.user("hi"), hello, go_on]), (USER, [chat.user("hi"), other, go_on])),
        "calls": (
            (USER, [chat.user("hi"), chat.assistant("", chat.call("call_1", path="a")), chat.result("call_1")]),
            (USER, [chat.user("hi"), chat.assistant("", chat.call("call_2", path="a")), chat.result("call_2")]),
        ),
    }


PAIRS = chat_pairs()


@pytest.mark.parametrize("pair", PAIRS)
async def test_conversations_without_an_id_that_begin_alike_do_not_share_a_store(new_hook: NewHook, pair: str) -> None:
    hook = new_hook()
    found = []
    for key, messages in PAIRS[pair]:
        before = {str(p) for p in hook.compactor.store.pool.folder.glob("*/sessions/*.db")}
        await send(hook, chat.body(*messages), {"x-forwarded-for": "10.0.0.1"}, key)
        found.append({str(p) for p in hook.compactor.store.pool.folder.glob("*/sessions/*.db")} - before)
    assert [len(new) for new in found] == [1, 1]


@formats
async def test_a_conversation_without_an_id_keeps_its_store_from_its_second_request_on(new_hook, fmt: Format) -> None:
    hook = new_hook(**SMALL)
    requests = grown(fmt)
    outs = [await send(hook, request) for request in requests]
    assert len(stores(hook)) == 1
    assert trimmed(outs[-1])
    for before, after in itertools.pairwise(outs):
        if trimmed(before) or not trimmed(after):
            assert broken_at(before, after, fmt) is None or rows(hook, "SELECT 1 FROM events WHERE kind = 'trim'")[1:]
    assert rows(hook, "SELECT count(*) FROM messages") == [(len(messages_of(requests[-1])),)]


# --- session id as a file name ----------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["header", "cache key", "metadata", "user"])
async def test_hostile_ids_make_as_many_files_below_the_root_and_nothing_elsewhere(
    new_hook, tmp_path, place: str
) -> None:
    hook = new_hook()
    canary = tmp_path / "canary"
    canary.mkdir()
    ids = [hostile for hostile in HOSTILE if hostile.strip()] + [f"../../../{canary.name}/x", str(canary / "y")]
    body = responses.body(responses.user("hi"), responses.assistant("Hello."), responses.user("Go on."))
    for hostile in ids:
        headers = {"x-session-id": hostile} if place == "header" else {"x-session-id": "s"} if place == "user" else {}
        more: Json = {
            "cache key": {"prompt_cache_key": hostile},
            "metadata": {"metadata": {"session_id": hostile}},
        }.get(place, {})
        await send(hook, body, headers, make_key(hostile) if place == "user" else USER, **more)
    root = hook.compactor.store.pool.folder
    made = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert all(path.resolve().is_relative_to(root) for path in made)
    assert len([path for path in made if path.parent.name == "sessions" and path.suffix == ".db"]) == len(ids)
    assert all(
        re.fullmatch(r"[0-9a-f]{32}/(catalog|sessions/[0-9a-f]{16})\.db(-wal|-shm)?", p.relative_to(root).as_posix())
        for p in made
    )
    assert list(canary.iterdir()) == []


# --- restart and resume -----------------------------------------------------------------------------------------


@formats
async def test_a_restart_changes_no_byte(new_hook: NewHook, fmt: Format) -> None:
    requests = grown(fmt)
    lasting, outs = Conversation(new_hook(**SMALL), "lasting"), []
    for request in requests:
        restarted = Conversation(new_hook(**SMALL), "restarted")
        restarted.last = outs[-1] if outs else None
        out = await restarted.send(request)
        await restarted.report(len(orjson.dumps(out)) // 3)
        outs.append((request, out))
        assert bare(out) == bare(await lasting.send(request))
        await lasting.report(len(orjson.dumps(out)) // 3)
    assert trimmed(outs[-1][1])


ELSEWHERE = """
import asyncio, json, sys
from pathlib import Path
from tests.conftest import CALL_TYPES, make_key
from openmem_hook import config
from openmem_hook.compactor import Compactor
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.gateway.notices import Notices

folder, work = sys.argv[1], json.load(sys.stdin)
base = config.load(work["settings"], {"OPENMEM_STATE_DIR": folder})
hook = ContextHook(base, Compactor(Path(folder) / "context"), Notices())

async def main():
    for fmt, headers, body in work["requests"]:
        data = {**body, "litellm_call_id": fmt, "proxy_server_request": {"headers": headers}}
        out = await hook.async_pre_call_hook(make_key("user-1"), None, data, CALL_TYPES[fmt])
        print(json.dumps(out.get("messages") or out["input"]))

asyncio.run(main())
hook.compactor.close()
"""


async def test_a_new_process_sends_the_same_bytes(new_hook: NewHook, state_dir: Path) -> None:
    here, work = [], []
    for fmt in FORMATS:
        headers = {"x-session-id": f"session-{fmt}"}
        hook = new_hook(**SMALL)
        for request in grown(fmt):
            last = await send(hook, request, headers)
        here.append(messages_of(last))
        work.append((fmt, headers, request))
    told = json.dumps({"settings": SMALL, "requests": work})
    run = [sys.executable, "-c", ELSEWHERE, str(state_dir)]
    done = await asyncio.to_thread(subprocess.run, run, input=told, capture_output=True, text=True, check=True)
    assert [json.loads(line) for line in done.stdout.splitlines()] == here


@formats
async def test_the_same_history_under_a_new_id_is_trimmed_at_once_and_the_old_session_keeps_its_data(
    new_hook, fmt
) -> None:
    hook = new_hook(**SMALL)
    requests = grown(fmt)
    for request in requests[:-1]:
        last = await send(hook, request, {"x-session-id": "old"})
    before = rows(hook, "SELECT text FROM messages ORDER BY seq")
    resumed = await send(hook, requests[-1], {"x-session-id": "new"})
    assert_prefix(last, resumed, fmt)
    assert trimmed(resumed)
    old = sqlite3.connect(
        next(hook.compactor.store.pool.folder.glob(f"*/sessions/{names.session_name('user:user-1', 'old')}.db"))
    )
    assert old.execute("SELECT text FROM messages ORDER BY seq").fetchall() == before
    old.close()


@formats
@pytest.mark.parametrize("other", [TWIN, BARE, BARE_TWIN])
async def test_nobody_else_adopts_a_cut_whatever_history_they_send(new_hook: NewHook, fmt: Format, other: Any) -> None:
    hook, roomy = new_hook(**SMALL), new_hook(trim_at_tokens=100_000, compress_over_tokens=1000)
    for request in grown(fmt):
        last = await send(hook, request, {"x-session-id": "one"})
    assert trimmed(last)
    for said in ("one", "two"):
        out = await send(roomy, request, {"x-session-id": said}, other)
        assert_untouched(messages_of(request)[-5:], messages_of(out)[-5:])
        assert not trimmed(out)


# --- retries must be harmless -----------------------------------------------------------------------------------


@formats
async def test_retries_one_after_another_and_at_once_are_the_same_and_stored_once(
    new_hook: NewHook, fmt: Format
) -> None:
    one, two = new_hook(**SMALL), new_hook(**SMALL)
    requests, said = grown(fmt), {"x-session-id": "one"}
    for number, request in enumerate(requests):
        outs = [await send(one, request, said) for _ in range(3)] if number % 2 else []
        outs += await asyncio.gather(*(send(hook, request, said) for hook in (one, two, one, two, one)))
        assert len({orjson.dumps(messages_of(out)) for out in outs}) == 1
    assert trimmed(outs[0])
    assert rows(one, "SELECT count(*), count(DISTINCT seq) FROM messages") == [(len(messages_of(requests[-1])),) * 2]
    cuts, swaps = rows(one, "SELECT sum(kind = 'cut'), sum(kind = 'swap') FROM edits")[0]
    kinds = Counter(kind for (kind,) in rows(one, "SELECT kind FROM events"))
    assert (kinds["trim"], kinds["compression"]) == (cuts, swaps)


@formats
async def test_a_retry_is_not_trimmed_by_what_the_first_try_was_reported_to_cost(
    new_hook: NewHook, fmt: Format
) -> None:
    hook = new_hook(**SMALL)
    talk, requests = Conversation(hook, "one"), grown(fmt)[:11]
    for request in requests[:-1]:
        first = await talk.send(request)
    await talk.report(9_000)
    assert await talk.send(requests[-2]) == first
    assert talk.trims() == 0
    assert trimmed(await talk.send(requests[-1]))


@formats
async def test_the_same_words_at_other_places_are_other_messages(new_hook: NewHook, fmt: Format) -> None:
    make = {"anthropic": _repeating, "chat": _repeating_chat, "responses": _repeating_items}
    body = make[fmt]()
    hook = new_hook()
    for request in [*growth(body), body, body]:
        await send(hook, request, {"x-session-id": "one"})
    stored = Counter(text for (text,) in rows(hook, "SELECT text FROM messages"))
    assert stored["continue"] == 3
    assert stored[SAME] == 3
    assert sum(stored.values()) == len(messages_of(body))


SAME = "the same output"


def _repeating() -> Json:
    step = [
        [a.user("continue"), a.assistant(a.tool_use(call)), a.results(a.tool_result(call, SAME))]
        for call in ("toolu_1", "toolu_2", "toolu_3")
    ]
    return a.body(*step[0], a.assistant("Done."), *step[1], a.assistant("Done."), *step[2])


def _repeating_chat() -> Json:
    step = [
        [chat.user("continue"), chat.assistant("", chat.call(call)), chat.result(call, SAME)]
        for call in ("call_1", "call_2", "call_3")
    ]
    return chat.body(
        chat.system("Be brief."), *step[0], chat.assistant("Done."), *step[1], chat.assistant("Done."), *step[2]
    )


def _repeating_items() -> Json:
    step = [
        [responses.user("continue"), responses.call(call), responses.output(call, SAME)]
        for call in ("call_1", "call_2", "call_3")
    ]
    return responses.body(*step[0], responses.assistant("Done."), *step[1], responses.assistant("Done."), *step[2])


RECORD = "<command-message>smart-compact</command-message>\n<command-name>/smart-compact</command-name>"


@pytest.mark.parametrize("command", ["/smart-compact", RECORD])
@formats
async def test_a_forced_trim_happens_once_for_each_time_it_was_typed(new_hook, fmt: Format, command: str) -> None:
    hook = new_hook(compress_over_tokens=0)
    talk, said = Conversation(hook, "one"), {"anthropic": a, "chat": chat, "responses": responses}[fmt]
    body = {**a.session(fmt, turns=3, exchanges=6, size=2000), "model": "claude-sonnet-4-5"}
    key = "input" if fmt == "responses" else "messages"
    done = said.assistant("All done.")
    forced = {**body, key: [*body[key], done, said.user(command)]}
    outs = [await talk.send(forced) for _ in range(3)]
    outs += await asyncio.gather(*(talk.send(forced) for _ in range(5)))
    assert len({orjson.dumps(out) for out in outs}) == 1
    assert trimmed(outs[0])
    assert len(talk.events("forced")) == len(talk.events("trim")) == 1
    assert talk.events("nothing_to_trim") == []
    more = [said.assistant("Trimmed."), said.user(prose(4000, "more")), said.assistant("Noted."), said.user(command)]
    for _ in range(3):
        again = await talk.send({**forced, key: [*forced[key], *more]})
    assert len(talk.events("forced")) == 2
    assert broken_at(outs[0], again, fmt) is not None


# --- L9: alone --------------------------------------------------------------------------------------------------

TIGHT: Json = {"trim_at_tokens": 1200, "compress_over_tokens": 300}
PHASES = [Phase.generate]
KEYS = {"users": (USER, TWIN), "keys": (BARE, BARE_TWIN), "a user and a key": (USER, BARE_TWIN)}


@pytest.mark.laws
@formats
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, phases=PHASES)
@given(data=st.data())
def test_l9_two_keys_with_one_session_id_never_share_a_head_a_row_or_a_file(fmt: Format, data: Any) -> None:
    body = {**data.draw(bodies(fmt, most_turns=3, most_steps=4, size=420)), "model": "claude-sonnet-4-5"}
    session = data.draw(st.sampled_from(["session-1", "session-1", ""]))
    mine, theirs = data.draw(st.sampled_from(list(KEYS.values())))
    own, foreign = (names.tenant_folder(tenant_of(key)) for key in (mine, theirs))
    with checked_session(**TIGHT) as walk, checked_session(**TIGHT) as alone:
        walk.join(trim_at_tokens=100_000, compress_over_tokens=0, standing_instruction=False)
        for request in growth(body):
            walk.send(request, 0, session, key=mine)
            assert walk.send(request, 1, session, key=theirs) == request
            alone.send(request, 0, session, key=mine)
        context = walk.folder / "context"
        assert own != foreign
        assert {path.name for path in context.glob("*")} <= {own, foreign}
        assert _contents(context / own) == _contents(alone.folder / "context" / own)
        assert not any(table == "edits" for table, _ in _contents(context / foreign))
        files = [path.stem for path in context.glob("*/sessions/*.db")]
        assert len(set(files)) == len(files)


def _contents(tenant: Path) -> list[tuple[str, Any]]:
    """Rows and edits of all sessions of a tenant, times aside."""
    found: list[tuple[str, Any]] = []
    for path in sorted(tenant.glob("sessions/*.db")):
        db = sqlite3.connect(path)
        found += [("records", row) for row in db.execute("SELECT key, digest, body FROM records ORDER BY seq")]
        found += [("messages", row) for row in db.execute("SELECT text, in_context, thread FROM messages ORDER BY seq")]
        found += [("edits", row) for row in db.execute("SELECT kind, name, key, payload FROM edits ORDER BY id")]
        db.close()
    return found


async def test_the_owners_cut_stays_when_another_key_sends_its_session_id_and_other_words(new_hook: NewHook) -> None:
    hook = new_hook(**SMALL)
    requests, said = grown("anthropic"), {"x-session-id": "one"}
    for request in requests[:-2]:
        before = await send(hook, request, said)
    intruder = a.body(a.user("My own question."), a.assistant("Yes?"), a.user(listing(30_000, "theirs")))
    for _ in range(2):
        out = await send(hook, intruder, said, TWIN)
        assert b"Task 0" not in orjson.dumps(out)
    after = await send(hook, requests[-2], said)
    assert_prefix(before, after, "anthropic")
    assert rows(hook, "SELECT count(*) FROM messages", TWIN) == [(3,)]
    assert rows(hook, "SELECT count(*) FROM messages WHERE text LIKE '%My own%'") == [(0,)]


# --- one session through several APIs, and histories that repeat themselves ----------------------------------------


def talk_of(fmt: Format, turns: int) -> Json:
    words: Any = {"anthropic": a, "chat": chat, "responses": responses}[fmt]
    said = [(words.user(f"Q{n} {prose(500, n)}"), words.assistant(f"A{n} {prose(500, n, 2)}")) for n in range(turns)]
    return words.body(*(message for pair in said for message in pair), words.user(f"Now {turns}."))


@formats
@pytest.mark.parametrize("other", FORMATS)
async def test_a_session_that_changes_its_api_gets_no_head_of_the_other(
    new_hook: NewHook, fmt: Format, other: Format
) -> None:
    hook = new_hook(trim_at_tokens=2_500, compress_over_tokens=0)
    headers = {"x-session-id": "one"}
    for turns in range(1, 9):
        assert not check(await send(hook, talk_of(fmt, turns), headers, fmt=fmt), fmt)
    out = await send(hook, talk_of(other, 9), headers, fmt=other)
    assert not check(out, other)
    assert trimmed(out)


@pytest.mark.parametrize("unique", [True, False])
async def test_an_old_result_cleared_in_a_history_that_repeats_itself_takes_no_newer_message_along(
    new_hook: NewHook, unique: bool
) -> None:
    """A polling loop whose server gives each call the same id: many places look like the anchor's."""

    def history(polls: int, cleared: bool = False) -> Json:
        made = [chat.system("You are."), chat.user("Poll until the build is green.")]
        for n in range(6 + polls):
            call = f"call_{n}" if unique else "call_0"
            said = listing(800, n) if n < 6 else "pending " + "." * 300
            said = "[Old tool result content cleared]" if cleared and n == 1 else said
            made += [chat.assistant(None, chat.call(call, path=f"f{min(n, 6)}")), chat.result(call, said)]
        return chat.body(*made)

    line = Conversation(new_hook(trim_at_tokens=3_000, compress_over_tokens=0))
    for polls in range(1, 24):
        before = await line.send(history(polls))
    trims = line.trims()
    line.last = None
    after = await line.send(history(24, cleared=True))
    assert trims == line.trims() >= 1
    assert len(messages_of(after)) == len(messages_of(before)) + 2
