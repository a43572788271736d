"""Sessions that nobody came back to are deleted whole, and none that is in use."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from openmem_hook import config
from openmem_hook.compactor import Compactor
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.gateway.notices import Notices
from openmem_hook.store import catalog, names, retention
from openmem_hook.store import session as session_module
from openmem_hook.store.pool import Pool
from tests.conftest import make_key
from tests.kit.builders import session

HOUR, DAY = 3_600.0, 86_400.0
START = 1_700_000_000.0
OTHER = make_key("user-2")


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def worker(state_dir: Path, clock: Clock) -> Iterator[Callable[..., ContextHook]]:
    """Makes hooks over one store whose time is `clock`."""
    made: list[ContextHook] = []

    def build(**settings: Any) -> ContextHook:
        base = config.load(settings, {"OPENMEM_STATE_DIR": str(state_dir)})
        made.append(ContextHook(base, Compactor(state_dir / "context", clock), Notices()))
        return made[-1]

    yield build
    for hook in made:
        hook.compactor.close()


async def use(hook: ContextHook, session_id: str, key: Any = None, **size: int) -> None:
    """One request of a session, and the sweep it may have started."""
    said = {"proxy_server_request": {"headers": {"x-session-id": session_id}}}
    body = session("anthropic", **size) | said
    await hook.async_pre_call_hook(key or make_key(), None, body, "anthropic_messages")
    if hook.compactor.store.sweeping is not None:
        await hook.compactor.store.sweeping
    await asyncio.to_thread(tidied, hook)
    assert hook.notices.failures == 0


def tidied(hook: ContextHook) -> None:
    """Waits for what a request left to be done behind it."""
    while any(one.chores.is_running for one in hook.compactor.store.pool.sessions_in_memory()):
        time.sleep(0.01)


def folder_of(hook: ContextHook, user: str = "user-1") -> Path:
    return hook.compactor.store.pool.folder / names.tenant_folder(f"user:{user}")


def path_of(hook: ContextHook, session_id: str, user: str = "user-1") -> Path:
    name = names.session_name(f"user:{user}", session_id)
    return folder_of(hook, user) / "sessions" / f"{name}.db"


def files_of(hook: ContextHook, session_id: str, user: str = "user-1") -> list[str]:
    path = path_of(hook, session_id, user)
    return sorted(p.name for p in path.parent.glob(f"{path.stem}*"))


def rows(hook: ContextHook, sql: str, user: str = "user-1") -> list[tuple[Any, ...]]:
    tenant = names.tenant_folder(f"user:{user}")
    return hook.compactor.store.pool.with_catalog(tenant, lambda db: db.execute(sql).fetchall())


def stored(hook: ContextHook, session_id: str) -> int:
    """Messages in the session's file, as a new worker finds them."""
    db = sqlite3.connect(path_of(hook, session_id))
    try:
        return db.execute("SELECT count(*) FROM messages").fetchone()[0]
    finally:
        db.close()


def age(path: Path, when: float) -> None:
    os.utime(path, (when, when))


async def test_a_session_idle_longer_than_the_ttl_is_deleted_whole(worker, clock) -> None:
    hook = worker(ttl_days=30, trim_at_tokens=3000)
    await use(hook, "old", exchanges=9, size=20_000)
    leftover = path_of(hook, "old").with_name(f"{path_of(hook, 'old').name}.damaged-1-wal")
    leftover.write_bytes(b"damaged")
    age(leftover, clock.now + 30 * DAY)
    assert rows(hook, "SELECT * FROM anchors")
    assert rows(hook, "SELECT * FROM results")
    clock.now += 30 * DAY + HOUR
    await use(hook, "new")
    assert files_of(hook, "old") == []
    assert [one.name for one in hook.compactor.store.pool.sessions_in_memory()] == [path_of(hook, "new").stem]
    assert rows(hook, "SELECT name FROM sessions") == [(path_of(hook, "new").stem,)]
    assert rows(hook, "SELECT * FROM anchors") == rows(hook, "SELECT * FROM results") == []


async def test_a_session_used_within_the_ttl_stays(worker, clock) -> None:
    hook = worker(ttl_days=30)
    await use(hook, "old")
    clock.now += 20 * DAY
    await use(hook, "old")
    clock.now += 29 * DAY
    await use(hook, "new")
    assert files_of(hook, "old")


async def test_a_ttl_of_zero_keeps_all(worker, clock) -> None:
    hook = worker(ttl_days=0)
    await use(hook, "old")
    clock.now += 36_500 * DAY
    await use(hook, "new")
    assert files_of(hook, "old")


async def test_a_tenant_who_never_comes_back_expires_by_the_requests_of_others(worker, clock) -> None:
    hook = worker(ttl_days=1)
    await use(hook, "old")
    clock.now += 2 * DAY
    await use(hook, "new", OTHER)
    assert files_of(hook, "old") == []
    assert files_of(hook, "new", "user-2")


async def test_of_all_workers_one_sweeps_a_tenant_and_once_an_hour(worker, clock) -> None:
    one, two = worker(ttl_days=1), worker(ttl_days=1)
    await use(one, "old")
    clock.now += DAY - 60
    await use(one, "new")
    clock.now += HOUR - 60  # "old" is idle for long enough now, but the last sweep was less than an hour ago
    await use(two, "newer")
    await use(one, "newer")
    assert files_of(one, "old")
    clock.now += 60
    await use(one, "newer")
    assert files_of(one, "old") == []


async def test_a_session_that_a_request_is_working_on_stays(worker, clock) -> None:
    hook = worker(ttl_days=1)
    await use(hook, "old")
    clock.now += 2 * DAY
    in_use = hook.compactor.store.pool.sessions_in_memory()[0]
    with in_use.lock:
        await use(hook, "new")
        assert files_of(hook, "old")
    clock.now += HOUR
    await use(hook, "new")
    assert files_of(hook, "old") == []


@pytest.mark.parametrize(("where", "step"), [(session_module, "claim"), (catalog, "touch")])
async def test_a_sweep_of_another_worker_in_the_middle_of_a_request_loses_nothing(
    worker, clock, monkeypatch, where, step
) -> None:
    hook = worker(ttl_days=1)
    await use(hook, "old")
    clock.now += 2 * DAY
    go_on, other = getattr(where, step), Pool(hook.compactor.store.pool.folder)

    def swept(*given: Any) -> Any:
        retention.Retention(other, clock).sweep(1)
        return go_on(*given)

    monkeypatch.setattr(where, step, swept)
    await use(hook, "old", turns=2)
    other.close()
    assert stored(hook, "old") == len(session("anthropic", turns=2)["messages"])


async def test_a_session_used_while_its_turn_came_is_passed_over(worker, clock) -> None:
    hook = worker(ttl_days=1)
    await use(hook, "old")
    tenant, path = folder_of(hook).name, path_of(hook, "old")
    before = clock.now + 1
    erased: list[str] = []
    assert hook.compactor.store.pool.with_catalog(tenant, lambda db: catalog.find_idle(db, before, 9)) == [path.stem]
    hook.compactor.store.pool.with_catalog(tenant, lambda db: catalog.touch(db, path.stem, clock.now + 2, "", ""))
    forget = lambda db: catalog.forget(db, path.stem, before, lambda: erased.append("files"))  # noqa: E731
    assert not hook.compactor.store.pool.with_catalog(tenant, forget)
    assert erased == []


async def test_files_that_no_catalog_knows_go_by_their_age(worker, clock) -> None:
    hook = worker(ttl_days=1)
    await use(hook, "known")
    folder = path_of(hook, "known").parent
    old, young = folder / f"{'a' * 16}.db", folder / f"{'b' * 16}.db"
    foreign = folder / "notes.txt"
    for path in (old, young, foreign, folder / f"{'a' * 16}.db-wal", folder / f"{'a' * 16}.db.damaged-2"):
        path.write_bytes(b"")
        age(path, clock.now)
    clock.now += DAY + HOUR
    age(young, clock.now)
    await use(hook, "known")
    assert sorted(p.name for p in folder.glob("a*")) == []
    assert young.exists()
    assert foreign.exists()


async def test_a_damaged_leftover_goes_by_its_age_though_its_session_lives(worker, clock) -> None:
    hook = worker(ttl_days=1)
    await use(hook, "known")
    old = path_of(hook, "known").with_name(f"{path_of(hook, 'known').name}.damaged-1")
    young, catalogs = old.with_name(f"{old.name[:-1]}2"), folder_of(hook) / "catalog.db.damaged-1"
    for path, when in ((old, clock.now), (young, clock.now + DAY), (catalogs, clock.now)):
        path.write_bytes(b"")
        age(path, when)
    clock.now += DAY + HOUR
    await use(hook, "known")
    assert not old.exists()
    assert young.exists()
    assert not catalogs.exists()
    assert path_of(hook, "known").exists()


async def test_more_sessions_than_a_batch_go_in_one_sweep(worker, clock, monkeypatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    hook = worker(ttl_days=1)
    for number in range(5):
        await use(hook, f"old {number}")
    held = hook.compactor.store.pool.sessions_in_memory()[0]
    clock.now += 2 * DAY
    with held.lock:
        await use(hook, "new")
    assert sorted(p.stem for p in path_of(hook, "new").parent.glob("*.db")) == sorted(
        [held.name, path_of(hook, "new").stem]
    )


async def test_a_sweep_says_what_it_deleted_and_old_events_go(worker, clock) -> None:
    hook = worker(ttl_days=1, trim_at_tokens=3000)
    await use(hook, "old", exchanges=9, size=20_000)
    assert rows(hook, "SELECT kind FROM events WHERE kind = 'trim'")
    clock.now += 2 * DAY
    await use(hook, "new")
    assert [(kind, json.loads(data)) for kind, data in rows(hook, "SELECT kind, data FROM events")] == [
        ("expired", {"sessions": 1})
    ]


async def test_a_broken_store_of_one_tenant_keeps_no_other_from_being_swept(worker, clock, caplog) -> None:
    hook = worker(ttl_days=1)
    await use(hook, "old")
    await use(hook, "old", OTHER)
    broken = folder_of(hook, min(["user-1", "user-2"], key=lambda user: folder_of(hook, user).name))
    whole = next(user for user in ("user-1", "user-2") if folder_of(hook, user) != broken)
    hook.compactor.store.pool.close()
    for path in broken.glob("catalog.db*"):
        path.unlink()
    (broken / "catalog.db").mkdir()
    clock.now += 2 * DAY
    await use(hook, "new", make_key("user-3"))
    assert files_of(hook, "old", whole) == []
    assert [r.message for r in caplog.records if "retention" in r.message] == [
        "openmem: retention: 1 of 3 tenants could not be swept (IsADirectoryError: Is a directory)"
    ]


async def test_a_sweep_keeps_no_request_waiting_and_ends_with_the_worker(worker, clock, monkeypatch) -> None:
    hook = worker(ttl_days=1)
    await use(hook, "old")
    clock.now += 2 * DAY
    entered, leave = threading.Event(), threading.Event()

    def slow(*given: Any, **more: Any) -> list[str]:
        entered.set()
        leave.wait(10)
        return []

    monkeypatch.setattr(catalog, "find_idle", slow)
    request = session("anthropic") | {"proxy_server_request": {"headers": {"x-session-id": "new"}}}
    for _ in range(3):
        await asyncio.wait_for(hook.async_pre_call_hook(make_key(), None, dict(request), "anthropic_messages"), 2)
    await asyncio.to_thread(entered.wait, 10)
    assert not hook.compactor.store.sweeping.done()
    leave.set()
    await hook.compactor.store.sweeping


def test_a_sweep_that_is_stopped_deletes_nothing_more(state_dir: Path, clock: Clock, monkeypatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 1)
    pool, tenant, forget = Pool(state_dir), "0" * 32, catalog.forget
    for name in ("a" * 16, "b" * 16, "c" * 16):
        pool.with_catalog(tenant, lambda db, name=name: catalog.touch(db, name, START, "", ""))
    keeper = retention.Retention(pool, clock)
    monkeypatch.setattr(catalog, "forget", lambda *given: [forget(*given), keeper.stop()][0])
    clock.now += 2 * DAY
    assert keeper.sweep(1) == 1
    assert len(pool.with_catalog(tenant, catalog.read_names)) == 2
    clock.now += HOUR
    assert keeper.sweep(1) == 0
    assert pool.with_catalog(tenant, lambda db: catalog.begin_chore(db, retention.CHORE, clock.now, HOUR)), (
        "left to others"
    )
    pool.close()


async def test_a_session_that_comes_back_after_its_time_is_stored_anew(worker, clock) -> None:
    one, two = worker(ttl_days=1), worker(ttl_days=1)
    await use(one, "old")
    await use(two, "old")
    clock.now += 2 * DAY
    await use(two, "new")
    assert files_of(one, "old") == []
    await use(one, "old", turns=2)
    assert stored(one, "old") == len(session("anthropic", turns=2)["messages"])
