"""What the plugin owes a gateway that runs: the table of routes, token counting, fallbacks, the client's own keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx
import orjson
import pytest

from openmem_hook.replay.provider.counting import prompt_tokens
from tests.cases.test_gateway import MANAGED, trimmed
from tests.e2e import route_table as routes
from tests.e2e.route_table import Everything
from tests.harness.gateway_process import Gateway, Upstream, bearer, query, until
from tests.kit import builders as a
from tests.kit.builders import Format, Json

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    with routes.everything(tmp_path_factory.mktemp("everything")) as provider:
        yield provider


@pytest.fixture(scope="module")
def special(everything: Everything, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    with routes.special(tmp_path_factory.mktemp("special"), everything) as started:
        yield started


# --- which routes are served --------------------------------------------------------------------------------


async def test_the_page_about_routes_says_what_the_gateway_does(
    gateway: Gateway, upstream: Upstream, special: Gateway, everything: Everything
) -> None:
    found = await routes.measure_all(gateway, upstream, special, everything)
    assert routes.DOCS.read_text() == routes.page(found, measured_with()), (
        "python -m tests.e2e.route_table writes it anew"
    )
    for row, seen in found.items():
        assert all(one.trimmed == one.noted for one in seen), row
    assert unseen(gateway) == []
    assert unseen(special) == ["openmem: the gateway ran a _aresponses_websocket call without its pre-call hook"]


def measured_with() -> str:
    """The version that the page names: what holds for it has to hold for the one installed."""
    found = re.search(r"LiteLLM (\S+)", routes.DOCS.read_text())
    return found[1] if found else ""


def unseen(gateway: Gateway) -> list[str]:
    told = re.findall(r"openmem: the gateway ran a \w+ call without its pre-call hook", gateway.log.read_text())
    return [str(line) for line in told]


# --- token counting requests --------------------------------------------------------------------------------


def kept(gateway: Gateway) -> dict[str, Any]:
    """What the store holds: rows, edits and events of every session, and the catalogs' own."""
    tables = {"sessions": ("records", "edits", "events", "threads", "reports"), "catalog.db": ("sessions", "events")}
    return {
        f"{path.relative_to(gateway.store)} {table}": query(path, f"SELECT count(*) FROM {table}")
        for path in gateway.store.rglob("*.db")
        for table in tables.get(path.parent.name, tables["catalog.db"])
    }


@pytest.mark.parametrize("path", ["/v1/messages/count_tokens", "/anthropic/v1/messages/count_tokens"])
async def test_counting_gives_the_whole_history_and_leaves_no_trace(
    special: Gateway, everything: Everything, path: str
) -> None:
    tag = f"tag-count-{path.count('/')}"
    model = "claude-sonnet-5" if path.startswith("/anthropic") else "claude-kit"
    body = {**routes.long_session("anthropic", tag), "model": model}
    counted = {key: value for key, value in body.items() if key != "max_tokens"}
    session = bearer("alice") | {"x-claude-code-session-id": tag}
    small = {**counted, "messages": [a.user(f"{tag} a single file")], "tools": None}
    small = {key: value for key, value in small.items() if value is not None}
    async with httpx.AsyncClient(base_url=special.address, timeout=120, trust_env=False) as http:

        async def count(what: Json) -> int:
            return int((await http.post(path, json=what, headers=session)).json()["input_tokens"])

        before = [await count(counted), await count(small)]
        assert not any(tag in str(row) for row in everything.log)
        answer = await http.post("/v1/messages", json={**body, "model": "claude-kit"}, headers=session)
        assert answer.status_code == 200
        until(lambda: special.session_with(tag) and events_of(special, tag, "usage"), "the usage")
        store = kept(special)
        after = [await count(counted), await count(small), await count(counted)]
        assert after == [*before, before[0]]
        assert before[0] == prompt_tokens(counted, "anthropic")
        assert kept(special) == store
        again = await http.post("/v1/messages", json={**body, "model": "claude-kit"}, headers=session)
        assert again.status_code == 200
    sent = [raw for raw in everything.forwarded(tag) if "max_tokens" in raw]
    assert len(sent) == 2
    assert len(events_of(special, tag, "trim")) == 1


def events_of(gateway: Gateway, tag: str, kind: str) -> list[Any]:
    return query(gateway.session_with(tag), f"SELECT data FROM events WHERE kind = '{kind}'")


# --- fallback after the hook has run ------------------------------------------------------------------------


@pytest.mark.parametrize("stream", [False, True])
async def test_a_fallback_to_a_smaller_model_is_accepted(
    special: Gateway, everything: Everything, stream: bool
) -> None:
    tag = f"tag-fallback-{stream}"
    overloaded = {"status": 529, "message": "Overloaded"}
    everything.order({"fail_next": [overloaded], "limits": {"claude-haiku-4-5": routes.SMALL_WINDOW}})
    body = {**routes.long_session("anthropic", tag), "model": "claude-big", "stream": stream}
    assert prompt_tokens(body, "anthropic") > routes.SMALL_WINDOW
    settings = {"x-openmem": "trim_at_tokens=100000", "x-claude-code-session-id": tag}
    async with httpx.AsyncClient(base_url=special.address, timeout=120, trust_env=False) as http:
        answer = await http.post("/v1/messages", json=body, headers=bearer("alice") | settings)
    assert answer.status_code == 200, answer.text
    tried = everything.requests(tag)
    assert (tried[0]["model"], tried[0]["status"]) == ("claude-opus-4-5", 529)
    assert (tried[-1]["model"], tried[-1]["status"]) == ("claude-haiku-4-5", 200)
    assert tried[-1]["prompt_tokens"] <= routes.SMALL_WINDOW


# --- nothing of the plugin's leaks into the request ---------------------------------------------------------

KEYS = {"anthropic": set(), "chat": {"stream_options"}, "responses": set()}
"""What LiteLLM itself adds to a request on its way to a provider of the same API."""


@pytest.mark.parametrize(
    ("fmt", "path", "model"),
    [
        ("anthropic", "/v1/messages", "claude-kit"),
        ("chat", "/v1/chat/completions", "local-kit"),
        ("responses", "/v1/responses", "gpt-kit"),
    ],
)
async def test_the_provider_gets_the_clients_own_keys_and_metadata(
    gateway: Gateway, upstream: Upstream, http: httpx.AsyncClient, fmt: Format, path: str, model: str
) -> None:
    tag = f"tag-leak-{fmt}"
    body: Json = {**routes.long_session(fmt, tag), "model": model, "stream": True}
    if fmt == "anthropic":
        body |= {"metadata": {"user_id": "ada"}, **MANAGED["clearing"]}
    answer = await http.post(path, json=body, headers=bearer("alice") | {"x-session-id": tag})
    assert answer.status_code == 200, answer.text
    sent = next(one for one in reversed(upstream.bodies) if tag in orjson.dumps(one).decode())
    assert trimmed(sent)
    assert set(sent) - set(body) <= KEYS[fmt] | ({"instructions"} if fmt == "responses" else set())
    for key in ("metadata", "context_management"):
        assert sent.get(key) == body.get(key)
    assert b"compression_savings" not in orjson.dumps(sent)
