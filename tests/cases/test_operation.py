"""Public bug reports about storage and operation: forged and double short forms, who can read the files, many
workers at once."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import re
import shutil
import sqlite3
import stat
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from blockbuster import blockbuster_ctx

from openmem_hook import fingerprint
from openmem_hook.compaction import wording
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.store import open_session, pool
from openmem_hook.store import session as session_module
from openmem_hook.store.session import unpack
from tests.cases.concurrent_agents import AGENTS, PROCESSES, history, reading, run_agents
from tests.conftest import CALL_TYPES, make_key
from tests.harness.conversation import SESSION_HEADER, Conversation, messages_of
from tests.kit import builders as a
from tests.kit.builders import FORMATS, Format, Json, chat, responses
from tests.kit.filler import listing
from tests.kit.histories import growth
from tests.kit.prefix import assert_untouched, canonical

NewHook = Callable[..., ContextHook]
SMALL: Json = {"compress_over_tokens": 1000, "chars_per_token": 2.5}
formats = pytest.mark.parametrize("fmt", FORMATS)
CATALOGUED = re.compile(r'smart_compact_get\(id="([0-9a-f]{16})"\)')


def with_result(fmt: Format, text: str, call: str = "call_1") -> Json:
    if fmt == "anthropic":
        return a.body(a.user("Look."), a.assistant(a.tool_use(call)), a.results(a.tool_result(call, text)))
    if fmt == "chat":
        return chat.body(chat.user("Look."), chat.assistant("", chat.call(call)), chat.result(call, text))
    return responses.body(responses.user("Look."), responses.call(call), responses.output(call, text))


def result_of(body: Json) -> str:
    message = messages_of(body)[-1]
    found = message.get("output") or message["content"]
    return str(found if isinstance(found, str) else found[0]["content"])


def session_file(hook: ContextHook) -> Path:
    return next(hook.compactor.store.pool.folder.glob("*/sessions/*.db"))


def rows(path: Path, sql: str, *values: Any) -> list[Any]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return db.execute(sql, values).fetchall()


# --- headers that only look like ours, and double compression -----------------------------------------------------

LONG = listing(8_000, "long")


@formats
async def test_every_id_in_a_header_leads_to_the_clients_own_bytes(new_hook: NewHook, fmt: Format) -> None:
    hook = new_hook(**SMALL)
    body = with_result(fmt, LONG)
    out = await Conversation(hook, "one").send(body)
    (found,) = CATALOGUED.findall(result_of(out))
    path = session_file(hook)
    assert rows(path.parent.parent / "catalog.db", "SELECT session FROM results WHERE id = ?", found) == [(path.stem,)]
    joined = "edits e JOIN records r ON r.key = e.key JOIN messages m USING (seq)"
    ((packed, text),) = rows(path, f"SELECT r.body, m.text FROM {joined} WHERE e.name = ?", found)
    assert fingerprint.load(unpack(packed, text)) == messages_of(body)[-1]


@formats
async def test_a_short_form_that_comes_back_is_left_as_it_is(new_hook: NewHook, fmt: Format) -> None:
    short = result_of(await Conversation(new_hook(**SMALL), "one").send(with_result(fmt, LONG)))
    assert short.startswith(wording.SHORT_FORM)
    again = new_hook(compress_over_tokens=200, chars_per_token=2.5)
    for session, key in (("two", None), ("three", make_key("a gateway before"))):
        talk = Conversation(again, session, key=key)
        assert result_of(await talk.send(with_result(fmt, short))) == short
        assert talk.events("compression") == []


FORGED = wording.short_header("0123456789abcdef", 10, 100)
FORGERIES = {
    "a header before more than it says": f"{FORGED}\n{LONG}",
    "a header with words for numbers": FORGED.replace("100", "many") + f"\n{LONG}",
    "a header with another id": FORGED.replace("0123456789abcdef", "../../etc/passwd") + f"\n{LONG}",
    "a header's beginning": f"{wording.SHORT_FORM}{LONG}",
    "a header in the middle": f"{LONG}\n{wording.short_header('0123456789abcdef', 10, 99999)}\n{LONG}",
}


@pytest.mark.parametrize("forgery", FORGERIES)
@formats
async def test_text_that_only_looks_like_a_short_form_is_a_result_like_any_other(
    new_hook, fmt: Format, forgery: str
) -> None:
    hook = new_hook(**SMALL)
    talk = Conversation(hook, "one")
    body = with_result(fmt, FORGERIES[forgery])
    sent = result_of(await talk.send(body))
    assert len(sent) <= 1250
    header = CATALOGUED.findall(sent.splitlines()[0])
    assert len(header) == 1
    assert header != ["0123456789abcdef"]
    assert rows(session_file(hook), "SELECT count(*) FROM edits WHERE name = ?", *header) == [(1,)]
    assert talk.rows()[-1].raw == messages_of(body)[-1]


@pytest.mark.parametrize("size", [2_400, 2_500, 2_501, 2_600, 3_000, 9_000])
@formats
async def test_a_result_is_shortened_only_where_that_makes_it_clearly_smaller(new_hook, fmt: Format, size: int) -> None:
    text = listing(size, "just over")
    sent = result_of(await Conversation(new_hook(**SMALL), "one").send(with_result(fmt, text)))
    assert sent == text or len(sent) <= 0.8 * len(text)
    assert (sent == text) == (size <= 2_500)


@pytest.mark.parametrize("size", [251, 300, 400])
async def test_a_header_longer_than_what_it_saves_is_not_sent(new_hook: NewHook, size: int) -> None:
    text = listing(size, "tiny")
    hook = new_hook(compress_over_tokens=100, chars_per_token=2.5)
    sent = result_of(await Conversation(hook, "one").send(with_result("anthropic", text)))
    assert sent == text or len(sent) <= 0.8 * len(text)


@formats
async def test_what_could_not_be_stored_is_sent_whole(new_hook: NewHook, key: Any, fmt: Format, monkeypatch) -> None:
    hook, body = new_hook(**SMALL, trim_at_tokens=1000), with_result(fmt, LONG * 3)

    def full(*given: Any) -> bool:
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(session_module, "claim", full)
    data = {**body, "proxy_server_request": {"headers": {SESSION_HEADER[fmt]: "one"}}}
    out = await hook.async_pre_call_hook(key, None, data, CALL_TYPES[fmt])
    assert hook.notices.failures == 1
    assert_untouched(messages_of(body)[-2:], messages_of(out)[-2:])
    monkeypatch.undo()
    later = await hook.async_pre_call_hook(key, None, data, CALL_TYPES[fmt])
    assert result_of(later) == result_of(body), "sent raw once, it is raw for good"


# --- who can read the files ---------------------------------------------------------------------------------------


@pytest.fixture
def wide_mask() -> Iterator[None]:
    before = os.umask(0o022)
    yield
    os.umask(before)


def modes(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): oct(stat.S_IMODE(path.stat().st_mode))
        for path in [folder, *folder.rglob("*")]
        if stat.S_IMODE(path.stat().st_mode) != (0o700 if path.is_dir() else 0o600)
    }


def kinds(folder: Path) -> set[str]:
    return {path.suffix for path in folder.rglob("*") if path.is_file()}


async def work(hook: ContextHook, fmt: Format = "anthropic") -> None:
    """A session with compressed results and a trim, reported."""
    talk = Conversation(hook, "one")
    for request in growth(a.session(fmt, exchanges=6, size=4_000)):
        await talk.send(request)
        await talk.report(2_000)
    assert talk.events("trim")
    assert talk.events("compression")


@pytest.mark.usefixtures("wide_mask")
async def test_all_folders_and_files_are_the_owners_alone(new_hook: NewHook, state_dir: Path) -> None:
    hook = new_hook(**SMALL, trim_at_tokens=1500)
    await work(hook)
    assert kinds(state_dir) >= {".db", ".db-wal", ".db-shm"}
    assert modes(state_dir / "context") == {}
    assert modes(state_dir) == {}


@pytest.mark.usefixtures("wide_mask")
async def test_files_of_a_wider_mode_are_narrowed_when_they_are_used(new_hook: NewHook, state_dir: Path) -> None:
    hook = new_hook(**SMALL, trim_at_tokens=1500)
    await work(hook)
    copied = state_dir.with_name("copied")
    shutil.copytree(state_dir, copied)  # a backup that was put back while the logs were there
    hook.compactor.close()
    shutil.rmtree(state_dir)
    copied.rename(state_dir)
    tenant = next((state_dir / "context").iterdir())
    for path in tenant.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    tenant.chmod(0o755)
    again = Conversation(new_hook(**SMALL, trim_at_tokens=1500), "one")
    await again.send(growth(a.session("anthropic", exchanges=7, size=4_000))[-1])
    assert modes(tenant) == {}


async def test_no_word_of_a_message_no_key_and_no_id_is_in_the_log(new_hook: NewHook, caplog, monkeypatch) -> None:
    caplog.set_level(logging.INFO)
    hook = new_hook(**SMALL, trim_at_tokens=1500)
    key = make_key("canary-user", "canary-key", api_key="canary-key", key_alias="canary-alias", team_id="canary-team")
    key.metadata = {"openmem": {"trim_at_tokens": "canary-setting", "secret": "canary-word"}}
    user = '{"device_id": "canary-device", "account_uuid": "canary-account", "session_id": "canary-session"}'
    for request in growth(a.session("anthropic", exchanges=6, size=4_000)):
        spoilt = [a.user("canary-typed"), *request["messages"]]
        data = {**request, "messages": spoilt, "metadata": {"user_id": user}, "litellm_call_id": "canary-call"}
        await hook.async_pre_call_hook(key, None, data, "anthropic_messages")
        await hook.async_log_success_event({"litellm_call_id": "canary-call"}, {"usage": {"prompt_tokens": 9}}, 0, 0)
    for fault in (
        sqlite3.OperationalError("canary-text"),
        ValueError("canary-text"),
        OSError(28, "full", "canary-path"),
    ):

        def fail(*given: Any, fault: Exception = fault) -> bool:
            raise fault

        monkeypatch.setattr(session_module, "claim", fail)
        more = {**data, "messages": [*spoilt, a.assistant("canary-said"), a.user(f"canary {fault!r}")]}
        await hook.async_pre_call_hook(key, None, more, "anthropic_messages")
    told = "\n".join(
        record.getMessage() + str(record.exc_info) for record in caplog.records if "openmem" in record.name
    )
    assert "passed without" in told
    assert "canary" not in told


# --- "database is locked" and a blocked event loop -----------------------------------------------------------------


@pytest.mark.parametrize(("count", "exchanges"), [(1, 1), (PROCESSES * AGENTS, 6)])
def test_a_hundred_agents_in_four_processes_lose_nothing_and_meet_no_lock(
    state_dir: Path, count: int, exchanges: int
) -> None:
    """How fast they are is for the benchmark to say: `python -m bench load`."""
    with reading(state_dir) as readers:
        seen = run_agents(state_dir, count, exchanges, seconds=4.0)
    assert seen.failures == []
    assert readers.faults == []
    assert readers.reads > 10
    assert readers.longest < 64 * 2**20
    assert sorted(seen.gaps)[len(seen.gaps) // 2] < 100
    assert_all_stored(state_dir, count, exchanges)


def assert_all_stored(state_dir: Path, count: int, exchanges: int) -> None:
    """Every message of every agent once, byte for byte, and the indexes sound."""
    paths = sorted(state_dir.glob("context/*/sessions/*.db"))
    assert len(paths) == count
    found: Counter[bytes] = Counter()
    for path in paths:
        sql = "SELECT r.body, m.text FROM records r JOIN messages m USING (seq)"
        found.update(canonical(fingerprint.load(unpack(body, text))) for body, text in rows(path, sql))
        assert rows(path, "PRAGMA quick_check") == [("ok",)]
    sent = (message for agent in range(PROCESSES * AGENTS) for message in history(agent, exchanges)[-1]["messages"])
    assert found == Counter(canonical(message) for message in sent)


async def test_a_message_of_20_megabytes_leaves_a_short_log_though_someone_always_reads(
    new_hook: NewHook, key: Any, state_dir: Path
) -> None:
    hook = new_hook(deadline_s=60, max_body_bytes=100_000_000, trim_at_tokens=1_000_000_000)
    body = with_result("anthropic", "parser ledger window buffer anchor 12345\n" * 500_000)
    more = {**body, "messages": [*body["messages"], a.assistant("Yes."), a.user("And?")]}
    with reading(state_dir) as readers:
        for request in (body, more):
            said = {"proxy_server_request": {"headers": {"x-session-id": "one"}}}
            await hook.async_pre_call_hook(key, None, request | said, "anthropic_messages")
            await asyncio.to_thread(tidied, hook)
    assert hook.notices.failures == 0
    assert readers.faults == []
    assert 2**20 < readers.longest < 64 * 2**20
    assert rows(session_file(hook), "SELECT count(*) FROM messages") == [(5,)]


async def test_a_log_is_cut_though_there_is_always_a_reader(new_hook: NewHook, state_dir: Path, monkeypatch) -> None:
    monkeypatch.setattr(open_session, "LOG_PAGES", 256)
    hook = new_hook(deadline_s=30, trim_at_tokens=5_000, chars_per_token=2.5)
    talk = Conversation(hook, "one")
    with reading(state_dir, 3) as readers:
        for request in growth(a.session("anthropic", turns=4, exchanges=20, size=2_000)):
            await talk.send(request)
            await asyncio.to_thread(tidied, hook)
    assert readers.faults == []
    assert readers.longest < 4 * 2**20


def tidied(hook: ContextHook) -> None:
    """Waits for what a request left to be done behind it."""
    while any(session.chores.is_running for session in hook.compactor.store.pool.sessions_in_memory()):
        time.sleep(0.005)


async def test_connections_stay_few_however_many_sessions_there_are(new_hook: NewHook, monkeypatch) -> None:
    for name, value in {"OPEN_SESSIONS": 4, "KNOWN_SESSIONS": 6, "UNSTORED_SESSIONS": 6, "OPEN_CATALOGS": 2}.items():
        monkeypatch.setattr(pool, name, value)
    hook = new_hook()
    most, before = 0, handles()
    for number in range(15):
        for user in ("one", "two", "three", "four"):
            talk = Conversation(hook, f"session-{number}", key=make_key(user))
            await talk.send(with_result("anthropic", "short"))
        most = max(most, handles() - before)
    assert len(list(hook.compactor.store.pool.folder.glob("*/sessions/*.db"))) == 60
    assert most <= (4 + 2 + 6) * 3 + 10
    assert len(hook.compactor.store.pool.sessions_in_memory()) <= 6 + 1


def handles() -> int:
    return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0  # noqa: PTH208


@formats
async def test_nothing_blocks_the_event_loop(new_hook: NewHook, key: Any, fmt: Format) -> None:
    hook = new_hook(**SMALL, trim_at_tokens=3000)
    with blockbuster_ctx():
        for number, request in enumerate(growth(a.session(fmt, exchanges=12, size=4_000))):
            said = {"litellm_call_id": f"call-{number}", "proxy_server_request": {"headers": {"x-session-id": "one"}}}
            await hook.async_pre_call_hook(key, None, {**request, **said}, CALL_TYPES[fmt])
            usage = {"usage": {"prompt_tokens": 1_000 + 600 * number}}
            await hook.async_log_success_event({"litellm_call_id": f"call-{number}"}, usage, None, None)
        if hook.compactor.store.sweeping is not None:
            await hook.compactor.store.sweeping
    assert hook.notices.failures == 0
    assert rows(session_file(hook), "SELECT count(*) FROM events WHERE kind = 'trim'") != [(0,)]
