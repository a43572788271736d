"""The real `litellm` command as a process on loopback, with the kit's strict provider behind it.

`Gateway` starts, restarts and kills the command; `configuration` is its YAML, with the one line for the plugin.
Who calls is told by custom authentication, since virtual keys would need a database. `stored` and `events`
read what the plugin kept. One gateway serves all tests that don't harm it: the fixture `gateway`.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from demo.gateway import KEPT_VARIABLES, OFFLINE, end, free_port, wait_for_answer
from openmem_hook.store.session import unpack
from tests.kit.builders import Format
from tests.kit.prefix import normal
from tests.kit.provider import running
from tests.kit.provider_state import Provider, Reply

Json = dict[str, Any]

START_S = 400.0
"""Seconds a start may take on a machine that does much else; some 8 on an idle one."""
TRIM_AT = 12_000
UPSTREAM_KEY = "sk-upstream-canary-5f1b9c"
IDENTITIES: dict[str, Json] = {
    "alice": {"user_id": "alice"},
    "bob": {"user_id": "bob"},
    "first": {},
    "second": {},
}
"""Who may call. Two have a user id, two have nothing but their key."""
AUTHENTICATION = """
from pathlib import Path
import os
from litellm.proxy._types import UserAPIKeyAuth

WHO = {who!r}
MARK = Path(__file__).with_name(f"worker-{{os.getpid()}}")
MARK.touch()

async def check(request, api_key):
    with MARK.open("a") as mark:
        mark.write(".")
    if api_key not in WHO:
        raise PermissionError("no such key")
    return UserAPIKeyAuth(api_key=api_key, **WHO[api_key])
"""
SPEND = """
import json
from pathlib import Path
from litellm.integrations.custom_logger import CustomLogger
from litellm.proxy.spend_tracking.spend_tracking_utils import get_logging_payload

class Spend(CustomLogger):
    async def async_log_success_event(self, kwargs, response_obj, start_time, end_time):
        row = get_logging_payload(kwargs, response_obj, start_time, end_time)
        with Path(__file__).with_name("spend.jsonl").open("a") as file:
            file.write(json.dumps({"session": row["session_id"], **json.loads(row["metadata"])}, default=str) + "\\n")

rows = Spend()
"""
"""A callback that builds the row which LiteLLM would write to its database, and keeps it in a file."""


def key_of(name: str) -> str:
    return f"sk-canary-{name}-0a1b2c3d4e5f"


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key_of(name)}"}


def configuration(upstream: str, **settings: Any) -> Json:
    """A gateway's file. `settings` are the plugin's."""
    openai = {"api_base": f"{upstream}/v1", "api_key": UPSTREAM_KEY}
    anthropic = {"api_base": upstream, "api_key": UPSTREAM_KEY}
    models = {
        "claude-kit": {"model": "anthropic/claude-sonnet-5", **anthropic},
        "claude-again": {"model": "anthropic/claude-sonnet-4-5", **anthropic, "num_retries": 2},
        "claude-mini": {"model": "anthropic/claude-haiku-4-5", **anthropic},
        "gpt-kit": {"model": "openai/gpt-5.5", **openai},
        "local-kit": {"model": "openai/kit", **openai},
    }
    return {
        "model_list": [
            {"model_name": name, "litellm_params": params, "model_info": {"max_input_tokens": 200_000}}
            for name, params in models.items()
        ],
        "litellm_settings": {"callbacks": ["openmem_hook.handler"], "num_retries": 0},
        "general_settings": {"master_key": key_of("master"), "custom_auth": "identities.check"},
        "callback_settings": {"openmem": {"trim_at_tokens": TRIM_AT, "deadline_s": 20, **settings}},
    }


class Gateway:
    """The `litellm` command with a configuration, in a process group and on a port of its own. It keeps its
    folder and port over restarts; `log` is all it ever wrote."""

    def __init__(self, folder: Path, config: Json, *, workers: int = 1, environ: dict[str, str] | None = None) -> None:
        self.folder, self.workers = folder, workers
        self.address = f"http://127.0.0.1:{free_port()}"
        self.store = folder / "state" / "context"
        self.log = folder / "log"
        self.environ = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ} | OFFLINE
        self.environ |= {"OPENMEM_STATE_DIR": str(folder / "state"), "HOME": str(folder), **(environ or {})}
        self.process: subprocess.Popen[bytes] | None = None
        who = {key_of(name): about for name, about in IDENTITIES.items()}
        (folder / "identities.py").write_text(AUTHENTICATION.format(who=who))
        (folder / "spend.py").write_text(SPEND)
        self.config = config
        self.configure()

    def configure(self, **settings: Any) -> None:
        """Writes the file for the next start, with other settings of the plugin."""
        plugin = {**self.config["callback_settings"]["openmem"], **settings}
        config = {**self.config, "callback_settings": {"openmem": plugin}}
        (self.folder / "config.yaml").write_text(json.dumps(config))  # JSON is YAML

    def start(self) -> None:
        for mark in self.folder.glob("worker-*"):
            mark.unlink()
        host, port = self.address.removeprefix("http://").split(":")
        command = [str(Path(sys.executable).with_name("litellm")), "--config", "config.yaml", "--host", host]
        command += ["--port", port, "--num_workers", str(self.workers), "--timeout_worker_healthcheck", "120"]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, env=self.environ, stdout=log, stderr=log, start_new_session=True
            )
        wait_for_answer(self.process, f"{self.address}/health/liveliness", self.log, START_S)
        until(lambda: len(self.worker_ids()) == self.workers, "all workers", START_S)

    def stop(self) -> None:
        """Asks it to end, and makes sure of it."""
        if self.process is not None:
            end(self.process)
            self.kill()

    def kill(self) -> None:
        """`kill -9`, the whole group."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.process = None

    def worker_ids(self) -> list[int]:
        """Processes that serve requests."""
        told = [int(mark.name.removeprefix("worker-")) for mark in self.folder.glob("worker-*")]
        parent = self.process.pid if self.process is not None and self.workers > 1 else 0
        return sorted(pid for pid in told if pid != parent and _lives(pid))

    def served(self) -> list[int]:
        """How many requests each worker that lives has served."""
        return [(self.folder / f"worker-{pid}").stat().st_size for pid in self.worker_ids()]

    # --- what the plugin kept ----------------------------------------------------------------------------

    def sessions(self) -> list[Path]:
        return sorted(self.store.glob("*/sessions/*.db"))

    def session_with(self, text: str) -> Path:
        """The one session that holds this text."""
        found = self.sessions_with(text)
        assert len(found) == 1, f"{len(found)} sessions hold {text}"
        return found[0]

    def sessions_with(self, text: str) -> list[Path]:
        sql = f"SELECT 1 FROM lines WHERE instr(text, '{text}') LIMIT 1"
        return [path for path in self.sessions() if query(path, sql)]

    def failures(self, since: int = 0) -> list[str]:
        """What the log says, from this byte on, of requests that passed without the plugin."""
        told = self.log.read_bytes()[since:].decode(errors="replace").splitlines()
        return [line for line in told if "passed without new changes of ours" in line]


def _lives(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for yet does not."""
    with contextlib.suppress(OSError):
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Waits for what the gateway does behind a response."""
    end_at = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end_at, f"waited {seconds:g} s for {what}"
        time.sleep(0.05)


def query(path: Path, sql: str) -> list[Any]:
    db = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=30)
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


def texts(path: Path) -> list[str]:
    return [text or "" for (text,) in query(path, "SELECT text FROM messages ORDER BY seq")]


def stored(path: Path) -> Counter[bytes]:
    """The clients' own messages as the session holds them, in a form that tells equal ones apart from others."""
    rows = query(path, "SELECT r.body, m.text FROM records r JOIN messages m USING (seq)")
    return Counter(normal(orjson.loads(unpack(body, text))) for body, text in rows)


def events(path: Path, kind: str) -> list[Json]:
    return [orjson.loads(data) for k, data in query(path, "SELECT kind, data FROM events ORDER BY id") if k == kind]


# --- the provider ----------------------------------------------------------------------------------------

TAG = re.compile(rb"tag-[\w-]+")


class Upstream(Provider):
    """The strict provider, noting for each request the first `tag-…` in it: tests name their sessions so.
    Streams of the sessions in `silent` end without usage, as those of some local servers do."""

    def __init__(self) -> None:
        super().__init__()
        self.address = ""
        self.silent: set[str] = set()

    def handle(self, fmt: Format, raw: bytes, headers: dict[str, str], now: float) -> Reply:
        reply = super().handle(fmt, raw, headers, now)
        found = TAG.search(raw)
        self.log[-1]["tag"] = tag = found[0].decode() if found else ""
        if tag in self.silent:
            told = ((name, said) for name, said in reply.events if not said.get("usage"))
            return replace(reply, events=tuple((name, without_usage(said)) for name, said in told))
        return reply

    def requests(self, tag: str) -> list[Json]:
        return [note for note in self.log if note.get("tag") == tag]

    def sent(self, text: str) -> list[Json]:
        """The newest bodies that hold this text."""
        return [body for body in list(self.bodies) if text in json.dumps(body)]


def without_usage(said: Json) -> Json:
    """An event whose response, if it holds one, tells no usage."""
    return {**said, "response": {**said["response"], "usage": None}} if "response" in said else said


@contextlib.contextmanager
def serving(gateway: Gateway) -> Iterator[Gateway]:
    try:
        gateway.start()
        yield gateway
    finally:
        gateway.stop()
        assert_discreet(gateway)


def assert_discreet(gateway: Gateway) -> None:
    """Whatever happened: no text of a message and no key is in the log."""
    log = gateway.log.read_text(errors="replace")
    keys = [UPSTREAM_KEY, *(key_of(name) for name in [*IDENTITIES, "master"])]
    found = [word for word in [*keys, "tag-"] if word in log]
    assert not found, f"in the gateway's log: {found}"


@pytest.fixture(scope="session")
def upstream() -> Iterator[Upstream]:
    provider = Upstream()
    with running(provider, clock=lambda: 0.0) as address:  # no cache runs out because a machine is slow
        provider.address = address
        yield provider


@pytest.fixture(scope="session")
def gateway(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """One process, for everybody who leaves it running."""
    config = configuration(upstream.address)
    config["litellm_settings"]["callbacks"].append("spend.rows")
    told = {"ANTHROPIC_API_BASE": upstream.address, "ANTHROPIC_API_KEY": UPSTREAM_KEY}
    with serving(Gateway(tmp_path_factory.mktemp("gateway"), config, environ=told)) as started:
        yield started


@pytest.fixture
async def http(gateway: Gateway) -> Any:
    async with httpx.AsyncClient(base_url=gateway.address, timeout=120, trust_env=False) as client:
        yield client
