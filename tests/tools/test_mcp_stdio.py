"""`openmem mcp`: the same tools over standard input and output, for the operator of the gateway's host."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openmem_hook.cli.base import CannotRunError
from openmem_hook.cli.tenant import folder_of
from openmem_hook.store import names
from openmem_hook.tools import TOOLS
from tests.harness.filled_store import FilledStore

OPENMEM = str(Path(sys.executable).with_name("openmem"))


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[FilledStore]:
    made = FilledStore(tmp_path / "state" / "context")
    yield made
    made.close()


class Talk:
    """A client's end of the pipe: one JSON-RPC call after another."""

    def __init__(self, *arguments: str, folder: Path, home: Path) -> None:
        self.process = subprocess.Popen(
            [OPENMEM, "mcp", *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            cwd=folder, env={"HOME": str(home), "OPENMEM_STATE_DIR": str(home / "state")},
        )  # fmt: skip
        self.calls = 0

    def __enter__(self) -> Talk:
        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "kit", "version": "1"}}
        self.ask("initialize", **hello)
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=60)
        assert self.process.returncode == 0

    def send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method: str, **params: Any) -> Any:
        self.calls += 1
        self.send({"jsonrpc": "2.0", "id": self.calls, "method": method, "params": params})
        assert self.process.stdout is not None
        answer = json.loads(self.process.stdout.readline())
        assert answer["id"] == self.calls
        return answer["result"]


@pytest.mark.parametrize("calls", [0, 8], ids=["while it waits", "while it answers"])
def test_ctrl_c_ends_it_at_once_and_without_a_word(calls: int, shelf: FilledStore, tmp_path: Path) -> None:
    shelf.put(["the needle"])
    talk = Talk(folder=tmp_path, home=tmp_path)
    with talk.process as process:
        talk.__enter__()
        for number in range(calls):
            search = {"name": "smart_compact_search", "arguments": {"query": "needle"}}
            talk.send({"jsonrpc": "2.0", "id": 100 + number, "method": "tools/call", "params": search})
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == -signal.SIGINT
        assert process.stderr is not None
        assert process.stderr.read() == b""


def test_a_project_folder_can_not_change_what_is_run(shelf: FilledStore, tmp_path: Path) -> None:
    """Agents start it in a project's folder, which may hold modules and a `.env` of its own."""
    shelf.put(["the needle"])
    folder = tmp_path / "project"
    for package in ("mcp", "openmem_hook", "click", "asyncio", "config"):
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text("raise SystemExit('hijacked')")
    (folder / ".env").write_text("OPENMEM_STATE_DIR=/nowhere")
    with Talk(folder=folder, home=tmp_path) as talk:
        assert [tool["name"] for tool in talk.ask("tools/list")["tools"]] == list(TOOLS)
        told = talk.ask("tools/call", name="smart_compact_search", arguments={"query": "needle"})
        assert "  1| the needle" in told["content"][0]["text"]


def test_with_several_tenants_it_refuses_and_lists_none(shelf: FilledStore, tmp_path: Path) -> None:
    owners = ("user:alice", "user:bob")
    for owner in owners:
        shelf.put(["the needle"], owner=owner)
    ended = subprocess.run(
        [OPENMEM, "mcp"], input=b"", capture_output=True, timeout=120, check=False,
        env={"HOME": str(tmp_path), "OPENMEM_STATE_DIR": str(tmp_path / "state")},
    )  # fmt: skip
    assert ended.returncode == 2
    assert ended.stdout == b""
    told = ended.stderr.decode()
    assert told.count("\n") == 1
    assert "more than one tenant" in told
    assert not any(names.tenant_folder(owner) in told or owner in told for owner in owners)


def test_a_tenant_is_named_as_its_owner_or_its_folder(shelf: FilledStore) -> None:
    for owner in ("user:alice", "team:red", "key:" + "a" * 64, "operator", "local"):
        shelf.put(["x"], owner=owner)
        assert folder_of(shelf.pool.folder, owner) == names.tenant_folder(owner)
    assert folder_of(shelf.pool.folder, "alice") == names.tenant_folder("user:alice")
    assert folder_of(shelf.pool.folder, names.tenant_folder("team:red")) == names.tenant_folder("team:red")


@pytest.mark.parametrize("tenant", ["nobody", "../..", "/etc", "0" * 32, "user:", ""])
def test_a_tenant_that_is_not_there_is_refused_and_not_made(tenant: str, tmp_path: Path) -> None:
    with pytest.raises(CannotRunError):
        folder_of(tmp_path / "context", tenant)
    assert not (tmp_path / "context").exists()
