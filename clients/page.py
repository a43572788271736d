"""The table in docs/clients.md, from the results of the suite."""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path

from .drivers import CLIENTS

Checks = dict[str, dict[str, str]]
"""By client, the outcome of each check."""

DOCS = Path(__file__).parents[1] / "docs" / "clients.md"
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
LITELLM = "LiteLLM"
BEGIN, END = "<!-- written by `make clients` -->\n", "<!-- end -->"


def check_of(test: str) -> tuple[str, str]:
    """Client and check that a test is about, by its id."""
    client = max((client.name for client in CLIENTS if f"[{client.name}" in test), key=len)
    return client, next(check for check in CHECKS if check in test)


def read() -> Checks:
    """Each client's row: its checks, and the version of LiteLLM that it ran with."""
    held: Checks = json.loads(RESULTS.read_text("utf-8"))
    return held


def write(found: Checks) -> None:
    """Takes over the rows that ran whole."""
    ran = {client: checks for client, checks in found.items() if set(checks) == set(CHECKS)}
    rows = read() | {client: {**checks, LITELLM: version("litellm")} for client, checks in ran.items()}
    known = {client.name: {key: rows[client.name][key] for key in (LITELLM, *CHECKS)} for client in CLIENTS}
    RESULTS.write_text(json.dumps(known, indent=1) + "\n", "utf-8")
    before, _, after = _parts()
    DOCS.write_text(before + BEGIN + table(read()) + END + after, "utf-8")


def written() -> str:
    """The part of the page that this module writes."""
    return _parts()[1]


def _parts() -> list[str]:
    return re.split(f"{BEGIN}|{END}", DOCS.read_text("utf-8"))


def table(rows: Checks) -> str:
    lines = [f"| client | {' | '.join(CHECKS.values())} | {LITELLM} |", f"|{' --- |' * (len(CHECKS) + 2)}"]
    for client, row in rows.items():
        lines.append(f"| {client} | {' | '.join(WORDS[row[check]] for check in CHECKS)} | {row[LITELLM]} |")
    return "\n".join(lines) + "\n"
