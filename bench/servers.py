"""The real gateway, and what may stand behind it, as processes that are measured: addresses, ids, memory, event loop.

Every gateway gets the same callback beside the plugin's or a peer's: one that does nothing to requests and watches the
event loop.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.environments import QUIET
from bench.figures import PAGE_MB
from bench.growing import MODEL
from demo.gateway import KEPT_VARIABLES, OFFLINE, end, free_port, gateway_config, provider, wait_for_answer

__all__ = ["HEADERS", "HUGE", "KEY", "PLUGIN", "Server", "config", "gateway", "process", "provider"]

KEY = "sk-bench"
PLUGIN = "openmem_hook.handler"
HUGE = 100_000_000
START_S = 400.0
"""Several start side by side."""
HEADERS = {
    "x-api-key": KEY,
    "content-type": "application/json",
    "anthropic-version": "2023-06-01",
    "user-agent": "claude-cli/2.1.332 (external, cli)",
}
BEAT = """
import asyncio, json, time
from pathlib import Path
from litellm.integrations.custom_logger import CustomLogger

EVERY_S, TOLD_S = 0.005, 0.5
FILE = Path(__file__).with_name("gaps.jsonl")

class Beat(CustomLogger):
    task = None

    async def async_pre_call_hook(self, user_api_key_dict, cache, data, call_type):
        if self.task is None:
            self.task = asyncio.create_task(self.watch())
        return data

    async def watch(self):
        last = told = time.perf_counter()
        gaps = []
        while True:
            await asyncio.sleep(EVERY_S)
            now = time.perf_counter()
            gaps.append(now - last - EVERY_S)
            last = now
            if now - told > TOLD_S:
                with FILE.open("a") as file:
                    file.write(json.dumps([now, [round(gap * 1000, 2) for gap in gaps]]) + "\\n")
                gaps.clear()
                told = last = time.perf_counter()

beat = Beat()
"""
"""Does nothing to a request. From the first one on, keeps what each turn of the loop took beyond its pause, in ms."""


@dataclass(frozen=True, slots=True)
class Server:
    """A process that answers at `address`. `folder` is its own, `behind` a second process that belongs to it."""

    address: str
    pid: int
    folder: Path
    behind: Server | None = None

    def resident_mb(self) -> float:
        own = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * PAGE_MB
        return own + (self.behind.resident_mb() if self.behind else 0.0)

    def stored_bytes(self) -> int:
        """By the plugin."""
        return sum(path.stat().st_size for path in (self.folder / "state").rglob("*") if path.is_file())

    def events(self, kind: str, databases: str) -> int:
        """How many of a kind the plugin's databases of that name tell of."""
        found = 0
        for path in (self.folder / "state").rglob(databases):
            with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
                found += db.execute("SELECT count(*) FROM events WHERE kind = ?", (kind,)).fetchone()[0]
        return found

    def gaps(self, begins: float, ends: float) -> list[float]:
        """Milliseconds in which a gateway's event loop did not turn, between two readings of `perf_counter`, which is
        one clock for all processes of a Linux machine."""
        file = self.folder / "gaps.jsonl"
        told = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
        return [gap for at, gaps in told if begins <= at <= ends for gap in gaps]


@contextlib.contextmanager
def process(
    folder: Path, command: Sequence[str], probe: str = "/health", environ: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """A server on a free port: `{port}` stands for it in the command. `probe` is asked until it is answered."""
    folder.mkdir(parents=True, exist_ok=True)
    port, log = free_port(), folder / "log"
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ} | OFFLINE | QUIET
    kept |= {"HOME": str(folder), **(environ or {})}
    with log.open("wb") as out:
        given = [word.format(port=port) for word in command]
        started = subprocess.Popen(given, cwd=folder, env=kept, stdout=out, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for_answer(started, f"{address}{probe}", log, START_S)
        yield Server(address, started.pid, folder)
    finally:
        end(started)


def config(
    behind: str, folder: Path, callbacks: Sequence[str], trim_at: int = 125_000, **litellm_settings: Any
) -> dict[str, Any]:
    """A gateway's file: the callbacks after the one that watches, and a model without a window to speak of."""
    made = gateway_config(behind, KEY, folder / "state", trim_at)
    made["callback_settings"]["openmem"]["trim_at_tokens"] = trim_at
    made["litellm_settings"] |= {"callbacks": ["beat.beat", *callbacks], **litellm_settings}
    for model in made["model_list"]:
        model["model_name"] = MODEL
        model["model_info"] = {"max_input_tokens": HUGE}
    return made


@contextlib.contextmanager
def gateway(folder: Path, configured: Mapping[str, Any], site: Path | None = None) -> Iterator[Server]:
    """One worker. `site`: a folder of packages that its callbacks need."""
    folder.mkdir(parents=True)
    (folder / "beat.py").write_text(BEAT)
    (folder / "config.yaml").write_text(json.dumps(configured))  # JSON is YAML
    litellm = str(Path(sys.executable).with_name("litellm"))
    command = [litellm, "--config", "config.yaml", "--host", "127.0.0.1", "--port", "{port}"]
    environ = {"PYTHONPATH": str(site)} if site else None
    with process(folder, command, "/health/liveliness", environ) as served:
        yield served
