"""Forty-eight questions about what was said long ago, through the running gateway and its tools, without a model.

A scripted agent streams 4,000 records and 6,400 log lines in as typed turns. Asked later, it looks at what the
provider was sent last, and, where that doesn't say it, calls a tool over HTTP, as a model would.
"""

from __future__ import annotations

import random
import re
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass

import httpx
import pytest

from tests.harness.gateway_process import Gateway, Upstream, bearer, configuration, events, serving
from tests.kit.clients import ClaudeCode
from tests.kit.mcp_client import call

pytestmark = pytest.mark.e2e
TRIM_AT = 40_000
PER_TURN = 100
QUIET = "[[calls:0 text:0 think:0 say:noted]]"
"""Tells the scripted model to answer with a word."""
POINTER = re.compile(r"Session id: ([0-9a-f]{16})")


# --- what is told -------------------------------------------------------------------------------------------

SERVICES = ("auth", "billing", "cart-api", "mail.out", "search", "стор", "検索")
LEVELS = ("DEBUG", "INFO", "INFO", "INFO", "WARN", "ERROR")


def records(draw: random.Random) -> dict[str, str]:
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    word = lambda size: "".join(draw.choices(letters, k=size))  # noqa: E731
    return {f"{word(6)}-{number:04}": f"{word(30)} {word(40)}/{word(30)}" for number in range(4_000)}


def log(draw: random.Random) -> list[str]:
    paths = ("items", "carts", "users")
    return [
        f"2026-01-{1 + n // 300:02}T{n // 60 % 24:02}:{n % 60:02}:00Z level={draw.choice(LEVELS)} "
        f"service={draw.choice(SERVICES)} status={draw.choice((200, 200, 204, 404, 500, 503))} "
        f"user=u{draw.randrange(60)} took={draw.randrange(2_000)}ms path=/v1/{draw.choice(paths)}/{n}"
        for n in range(6_400)
    ]


# --- what is asked ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """`tool` are the arguments of the search that answers it; `seen` and `told` read an answer from what the request
    still shows, and from what the tool says. What is `once` needs no search when it can be seen; a count does."""

    typed: str
    answer: str
    tool: dict[str, str]
    seen: Callable[[str], str | None]
    told: Callable[[str], str | None]
    once: bool


def first(pattern: str, text: str) -> str | None:
    found = re.search(pattern, text, re.MULTILINE)
    return None if found is None else found[1]


def lookup(key: str, value: str) -> Question:
    shown = rf"\brecord {re.escape(key)} = (.*)$"
    return Question(
        f"Which value has the record that begins with {key[:5]}, number {key[-4:]}?",
        value,
        {"query": f'"record {key}"'},
        lambda text: first(shown, text),
        lambda text: first(shown, text),
        once=True,
    )


def counted(words: str, test: Callable[[str], bool], lines: Sequence[str], **tool: str) -> Question:
    return Question(
        f"How many log lines are there: {words}?",
        str(sum(map(test, lines))),
        tool,
        lambda text: str(sum(test(line) for line in text.splitlines() if line.startswith("2026-"))),
        lambda text: first(r"^line_matches: (\d+)$", text),
        once=False,
    )


def counts(lines: Sequence[str]) -> list[Question]:
    def has(*parts: str) -> Callable[[str], bool]:
        return lambda line: all(f" {part} " in line for part in parts)

    def like(pattern: str) -> Callable[[str], bool]:
        return lambda line: re.search(pattern, line) is not None

    asked = [counted(f"of {s}", has(f"service={s}"), lines, query=f"service={s}") for s in SERVICES]
    asked += [counted(f"grade {v}", has(f"level={v}"), lines, query=f"level={v}") for v in LEVELS[2:]]
    asked += [
        counted(f"failed ones of {s}", has("level=ERROR", f"service={s}"), lines, query=f"level=ERROR service={s}")
        for s in SERVICES[:5]
    ]
    patterns = {
        "server faults": r"status=5\d\d",
        "slow ones": r"took=1\d{3}ms",
        "faults of the first service": r"service=auth status=5",
        "in the tenth hour": r"T10:\d\d:00Z",
        "of nobody's": r"user=nobody",
        "of persons one to nine": r"(?i)USER=U[1-9] ",
        "of carts, warned": r"level=WARN .*path=/v1/carts/",
        "not fine": r"status=(?!2)\d+ ",
    }
    asked += [counted(words, like(pattern), lines, pattern=pattern) for words, pattern in patterns.items()]
    return asked


# --- who answers --------------------------------------------------------------------------------------------


@dataclass
class Answering:
    """The scripted agent. `seen`: the text of the request that the provider got last."""

    http: httpx.AsyncClient
    provider: Upstream
    agent: ClaudeCode
    tools: bool
    searches: int = 0

    async def tell(self, lines: Sequence[str]) -> None:
        for at in range(0, len(lines), PER_TURN):
            await self.agent.say("\n".join([*lines[at : at + PER_TURN], QUIET]))

    async def answer(self, question: Question) -> str | None:
        await self.agent.say(f"{question.typed}\n{QUIET}")
        seen = self.seen()
        session = POINTER.search(seen)
        found = question.seen(seen)
        if not self.tools or session is None or (question.once and found is not None):
            return found
        self.searches += 1
        told, failed = await call(
            self.http, "smart_compact_search", bearer("alice"), session_id=session[1], **question.tool
        )
        assert not failed, told
        return question.told(told)

    def seen(self) -> str:
        parts = []
        for message in self.provider.bodies[-1]["messages"]:
            content = message["content"]
            parts += [content] if isinstance(content, str) else [block.get("text", "") for block in content]
        return "\n".join(parts)


@pytest.fixture(scope="module")
def running(upstream: Upstream, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    config = configuration(upstream.address, trim_at_tokens=TRIM_AT)
    with serving(Gateway(tmp_path_factory.mktemp("asked"), config)) as started:
        yield started


@pytest.fixture
async def client(running: Gateway) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=running.address, timeout=120, trust_env=False) as made:
        yield made


async def right_answers(answering: Answering, questions: Sequence[Question]) -> int:
    right = 0
    for question in questions:
        found = await answering.answer(question)
        right += found == question.answer
        if answering.tools:
            assert found == question.answer, question.typed
    return right


def made(kind: str) -> tuple[list[str], list[Question]]:
    """What is told, and 24 questions about it."""
    draw = random.Random(48)
    if kind == "lookups":
        held = records(draw)
        asked = [lookup(key, held[key]) for key in draw.sample(sorted(held), 24)]
        return [f"record {key} = {value}" for key, value in held.items()], asked
    lines = log(draw)
    return lines, counts(lines)


@pytest.mark.parametrize(("kind", "searches"), [("lookups", range(12, 25)), ("counts", range(24, 25))])
async def test_with_the_tools_every_question_is_answered_in_one_search_and_without_them_few(
    kind: str,
    searches: range,
    running: Gateway,
    client: httpx.AsyncClient,
    upstream: Upstream,
) -> None:
    lines, questions = made(kind)
    assert len(questions) == 24
    agent = ClaudeCode(client, model="claude-kit", session=f"tag-{kind}", headers=bearer("alice"), stream=False)
    answering = Answering(client, upstream, agent, tools=True)
    await answering.tell(lines)
    assert lines[-1] in answering.seen()
    assert lines[PER_TURN] not in answering.seen()
    assert len(events(running.session_with(lines[0]), "trim")) >= 3
    assert await right_answers(answering, questions) == 24
    assert answering.searches in searches
    without = await right_answers(Answering(client, upstream, agent, tools=False), questions)
    assert without <= 10
    print(f"{kind}: 24 of 24 with {answering.searches} searches, {without} of 24 without the tools")
