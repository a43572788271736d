"""Public bug reports about the prompt cache: breakpoints, look-back, what moves and what must not."""

from __future__ import annotations

import asyncio
import copy
import itertools
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from openmem_hook import config
from openmem_hook.compactor import Compactor
from openmem_hook.gateway.hook import ContextHook
from openmem_hook.gateway.notices import Notices
from openmem_hook.replay.provider.breakpoints import Breakpoint, breakpoints
from openmem_hook.replay.provider.prompt_cache import AnthropicCache
from tests.conftest import make_key
from tests.harness.conversation import Conversation, messages_of, pointers
from tests.kit import builders as a
from tests.kit.builders import FORMATS, Format, Json, chat, responses, session
from tests.kit.filler import listing, prose
from tests.kit.histories import bodies, randoms
from tests.kit.prefix import canonical, check, without_breakpoints

SMALL = "trim_at_tokens=4000,compress_over_tokens=0"
NewHook = Callable[..., ContextHook]


def same(one: Any, other: Any) -> bool:
    return bool(orjson.dumps(one) == orjson.dumps(other))


def in_messages(body: Json) -> list[Breakpoint]:
    return [mark for mark in breakpoints(body) if mark.place.startswith("messages")]


def exchanges(count: int, prefix: str = "toolu", size: int = 400) -> list[Json]:
    made: list[Json] = []
    for n in range(count):
        call = f"{prefix}_{n}"
        made += [a.assistant(a.tool_use(call, path=call)), a.results(a.tool_result(call, listing(size, call)))]
    return made


# --- never more than four, never more than the client's ----------------------------------------------------------


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ContextHook]:
    """One hook for hundreds of small sessions."""
    state = tmp_path_factory.mktemp("cache")
    base = config.load({"compress_over_tokens": 0, "deadline_s": 60}, {"OPENMEM_STATE_DIR": str(state)})
    hook = ContextHook(base, Compactor(state / "context"), Notices())
    yield hook
    hook.compactor.close()


numbers = itertools.count()


def spots(body: Json) -> list[Json]:
    """Every block that may carry a breakpoint, in the provider's order."""
    found: list[Json] = [*body["tools"], *body["system"]]
    for message in body["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else []:
            inner = block.get("content")
            found += [part for part in inner if isinstance(part, dict)] if isinstance(inner, list) else []
            found.append(block)
    legal = ("thinking", "redacted_thinking", "server_tool_use", "web_search_result")
    return [b for b in found if b.get("type") not in legal and (b.get("type") != "text" or b["text"].strip())]


def scattered(body: Json, rng: Random) -> Json:
    """The body with none to four breakpoints anywhere, one-hour ones first."""
    made = copy.deepcopy(without_breakpoints(body))
    count = rng.randint(0, 4)
    hours = rng.randint(0, count)
    for message in made["messages"]:
        if isinstance(message["content"], str) and message["role"] != "system" and rng.random() < 0.7:
            message["content"] = [a.text(message["content"])]
    places = spots(made)
    chosen = sorted(rng.sample(range(len(places)), min(count, len(places))))
    for n, at in enumerate(chosen):
        places[at]["cache_control"] = {"type": "ephemeral"} | ({"ttl": "1h"} if n < hours else {})
    return made


@pytest.mark.laws
def test_breakpoints_of_the_client_are_never_more_after_a_trim(shared: ContextHook) -> None:
    trimmed = recreated = 0

    @settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
    @given(bodies("anthropic", size=200), randoms(use_true_random=False), st.integers(1000, 5000))
    def every(plain: Json, rng: Random, trim_at: int) -> None:
        nonlocal trimmed, recreated
        body = scattered(plain, rng)
        if check(body, "anthropic"):
            return
        key = make_key(f"user-{next(numbers)}")
        line = Conversation(shared, key=key, settings=f"trim_at_tokens={trim_at}")
        out = asyncio.run(line.send(body))
        assert len(breakpoints(out)) <= len(breakpoints(body)) <= 4
        assert bool(in_messages(out)) == bool(in_messages(body))
        trimmed += line.trims()
        recreated += line.trims() and bool(in_messages(body))

    every()
    assert trimmed > 30
    assert recreated > 10


@pytest.mark.parametrize("where", ["block", "message", "nested"])
async def test_in_chat_a_lost_breakpoint_of_the_anthropic_style_stands_again(where: str, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    marker = {"type": "ephemeral", "ttl": "1h"}
    history = messages_of(session("chat", exchanges=60))
    if where == "message":
        history[20]["cache_control"] = marker
    elif where == "block":
        history[1]["content"] = [{**chat.text(history[1]["content"]), "cache_control": marker}]
    else:
        history[21]["content"] = [{**chat.text("a"), "cache_control": marker}, chat.text("b")]
    out = await line.send({**chat.body(), "messages": history})
    assert line.trims() == 1
    assert orjson.dumps(out).count(b"cache_control") == 1
    assert messages_of(out)[-1]["content"][-1]["cache_control"] == marker


async def test_a_request_without_breakpoints_gets_none(new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    out = await line.send(session("anthropic", exchanges=60))
    assert line.trims() == 1
    assert breakpoints(out) == []


@pytest.mark.parametrize("value", [{"type": "ephemeral"}, {"type": "ephemeral", "ttl": "9h"}, "ephemeral"])
async def test_what_a_call_says_about_breakpoints_is_data(value: Any, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    edit = a.assistant(a.tool_use("toolu_edit", "Found", cache_control=value, nested=[{"cache_control": value}]))
    reference = a.results(a.tool_result("toolu_edit", [a.reference("Found")]))
    history = [a.user("Cache it."), *exchanges(5, "old"), edit, reference, *exchanges(60)]
    history += [a.assistant(a.tool_use("toolu_use", "Found")), a.results(a.tool_result("toolu_use"))]
    out = await line.send(a.body(*history, tools=[a.tool("Read"), a.tool("Found", defer_loading=True)]))
    assert line.trims() == 1
    assert breakpoints(out) == []
    assert edit in messages_of(out)


# --- where a breakpoint may stand ------------------------------------------------------------------------------

EMPTY = a.text("")
LAST: dict[str, tuple[list[Json], str]] = {
    "picture and empty text": ([a.user(a.image(), EMPTY)], "image"),
    "empty text alone": ([a.results(EMPTY)], "tool_result"),
    "spaces": ([a.user(a.text("Words."), a.text(" \n "))], "text"),
    "prefill": ([a.user("Answer."), a.assistant(a.text("The answer is"))], "text"),
    "ends in thinking": ([a.user("Answer."), a.assistant(a.text("Well."), a.thinking())], "text"),
    "empty string": ([{"role": "user", "content": ""}], "tool_result"),
    "result that ends in empty text": (
        [
            a.assistant(a.tool_use("toolu_last")),
            a.results(a.tool_result("toolu_last", [a.text("Fine."), EMPTY])),
        ],
        "tool_result",
    ),
    "server tool": ([a.user("Search."), a.assistant(*a.server_search("srvtoolu_last"))], "text"),
    "system": ([a.user("Answer."), a.system("Be brief.")], "text"),
}


@pytest.mark.parametrize("shape", LAST)
@pytest.mark.parametrize("ttl", ["", "1h"])
async def test_a_breakpoint_stands_again_on_a_legal_block_only(shape: str, ttl: str, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    messages, kind = LAST[shape]
    start = a.user(a.marked(a.text("Sort out the parser."), ttl))
    out = await line.send(a.body(start, *exchanges(60), *copy.deepcopy(messages)))
    assert line.trims() == 1
    (mark,) = breakpoints(out)
    assert (mark.kind, mark.ttl) == (kind, ttl or "5m")
    assert mark.text is None or mark.text.strip()
    made = messages_of(out)[int(mark.place.split(".")[1])]
    assert made["role"] == "user"


async def test_with_no_legal_block_left_there_is_no_breakpoint(new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    thoughts = [a.assistant(a.thinking()), a.user(a.text(" "))]
    start = [a.user(a.marked(a.text("Sort out the parser."))), *exchanges(60), a.assistant("Done.")]
    out = await line.send(a.body(*start, a.user("Next."), *thoughts))
    assert line.trims() == 1
    assert len(breakpoints(out)) == 1
    assert pointers(out)


# --- breakpoints of the tail, and the 20 blocks a provider looks back ----------------------------------------------


def marked_last(history: list[Json], count: int, ttl: str = "") -> list[Json]:
    """The history as a client sends it: breakpoints on its last user messages, none on older ones."""
    made = copy.deepcopy(history)
    users = [message for message in made if message["role"] == "user"]
    for message in users[-count:]:
        content = message["content"]
        blocks = [a.text(content)] if isinstance(content, str) else content
        message["content"] = [*blocks[:-1], a.marked(blocks[-1], ttl)]
    return made


def parallel(step: int, width: int, size: int = 60) -> list[Json]:
    calls = [f"toolu_{step}_{n}" for n in range(width)]
    answers = [a.tool_result(call, listing(size, call)) for call in calls]
    return [a.assistant(*(a.tool_use(call) for call in calls)), a.results(*answers)]


@pytest.mark.parametrize("count", [1, 2, 3])
async def test_breakpoints_in_the_tail_stay_on_their_blocks(count: int, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings=SMALL)
    history = marked_last([a.user("Read all."), *exchanges(60)], count, "1h")
    out = await line.send(a.body(*history))
    assert line.trims() == 1
    theirs = [(orjson.dumps(m)) for m in history if b"cache_control" in orjson.dumps(m)]
    assert [orjson.dumps(m) for m in messages_of(out) if b"cache_control" in orjson.dumps(m)] == theirs


@pytest.mark.parametrize("width", [1, 8, 30])
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("turns", [False, True])
async def test_the_cache_misses_at_a_break_and_not_otherwise(
    width: int, count: int, turns: bool, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings="trim_at_tokens=12000,compress_over_tokens=0")
    ours, theirs = AnthropicCache(), AnthropicCache()
    system = [a.marked(a.text(prose(6000, "system")))]
    history, now = [a.user("Read all.")], 0.0
    for step in itertools.count():
        if line.trims() == 2:
            break
        cuts = line.trims()
        body = a.body(*marked_last(history, count), system=system)
        before = theirs.request(body, now)
        use = ours.request(await line.send(body), now)
        assert use.read > 0 or step == 0
        if line.trims() == cuts and step:
            assert use.fresh == before.fresh or use.fresh < 100
            lost = before.written_5m if count == 1 else 0
            assert use.written_5m <= max(lost, before.written_5m) + 400, (step, use, before)
        history += parallel(step, width, size=400)
        if turns and step % 5 == 4:
            history += [a.assistant("Done."), a.user(f"Next task {step}.")]
        now += 10


@pytest.mark.parametrize("width", [1, 30])
async def test_where_a_trim_took_every_breakpoint_the_next_request_still_hits(width: int, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings="trim_at_tokens=15000,compress_over_tokens=0")
    cache = AnthropicCache()
    history = [a.user("Read all."), *exchanges(100)]
    history += parallel(0, width, 1000 // width)
    body = a.body(*marked_last(history[:3], 2), *history[3:], system=[a.text(prose(6000, "system"))])
    out = await line.send(body)
    assert line.trims() == 1
    (mark,) = breakpoints(out)
    assert mark.place.startswith(f"messages.{len(messages_of(out)) - 1}.")
    cache.request(out, 0.0)
    later = await line.send(a.body(*marked_last([*history, *parallel(9, width)], 2), system=body["system"]))
    use = cache.request(later, 10.0)
    assert line.trims() == 1
    assert use.read > use.written_5m


async def test_a_compressed_result_keeps_the_breakpoint_of_its_parts(new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings="compress_over_tokens=100")
    parts = [a.text(listing(4000, 1)), a.image(), a.marked(a.text(listing(4000, 2)), "1h")]
    history = [a.user("Read."), a.assistant(a.tool_use("toolu_1")), a.results(a.tool_result("toolu_1", parts))]
    out = await line.send(a.body(*history))
    assert line.events("compression")
    (mark,) = breakpoints(out)
    assert mark.ttl == "1h"


# --- breakpoints move forward --------------------------------------------------------------------------------


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("count", [1, 2])
async def test_breakpoints_that_move_are_no_other_history(nested: bool, count: int, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings="trim_at_tokens=8000,compress_over_tokens=0")
    history = [a.user("Read all."), *exchanges(70)]
    for message in history[2::2] if nested else []:
        message["content"][0]["content"] = [a.text(message["content"][0]["content"])]
    for end in range(101, 142, 2):
        body = a.body(*marked_last(history[:end], count))
        for message in messages_of(body)[-2 * count :] if nested else []:
            if message["role"] == "user" and message["content"][0]["type"] == "tool_result":
                (block,) = message["content"]
                block["content"] = [a.marked(block["content"][0])]
                del block["cache_control"]
        await line.send(body)
    rows = line.rows()
    assert len(rows) == len(history)
    assert [canonical(_one_block(row.raw)) for row in rows] == [canonical(_one_block(m)) for m in history]
    assert line.trims() == 1
    assert len({row.thread for row in rows}) == 1


def _one_block(message: Json) -> Json:
    content = message["content"]
    return {**message, "content": [a.text(content)] if isinstance(content, str) else content}


# --- tools and instructions change in mid-session ----------------------------------------------------------------


def tool_of(fmt: Format, name: str, words: str = "Does it.") -> Json:
    made = {"anthropic": a.tool, "chat": chat.tool, "responses": responses.tool}[fmt](name)
    (made["function"] if fmt == "chat" else made)["description"] = words
    return made


SERVER_TOOLS: dict[Format, list[Json]] = {
    "anthropic": [{"type": "web_search_20250305", "name": "web_search"}, {"type": "bash_20250124", "name": "bash"}],
    "chat": [{"type": "custom", "custom": {"name": "patch", "description": "Edits."}}],
    "responses": [
        {"type": "web_search"},
        {"type": "local_shell"},
        {"type": "custom", "name": "apply_patch"},
        {"type": "namespace", "name": "crm", "description": "CRM.", "tools": [responses.tool("crm_list")]},
        {"type": "mcp", "server_label": "docs", "server_url": "http://localhost/mcp"},
    ],
}


def instructed(fmt: Format, body: Json, words: str) -> Json:
    """The body with other instructions, where its API has them."""
    if fmt == "chat":
        return {**body, "messages": [chat.system(words), *body["messages"][1:]]}
    return body | {"system" if fmt == "anthropic" else "instructions": words}


@pytest.mark.parametrize("fmt", FORMATS)
async def test_tools_and_instructions_that_change_leave_session_and_cut_alone(fmt: Format, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings="trim_at_tokens=20000,compress_over_tokens=0")
    first = [tool_of(fmt, "Read"), tool_of(fmt, "Bash"), *SERVER_TOOLS[fmt]]
    more = [tool_of(fmt, "Read", "Reads it now."), *first[1:], *(tool_of(fmt, f"mcp_{n}") for n in range(12))]
    changes: dict[int, Callable[[Json], Json]] = {
        30: lambda body: body | {"tools": more},
        31: lambda body: instructed(fmt, body | {"tools": more}, "Now a pirate."),
        32: lambda body: body | {"tools": []},
        33: lambda body: body | {"tools": None},
        34: lambda body: body | {"tools": first},
    }
    heads = set()
    for turn in range(26, 36):
        body = session(fmt, exchanges=4, size=600, turns=turn, seed=0) | {"tools": first}
        body = changes.get(turn, lambda same_body: same_body)(body)
        if fmt == "chat" and turn in (31, 32, 34):  # the system message changes, which breaks no law here
            line.last = None
        out = await line.send(body)
        assert same(out["tools"], body["tools"])
        shown = messages_of(out)
        heads.add(orjson.dumps([m for m in shown if "<openmem-pointer>\\n" in orjson.dumps(m).decode()]))
    assert line.trims() == 1
    assert len(heads) == 1
    assert {row.thread for row in line.rows()} == {"main-1"}


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("tools", [[], None])
async def test_results_once_sent_short_stay_short_without_tools(
    fmt: Format, tools: list[Json] | None, new_hook: NewHook
) -> None:
    line = Conversation(new_hook(), settings="compress_over_tokens=300")
    body = session(fmt, exchanges=4, size=6000)
    out = await line.send(body)
    assert len(line.events("compression")) == 4
    line.last = None
    without = await line.send(body | {"tools": tools})
    assert same(messages_of(without)[1:], messages_of(out)[1:])


@pytest.mark.parametrize("fmt", FORMATS)
async def test_tools_and_instructions_count_in_the_estimate(fmt: Format, new_hook: NewHook) -> None:
    line = Conversation(new_hook())
    body = session(fmt, exchanges=4)
    tools = [*body["tools"], *(tool_of(fmt, f"mcp_{n}", prose(900, n)) for n in range(12))]
    for given_body in (body, body | {"tools": tools}, instructed(fmt, body, prose(9000, "instructions"))):
        await line.send(given_body)
        await line.report(0)
    plain, with_tools, told = (event["estimate"] for event in line.events("usage"))
    assert 12 * 900 / 4 < with_tools - plain < 12 * 1500
    assert 9000 / 4 < told - plain < 9000


@pytest.mark.parametrize("fmt", FORMATS)
async def test_more_tools_bring_the_cut_forward_once(fmt: Format, new_hook: NewHook) -> None:
    line = Conversation(new_hook(), settings="trim_at_tokens=20000,compress_over_tokens=0")
    tools = [tool_of(fmt, f"mcp_{n}", prose(1200, n)) for n in range(20)]
    small = session(fmt, exchanges=50, size=400)
    await line.send(small)
    assert line.trims() == 0
    for exchanges_made in range(51, 60):
        await line.send(session(fmt, exchanges=exchanges_made, size=400) | {"tools": [*small["tools"], *tools]})
        assert line.trims() == 1
