"""Plans of conversations, free of any wire format, and their rendering in each.

A property test draws a `Talk` (small, shrinks well) and gets a body that the strict provider accepts. Ids are
numbered along the way, so equal plans give equal bodies; `size` scales all texts without changing the shape.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import builders as a
from . import chat_words as c
from . import responses_words as r
from .builders import Format, Json
from .filler import listing, prose

PNG = a.picture()


@dataclass(frozen=True, slots=True)
class Step:
    """One exchange: parallel calls, each with a kind of result, and what surrounds them.

    `results`: text, blocks, empty, error, image, reference, custom (own family in Responses).
    """

    results: tuple[str, ...] = ("text",)
    lead: bool = False
    thinks: bool = False
    search: bool = False
    mixed: bool = False
    system: bool = False
    reordered: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """Typed words, exchanges, and a closing text unless the turn still runs. `typed`: text, blocks, image,
    document, reminder (a reminder block before the words), repeat (words equal to those of other turns)."""

    typed: str = "text"
    steps: tuple[Step, ...] = ()
    notice: bool = False
    redacts: bool = False
    closes: bool = True


@dataclass(frozen=True, slots=True)
class Talk:
    """A conversation. Only its last turn may be open; `thinking` is "", adaptive or enabled."""

    turns: tuple[Turn, ...]
    thinking: str = ""
    marks: int = 0
    size: int = 40
    seed: int = 0
    developer: bool = False


def render(talk: Talk, fmt: Format) -> Json:
    """The body a client would send for this talk: it always ends with typed words or results."""
    return {"anthropic": _anthropic, "chat": _chat, "responses": _responses}[fmt](talk)


class _Ids:
    """Numbers for calls and texts, in the order of the talk."""

    def __init__(self, talk: Talk) -> None:
        self.talk, self.count = talk, 0

    def next(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}_{self.talk.seed}_{self.count}"

    def words(self, what: str, chars: int = 0) -> str:
        self.count += 1
        return prose(chars or self.talk.size, self.talk.seed, self.count, what)

    def lines(self) -> str:
        self.count += 1
        return listing(self.talk.size * 2, self.talk.seed, self.count)


def _anthropic(talk: Talk) -> Json:
    ids, messages = _Ids(talk), []
    for turn in talk.turns:
        messages += _anthropic_turn(ids, talk, turn)
    fields: Json = {"tools": [a.tool("Read"), a.tool("Bash"), a.tool("Found", defer_loading=True)]}
    if talk.thinking:
        budget = {"budget_tokens": 2048} if talk.thinking == "enabled" else {}
        fields["thinking"] = {"type": talk.thinking, **budget}
    body = a.body(*messages, **fields)
    return with_marks(body, talk.marks)


def with_marks(body: Json, count: int) -> Json:
    """The body with up to `count` breakpoints: last message first, then the system prompt, then back."""
    if count >= 1:
        body["messages"][-1] = _marked_last(body["messages"][-1])
    if count >= 2:
        body["system"] = [*body["system"][:-1], a.marked(body["system"][-1])]
    for message in [m for m in body["messages"][:-1] if m["role"] == "user"][-max(0, count - 2) :] if count > 2 else []:
        message.update(_marked_last(message))
    return body


def _marked_last(message: Json) -> Json:
    content = message["content"]
    blocks = [a.text(content)] if isinstance(content, str) else content
    return {**message, "content": [*blocks[:-1], a.marked(blocks[-1])]}


def _anthropic_turn(ids: _Ids, talk: Talk, turn: Turn) -> list[Json]:
    words = "continue" if turn.typed == "repeat" else ids.words("typed")
    made: list[Json] = [_anthropic_typed(turn, words)]
    if turn.notice:
        made.append(a.user(f"<task-notification>{ids.words('notice')}</task-notification>"))
    for at, step in enumerate(turn.steps):
        if step.system and made[-1]["role"] == "user":
            made.append(a.system(ids.words("system")))
        made += _anthropic_step(ids, talk, turn, step, first=at == 0)
    if turn.closes:
        lead = [_thought(ids, turn)] if talk.thinking and not turn.steps else []
        made.append(a.assistant(*lead, a.text(ids.words("reply"))))
    return made


def _anthropic_typed(turn: Turn, words: str) -> Json:
    shapes: dict[str, list[str | Json]] = {
        "blocks": [a.text(words)],
        "image": [a.image(PNG), words],
        "document": [a.document(), words],
        "reminder": [a.reminder(), words],
    }
    return a.user(*shapes.get(turn.typed, [words]))


def _thought(ids: _Ids, turn: Turn) -> Json:
    if turn.redacts:
        return a.redacted(f"cmVk{ids.next('x').replace('_', 'A')}")
    return a.thinking(ids.words("thought"), f"c2ln{ids.next('x').replace('_', 'A')}")


def _anthropic_step(ids: _Ids, talk: Talk, turn: Turn, step: Step, *, first: bool) -> list[Json]:
    blocks: list[str | Json] = []
    if talk.thinking and (first or step.thinks):
        blocks.append(_thought(ids, turn))
    if step.lead:
        blocks.append(a.text(ids.words("lead")))
    if step.search:
        blocks += a.server_search(ids.next("srvtoolu"))
    calls = [(ids.next("toolu"), kind) for kind in step.results]
    blocks += [a.tool_use(call, "Read", path=f"src/{call}.py", note=ids.words("args", 20)) for call, _ in calls]
    answers = [_anthropic_result(ids, call, kind) for call, kind in calls]
    if step.reordered:
        answers.reverse()
    if step.mixed:
        answers.append(a.text(ids.words("typed beside")))
    return [a.assistant(*blocks), a.results(*answers)]


def _anthropic_result(ids: _Ids, call: str, kind: str) -> Json:
    contents: dict[str, Any] = {
        "blocks": [a.text(ids.lines()), a.text(ids.words("more"))],
        "empty": "",
        "image": [a.text("a picture"), a.image(PNG)],
        "reference": [a.reference("Found")],
    }
    return a.tool_result(call, contents[kind] if kind in contents else ids.lines(), is_error=kind == "error")


def _chat(talk: Talk) -> Json:
    ids = _Ids(talk)
    messages = [c.developer(ids.words("developer")) if talk.developer else c.system(ids.words("system"))]
    for turn in talk.turns:
        words = "continue" if turn.typed == "repeat" else ids.words("typed")
        shapes: dict[str, list[str | Json]] = {
            "blocks": [c.text(words)],
            "image": [words, c.image(PNG)],
            "reminder": [c.text("<system-reminder>Be brief.</system-reminder>"), words],
        }
        if any(step.system for step in turn.steps):
            messages.append(c.developer(ids.words("developer")))
        messages.append(c.user(*shapes.get(turn.typed, [words])))
        for step in turn.steps:
            messages += _chat_step(ids, step)
        if turn.closes:
            messages.append(c.assistant(ids.words("reply")))
    return c.body(*messages)


def _chat_step(ids: _Ids, step: Step) -> list[Json]:
    calls = [(ids.next("call"), kind) for kind in step.results]
    made = c.assistant(
        ids.words("lead") if step.lead else None,
        *(c.call(call, path=f"src/{call}.py", note=ids.words("args", 20)) for call, _ in calls),
    )
    answers = []
    for call, kind in calls:
        content: Any = "" if kind == "empty" else ids.lines()
        answers.append(c.result(call, [c.text(content)] if kind == "blocks" else content))
    if step.reordered:
        answers.reverse()
    return [made, *answers, *([c.user(ids.words("typed beside"))] if step.mixed else [])]


def _responses(talk: Talk) -> Json:
    ids, items = _Ids(talk), []
    if talk.developer:
        items += [r.developer(ids.words("developer")), r.user("<environment_context>here</environment_context>")]
    for turn in talk.turns:
        words = "continue" if turn.typed == "repeat" else ids.words("typed")
        parts: list[str | Json] = [words, r.image(PNG)] if turn.typed == "image" else [words]
        items.append(r.user(*parts) if turn.typed != "blocks" else {"role": "user", "content": words})
        for step in turn.steps:
            items += _responses_step(ids, talk, step)
        if turn.closes:
            items += [_encrypted(ids)] if talk.thinking else []
            items.append(r.assistant(ids.words("reply"), ids.next("msg")))
    return r.body(*items)


def _encrypted(ids: _Ids) -> Json:
    return r.reasoning(ids.next("rs"), "gAAA" + ids.words("cipher").replace(" ", "x"))


def _responses_step(ids: _Ids, talk: Talk, step: Step) -> list[Json]:
    made: list[Json] = []
    if talk.thinking and step.thinks:
        made += [_encrypted(ids) for _ in range(2 if step.reordered else 1)]
    if step.search:
        made.append(r.web_search(ids.next("ws")))
    if step.lead:
        made.append(r.assistant(ids.words("lead"), ids.next("msg")))
    answers = []
    for kind in step.results:
        call = ids.next("call")
        if kind == "custom":
            made.append(r.custom_call(call, ids.words("patch")))
            answers.append(r.custom_output(call, ids.lines()))
        elif kind == "error":
            made.append(r.shell_call(call))
            answers.append(r.shell_output(call, ids.lines()))
        else:
            made.append(r.call(call, path=f"src/{call}.py", note=ids.words("args", 20)))
            parts = [{"type": "input_text", "text": ids.lines()}]
            content: Any = "" if kind == "empty" else parts if kind == "blocks" else ids.lines()
            answers.append(r.output(call, [*parts, r.image(PNG)] if kind == "image" else content))
    if step.reordered:
        answers.reverse()
    beside = [r.user(ids.words("typed beside"))] if step.mixed else []
    late = [r.developer(ids.words("developer"))] if step.system else []
    return [*made, *answers, *beside, *late]
