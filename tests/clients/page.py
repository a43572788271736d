"""The table in docs/clients.md, from the results of the suite."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

from .drivers import CLIENTS

Results = dict[str, dict[str, str]]

DOCS = Path(__file__).parents[2] / "docs" / "clients.md"
RESULTS = Path(__file__).with_name("results.json")
CHECKS = {
    "long_session": "long session",
    "sub_agent": "sub-agent",
    "own_compaction": "own compaction",
    "typed": "`/smart-compact` typed",
    "command file": "`/smart-compact` by file",
    "fork": "fork",
}
"""Each check's column, by a part of its test's name and parameters."""
WORDS = {"passed": "yes", "failed": "**no**", "skipped": "-"}
BEGIN, END = "<!-- written by `make clients` -->\n", "<!-- end -->"


def check_of(test: str) -> tuple[str, str]:
    """Client and check that a test is about, by its id."""
    words = test.replace("_s_own_", "_own_")
    client = max((client.name for client in CLIENTS if f"[{client.name}" in test), key=len)
    return client, next(check for check in CHECKS if check in words)


def read() -> tuple[str, Results]:
    """LiteLLM's version, and the results."""
    held: dict[str, Any] = (
        json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {"litellm": "", "clients": {}}
    )
    return held["litellm"], held["clients"]


def write(found: Results) -> None:
    """Takes over what ran whole."""
    results = read()[1] | {client: checks for client, checks in found.items() if set(checks) == set(CHECKS)}
    results = {
        client.name: {check: results[client.name][check] for check in CHECKS}
        for client in CLIENTS
        if client.name in results
    }
    RESULTS.write_text(json.dumps({"litellm": version("litellm"), "clients": results}, indent=1) + "\n", "utf-8")
    before, _, after = _parts()
    DOCS.write_text(before + BEGIN + table(*read()) + END + after, "utf-8")


def written() -> str:
    """The part of the page that this module writes."""
    return _parts()[1]


def _parts() -> list[str]:
    return re.split(f"{BEGIN}|{END}", DOCS.read_text("utf-8"))


def table(litellm: str, results: Results) -> str:
    columns = ["client", *CHECKS.values()]
    lines = [f"| {' | '.join(columns)} |", f"|{' --- |' * len(columns)}"]
    for client, checks in results.items():
        lines.append(f"| {client} | {' | '.join(WORDS[checks[check]] for check in CHECKS)} |")
    return f"Last run with LiteLLM {litellm}:\n\n" + "\n".join(lines) + "\n"
