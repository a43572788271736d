"""What the tests about failing stores share: a client that checks every answer, and faults that come and go.

A `Client` sends the requests of one growing history. Whatever happens to the store, each answer is a body that
the provider accepts, has the standing note, and goes on from the answer before it, unless the test says that a
break is due. `STRIKES` are faults of a store in use; each is a context manager that ends the fault, if it ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import orjson

from openmem_hook import config
from openmem_hook.compaction.wording import NOTE
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.store import database
from openmem_hook.store.session import unpack
from tests.conftest import CALL_TYPES, make_key
from tests.harness.conversation import SESSION_HEADER, faults
from tests.kit import builders
from tests.kit.builders import Format, Json
from tests.kit.filler import listing, prose
from tests.kit.histories import growth
from tests.kit.prefix import broken_at, canonical, unchanged

FORMATS = builders.FORMATS
TIGHT: Json = {"trim_at_tokens": 6000, "compress_over_tokens": 500, "chars_per_token": 2.5, "deadline_s": 10.0}
"""Limits under which every fourth result of `coding` is compressed, and a trim comes after so many requests:"""
FIRST_TRIM = 15
SMALL_CHANGE_S = 1.5
"""What a request may take beyond its deadline: the grace of a commit, the replay, a busy machine."""


def coding(fmt: Format, exchanges: int, seed: object = 0) -> Json:
    """One long running turn; every fourth result is long enough to be compressed."""
    messages: list[Json] = []
    for step in range(exchanges):
        call, size = f"call_{step}", 2400 if step % 4 == 3 else 700
        messages += _EXCHANGE[fmt](call, step, listing(size, seed, step))
    typed = f"The task: {prose(60, seed)}"
    wrap = {"anthropic": builders.body, "chat": builders.chat.body, "responses": builders.responses.body}[fmt]
    return wrap(_typed(fmt, typed), *messages, model="claude-sonnet-4-5")


def _typed(fmt: Format, words: str) -> Json:
    return builders.responses.user(words) if fmt == "responses" else builders.user(words)


_EXCHANGE: dict[Format, Callable[[str, int, str], list[Json]]] = {
    "anthropic": lambda call, step, text: [
        builders.assistant(builders.text(f"Step {step}."), builders.tool_use(call, path=f"src/{step}.py")),
        builders.results(builders.tool_result(call, text)),
    ],
    "chat": lambda call, step, text: [
        builders.chat.assistant(f"Step {step}.", builders.chat.call(call, path=f"src/{step}.py")),
        builders.chat.result(call, text),
    ],
    "responses": lambda call, step, text: [
        builders.responses.reasoning(f"rs_{step}", f"cipher{step}" + "A" * 40),
        builders.responses.call(call, path=f"src/{step}.py"),
        builders.responses.output(call, text),
    ],
}


def from_gateway(body: Json, fmt: Format, session: str, call: str) -> Json:
    """The body as the gateway hands it to the hook."""
    about = {"headers": {SESSION_HEADER[fmt]: session}, "url": "http://gateway", "method": "POST"}
    return {**body, "litellm_call_id": call, "proxy_server_request": about}


def sent(out: Json, body: Json) -> Json:
    """What of the hook's answer goes to the provider."""
    return {k: v for k, v in out.items() if k in body or k in ("system", "instructions")}


class Client:
    """Sends `coding(fmt)` request by request. `outs` is what went to the provider, `took` the seconds each took."""

    def __init__(
        self,
        hook: ContextHook,
        fmt: Format,
        session: str = "session-1",
        key: SimpleNamespace | None = None,
        most: int = 36,
    ) -> None:
        self.hook, self.fmt, self.session, self.key = hook, fmt, session, key or make_key()
        self.requests = growth(coding(fmt, most))
        self.at = 0
        self.outs: list[Json] = []
        self.took: list[float] = []

    async def rest(self) -> None:
        """Waits until nothing is done behind requests any more: it would meet an outage first."""
        sessions = self.hook.compactor.store.pool.sessions_in_memory()
        end = time.monotonic() + 10
        while any(session.chores.is_running for session in sessions):
            assert time.monotonic() < end, "chores that don't end"
            await asyncio.sleep(0.01)

    async def go_on(self, count: int = 1, *, breaks: bool = False) -> list[Json]:
        """The next requests; `breaks` says that the first may start anew."""
        for n in range(count):
            await self._send(self.requests[self.at], breaks and n == 0)
            self.at += 1
        return self.outs[-count:]

    async def until_trimmed(self) -> None:
        """Up to some exchanges after the first trim, as many before the next."""
        await self.go_on(FIRST_TRIM)
        await self.go_on(3, breaks=True)
        assert self.trimmed

    @contextmanager
    def in_a_hurry(self, deadline_s: float = 0.5) -> Iterator[None]:
        """The hook's deadline is short meanwhile."""
        base, self.took = self.hook.base, []
        self.hook.base = config.load({**TIGHT, "deadline_s": deadline_s}, {})
        yield
        self.hook.base = base
        assert max(self.took) < deadline_s + SMALL_CHANGE_S

    async def again(self) -> Json:
        """The last request once more."""
        await self._send(self.requests[self.at - 1], False)
        return self.outs[-1]

    async def _send(self, body: Json, breaks: bool) -> None:
        started = time.perf_counter()
        with unchanged(body):
            data = from_gateway(body, self.fmt, self.session, f"{self.session}-{len(self.outs)}")
            out = await self.hook.async_pre_call_hook(self.key, None, data, CALL_TYPES[self.fmt])
        self.took.append(time.perf_counter() - started)
        assert isinstance(out, dict)
        made = sent(out, body)
        worse = faults(made) - faults(body)
        assert not worse, f"the provider would object: {worse}"
        assert NOTE in orjson.loads(orjson.dumps(_prompt(made))), "the standing note went missing"
        if self.outs and not breaks:
            at = broken_at(self.outs[-1], made, self.fmt)
            assert at is None, f"request {len(self.outs)} breaks the prefix at block {at}"
        self.outs.append(made)

    async def report(self, tokens: int = 3000) -> None:
        """The provider's count of the last request."""
        kwargs = {"litellm_call_id": f"{self.session}-{len(self.outs) - 1}", "call_type": CALL_TYPES[self.fmt]}
        await self.hook.async_log_success_event(kwargs, {"usage": {"prompt_tokens": tokens}}, None, None)

    @property
    def trimmed(self) -> bool:
        return len(messages_of(self.outs[-1])) < len(messages_of(self.requests[self.at - 1]))


def _prompt(body: Json) -> str:
    """System prompt as one text, wherever the format keeps it."""
    held = body.get("system") or body.get("instructions") or messages_of(body)[0]["content"]
    return held if isinstance(held, str) else "\n".join(block["text"] for block in held)


def messages_of(body: Json) -> list[Json]:
    held: list[Json] = body["input"] if "input" in body else body["messages"]
    return held


# --- what lies on disk --------------------------------------------------------------------------------------


class Store:
    """The files of a state folder with one tenant, and one session of it: the only one unless said otherwise."""

    def __init__(self, state_dir: Path, session: Path | None = None) -> None:
        self.context, self._session = state_dir / "context", session

    @property
    def session(self) -> Path:
        return self._session or next(self.context.glob("*/sessions/*.db"))

    @property
    def catalog(self) -> Path:
        return next(self.context.glob("*/catalog.db"))

    def rows(self, sql: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.session)) as db:
            return db.execute(sql).fetchall()

    def kept(self) -> list[bytes]:
        """Every stored message as canonical JSON."""
        found = self.rows("SELECT r.body, m.text FROM records r JOIN messages m USING (seq) ORDER BY seq")
        return [canonical(orjson.loads(unpack(body, text))) for body, text in found]

    def assert_sound(self) -> None:
        """All databases in use are whole, rows, lines and both indexes in step."""
        for path in [*self.context.glob("*/sessions/*.db"), *self.context.glob("*/catalog.db")]:
            with contextlib.closing(sqlite3.connect(path)) as db:
                assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)], path.name
                if path.parent.name == "sessions":
                    assert_in_step(db)


def assert_in_step(db: sqlite3.Connection) -> None:
    """Each message has its lines, and both full-text indexes hold what their tables hold."""
    for table in ("messages", "lines"):
        db.execute(f"INSERT INTO {table}_fts ({table}_fts, rank) VALUES ('integrity-check', 1)")
    lines: dict[int, list[str]] = {}
    for seq, text in db.execute("SELECT seq, text FROM lines ORDER BY seq, line_no"):
        lines.setdefault(seq, []).append(text)
    for seq, text in db.execute("SELECT seq, text FROM messages"):
        assert "\n".join(lines.pop(seq)) == text.replace("\r\n", "\n").replace("\r", "\n")
    assert not lines
    assert db.execute("SELECT (SELECT count(*) FROM messages) - (SELECT count(*) FROM records)").fetchone() == (0,)


# --- faults -------------------------------------------------------------------------------------------------

Strike = Callable[[Store], AbstractContextManager[None]]


@contextmanager
def a_file_in_the_place_of(folder: Path) -> Iterator[None]:
    away = folder.with_name(f"{folder.name}.away")
    folder.rename(away)
    folder.write_text("not a folder")
    yield
    folder.unlink()
    away.rename(folder)


@contextmanager
def locked(*paths: Path) -> Iterator[None]:
    """Another process holds the write lock of these databases."""
    script = (
        "import sqlite3, sys\n"
        "held = [sqlite3.connect(p, isolation_level=None) for p in sys.argv[1:]]\n"
        "[db.execute('BEGIN EXCLUSIVE') for db in held]\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, *map(str, paths)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        try:
            yield
        finally:
            holder.communicate()


@contextmanager
def schema_of_the_future(path: Path) -> Iterator[None]:
    def set_version(version: int) -> None:
        with contextlib.closing(sqlite3.connect(path)) as db:
            db.execute(f"PRAGMA user_version = {version}")

    known = len(database.migrations("catalog" if path.name == "catalog.db" else "session"))
    checkpoint(path)
    reopened = path.with_name(f"{path.name}.copy")
    shutil.copy(path, reopened)  # another file, so that open connections look again
    for side in ("-wal", "-shm"):
        path.with_name(path.name + side).unlink(missing_ok=True)
    reopened.replace(path)
    set_version(99)
    yield
    set_version(known)


@contextmanager
def no_room() -> Iterator[None]:
    """Files of this process can't grow: every write beyond a few kilobytes fails for real."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def overwritten(path: Path, start: float, size: int = 8192) -> Iterator[None]:
    """Garbage at this share of the file; nobody repairs it."""
    checkpoint(path)
    at = int(path.stat().st_size * start) // 4096 * 4096
    with path.open("r+b") as held:
        held.seek(at)
        held.write(b"\xa5garbage" * (size // 8))
    _aged(path)
    yield


@contextmanager
def truncated(path: Path, share: float) -> Iterator[None]:
    checkpoint(path)
    with path.open("r+b") as held:
        held.truncate(int(path.stat().st_size * share))
    _aged(path)
    yield


def checkpoint(path: Path) -> None:
    """All that was written stands in the main file."""
    with contextlib.closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _aged(path: Path) -> None:
    """A commit by another connection, where one is still possible, so that caches don't hide the damage."""
    with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(path, timeout=0.1)) as db:
        db.execute("CREATE TABLE noticed (at)")
        db.execute("DROP TABLE noticed")


@contextmanager
def deleted(*paths: Path) -> Iterator[None]:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    yield


def _files(path: Path) -> list[Path]:
    return [path.with_name(path.name + side) for side in ("", "-wal", "-shm")]


class Failing(sqlite3.Connection):
    """A connection whose statements fail while `strike` says so, or take long; it is asked with path and statement."""

    strike: ClassVar[Callable[[str, str], None] | None] = None

    def __init__(self, path: Any, *given: Any, **named: Any) -> None:
        super().__init__(path, *given, **named)
        self.path = str(path)

    def execute(self, sql: str, *given: Any) -> sqlite3.Cursor:  # type: ignore[override]
        self._try(sql)
        return super().execute(sql, *given)

    def executemany(self, sql: str, *given: Any) -> sqlite3.Cursor:  # type: ignore[override]
        self._try(sql)
        return super().executemany(sql, *given)

    def _try(self, sql: str) -> None:
        strike = type(self).strike
        if strike is not None:
            strike(self.path, sql)


@contextmanager
def striking(strike: Callable[[str, str], None]) -> Iterator[None]:
    """Every statement on a `Failing` connection asks `strike` first."""
    Failing.strike = staticmethod(strike)  # type: ignore[assignment]
    try:
        yield
    finally:
        Failing.strike = None


def error(name: str) -> sqlite3.Error:
    """SQLite's error of this name, as Python raises it."""
    damage = name in ("SQLITE_CORRUPT", "SQLITE_NOTADB")
    made = sqlite3.DatabaseError(name) if damage else sqlite3.OperationalError(name)
    made.sqlite_errorcode, made.sqlite_errorname = getattr(sqlite3, name), name
    return made


def failing(name: str, stage: str) -> AbstractContextManager[None]:
    """Statements that begin with `stage` fail with this error."""

    def strike(path: str, sql: str) -> None:
        if sql.startswith(stage):
            raise error(name)

    return striking(strike)


def slow(seconds: float, stage: str, of: str = "sessions") -> AbstractContextManager[None]:
    """Statements that begin with `stage` take so long, on databases with `of` in their path."""

    def strike(path: str, sql: str) -> None:
        if sql.startswith(stage) and of in path:
            time.sleep(seconds)

    return striking(strike)


STRIKES: dict[str, Strike] = {
    "a file where the state folder was": lambda store: a_file_in_the_place_of(store.context),
    "a file where the session folder was": lambda store: a_file_in_the_place_of(store.session.parent),
    "the session locked by another process": lambda store: locked(store.session),
    "the catalog locked by another process": lambda store: locked(store.catalog),
    "both locked by another process": lambda store: locked(store.session, store.catalog),
    "no room on the disk": lambda store: no_room(),
    "a session of a newer version": lambda store: schema_of_the_future(store.session),
    "a catalog of a newer version": lambda store: schema_of_the_future(store.catalog),
}
"""Faults that end; after them all that was stored is there again."""

DAMAGES: dict[str, Strike] = {
    "garbage over the session's header": lambda store: overwritten(store.session, 0.0),
    "garbage over the session's middle": lambda store: overwritten(store.session, 0.4, 65_536),
    "garbage over all of the session": lambda store: overwritten(store.session, 0.0, 4_000_000),
    "garbage over the catalog's header": lambda store: overwritten(store.catalog, 0.0),
    "garbage over all of the catalog": lambda store: overwritten(store.catalog, 0.0, 400_000),
    "the session cut in half": lambda store: truncated(store.session, 0.5),
    "the session emptied": lambda store: truncated(store.session, 0.0),
    "the catalog emptied": lambda store: truncated(store.catalog, 0.0),
    "the session's file deleted": lambda store: deleted(*_files(store.session)),
    "the session's main file deleted": lambda store: deleted(store.session),
    "the catalog deleted": lambda store: deleted(*_files(store.catalog)),
    "the tenant's folder deleted": lambda store: deleted(store.catalog.parent),
    "the state folder deleted": lambda store: deleted(store.context),
}
"""Faults that don't end by themselves: what was stored is gone, in part or whole."""
