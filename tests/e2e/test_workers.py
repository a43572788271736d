"""Two workers on one store, workers that are killed, gateways that are killed and come back changed."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest

from tests.harness.conversation import SESSION_HEADER
from tests.harness.gateway_process import START_S, Gateway, Upstream, bearer, configuration, events, serving, until
from tests.harness.tracked_session import CLIENTS, TrackedSession, begin, of_provider, of_record
from tests.kit import builders
from tests.kit.builders import Format, Json

pytestmark = pytest.mark.e2e

PATIENT = {"retries": 600, "retry_delay_s": 0.5}
"""How long a client goes on trying while its gateway is away."""
LOST = 6
"""Records that two kills may take along."""
ROUTES: dict[Format, tuple[str, str]] = {
    "anthropic": ("/v1/messages", "claude-kit"),
    "chat": ("/v1/chat/completions", "local-kit"),
    "responses": ("/v1/responses", "gpt-kit"),
}


@pytest.fixture(scope="module")
def pair(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """A gateway of two workers."""
    made = Gateway(tmp_path_factory.mktemp("pair"), configuration(upstream.address), workers=2)
    with serving(made) as started:
        yield started


@pytest.fixture
async def roaming(pair: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    """A connection a request, so that a session meets both workers."""
    limits = httpx.Limits(max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=pair.address, timeout=120, trust_env=False, limits=limits) as client:
        yield client


@pytest.fixture
def roam(roaming: httpx.AsyncClient, pair: Gateway, upstream: Upstream) -> Callable[..., TrackedSession]:
    return partial(begin, roaming, pair, upstream)


async def test_two_workers_serve_the_same_sessions_as_one(roam, pair: Gateway) -> None:
    running = [roam(client, f"tag-two-{client}") for client in CLIENTS]
    await asyncio.gather(*(session.turns(3) for session in running))
    for session in running:
        session.holds()
        assert session.events("trim")
    assert min(pair.served()) > 10


@pytest.mark.parametrize("fmt", ROUTES)
async def test_the_same_request_at_both_workers_at_once_goes_out_the_same(
    roaming, pair: Gateway, upstream: Upstream, fmt: Format
) -> None:
    """Neither worker has seen the session, and the request is over its limit: only one of them may decide."""
    for attempt in range(3):
        tag = f"tag-race-{fmt}-{attempt}"
        body = named(builders.session(fmt, exchanges=60, size=900, seed=attempt), tag, ROUTES[fmt][1])
        headers = {**bearer("alice"), SESSION_HEADER[fmt]: tag}
        answers = [roaming.post(ROUTES[fmt][0], json=body, headers=headers) for _ in range(6)]
        assert {answer.status_code for answer in await asyncio.gather(*answers)} == {200}
        assert len({tuple(note["blocks"]) for note in upstream.requests(tag)}) == 1
        assert len(events(pair.session_with(tag), "trim")) == 1


def named(body: Json, tag: str, model: str) -> Json:
    """The body with a tag in its first typed message, for this model."""
    made: Json = json.loads(json.dumps(body).replace("Task 0:", f"Task 0 {tag}:"))
    return made | {"model": model}


async def test_a_session_goes_on_when_a_worker_is_killed(roam, pair: Gateway) -> None:
    running = [roam(client, f"tag-worker-{client}", **PATIENT) for client in CLIENTS]
    working = asyncio.gather(*(session.turns(4) for session in running))
    await reached(running, 12)
    os.kill(pair.worker_ids()[0], signal.SIGKILL)
    await working
    for session in running:
        unharmed(session)


async def test_a_session_goes_on_when_the_gateway_is_killed_and_comes_back_with_other_settings(
    roam, pair: Gateway
) -> None:
    """What was sent is sent the same way: compression, note and rate of a thread were fixed when it began."""
    running = [roam(client, f"tag-killed-{client}", **PATIENT) for client in CLIENTS]
    working = asyncio.gather(*(session.turns(5) for session in running))
    await reached(running, 18)
    pair.kill()
    pair.workers = 1
    pair.configure(compress_over_tokens=100, standing_instruction=False, chars_per_token=4.0)
    await asyncio.to_thread(pair.start)
    await reached(running, 36)
    await asyncio.to_thread(pair.stop)
    pair.configure()
    await asyncio.to_thread(pair.start)
    await working
    for session in running:
        unharmed(session)
        assert not session.events("compression")


async def reached(running: list[TrackedSession], requests: int) -> None:
    """Waits until every session has been answered so many times."""

    def done() -> bool:
        return min(len(session.answered) for session in running) >= requests

    await asyncio.to_thread(until, done, f"{requests} requests of each session", START_S)


def unharmed(session: TrackedSession) -> None:
    """All laws hold; only records of answers that a killed process was about to write may be missing."""
    session.accepted()
    session.bounded()
    session.cached()
    session.kept()
    assert session.events("trim")
    until(lambda: sum((answers(session) - records(session)).values()) <= LOST, "usage records")
    assert not records(session) - answers(session)


def answers(session: TrackedSession) -> Counter[Any]:
    return Counter(map(of_provider, session.answered))


def records(session: TrackedSession) -> Counter[Any]:
    return Counter(map(of_record, session.events("usage")))
