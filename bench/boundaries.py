"""The real compactions in the corpus: what was there before, what the client and our request kept, what came next.

A session is replayed through the plugin as `openmem replay` does it. At the first request after each of the client's
own compactions, before anything newer is stored, the store can be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.estimates import corpus_dir
from openmem_hook.compactor import Compactor
from openmem_hook.formats import adapter_named
from openmem_hook.gateway.prices import shipped_costs
from openmem_hook.gateway.session import session_of
from openmem_hook.model import Adapter
from openmem_hook.replay import ReplayRequest, Step, Transcript, read
from openmem_hook.replay.provider.counting import message_tokens
from openmem_hook.replay.trial import TENANT, run
from openmem_hook.store import names
from openmem_hook.tools import Caller, ToolRunner
from tests.harness.filled_store import BlockingRunner


@dataclass(frozen=True, slots=True)
class Boundary:
    """`before` and `ours` and `summary` are lists of messages: the whole history, our request, what the client sent in
    its place. `ahead` are the agent's outputs from here on. `ask` calls one of the tools within the session."""

    session: Transcript
    index: int
    before: Sequence[Any]
    ours: Sequence[Any]
    summary: Sequence[Any]
    ahead: Sequence[Sequence[Any]]
    ask: Callable[..., str]

    @property
    def adapter(self) -> Adapter:
        found = adapter_named(self.session.format)
        assert found is not None
        return found

    def text(self, messages: Sequence[Any], kinds: frozenset[str]) -> str:
        parts = (part for raw in messages for part in self.adapter.parts_of(raw))
        return "\n".join(part.text for part in parts if part.kind in kinds)

    def tokens(self, messages: Sequence[Any]) -> int:
        return sum(message_tokens(raw, self.session.format) for raw in messages)


QUICK = 3
"""Transcripts looked at in a hurry."""


def rows_at(pattern: str, at: Callable[[Boundary], dict[str, Any]], quick: bool) -> list[dict[str, Any]]:
    """What `at` says of each boundary in the corpus files of this pattern."""
    paths = sorted(corpus_dir().glob(pattern))
    rows: list[dict[str, Any]] = []
    for path in paths[:QUICK] if quick else paths:
        each(path, lambda boundary: rows.append(at(boundary)))
    return rows


def each(path: Path, visit: Callable[[Boundary], None]) -> None:
    """Calls `visit` at every boundary of the transcript."""
    session = read(path)
    places = {at for at, step in enumerate(session.steps) if _is_boundary(session, step)}

    def seen(request: ReplayRequest, out: Mapping[str, Any], compactor: Compactor) -> None:
        if request.index in places:
            tools = BlockingRunner(ToolRunner(compactor.store.pool, compactor.store.executor))
            try:
                visit(_boundary(session, request, out, tools))
            finally:
                tools.close()

    if places:
        run(session, {}, shipped_costs(), seen)


def _is_boundary(session: Transcript, step: Step) -> bool:
    """The first request in which a summary stands for the history; a silent clearing leaves no such thing."""
    if step.parent is None or not step.is_actual_known:
        return False
    return session.steps[step.parent].segment < step.segment and len(step.actual_messages) < len(step.messages)


def _boundary(session: Transcript, request: ReplayRequest, out: Mapping[str, Any], tools: BlockingRunner) -> Boundary:
    step = session.steps[request.index]
    parent = session.steps[step.parent or 0]
    seen = session_of(request.headers, request.body)
    place = {"session_id": names.session_name(TENANT, seen.id or "")}

    def ask(tool: str, **given: Any) -> str:
        answer = tools.call(Caller(names.tenant_folder(TENANT)), tool, place | given)
        return answer.text

    return Boundary(
        session=session,
        index=request.index,
        before=[*parent.messages, *parent.reply],
        ours=out["input" if request.format == "responses" else "messages"],
        summary=step.actual_messages,
        ahead=list(_ahead(session, request.index)),
        ask=ask,
    )


def _ahead(session: Transcript, at: int) -> Iterator[Sequence[Any]]:
    """The replies on this branch, from this request on."""
    branch = session.steps[at].branch
    yield from (step.reply for step in session.steps[at:] if step.branch == branch and step.reply)
