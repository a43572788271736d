"""The behaviour of the fake model: a pure function from what it sees to its next output.

It is driven by markers in the last line of the newest typed words (words a proxy puts in front are thus no
orders), numbers unless said otherwise:

    [[calls:3 parallel:2 size:2000 args:500 text:300 think:200 tool:Read path:a.py lead:1 echo:1 say:ok]]

    calls     tool exchanges to make, one after another, before the final text
    parallel  calls in each exchange
    size      characters the tool should return (given to the tool as `size`, or as a `seq` command)
    args      characters of filler in each call's arguments
    text      characters of filler in the final text
    think     characters of thinking in each output (0: none, unless the provider's rules need some)
    tool      name of the tool to call, or the end of its name; else Read, Bash or what is there
    path      value for arguments that are paths
    lead      1: a sentence of text before the calls
    search    1: a provider-run web search before the final text, when such a tool was offered
    echo      1: the final text quotes the start of the last result
    say       a word for the final text; underscores read as spaces

    [[use:smart_compact_search {"query": "alpha"}]]

    One exchange with exactly these arguments; several in a row are made in order, and the final text quotes
    the last result.

Without a marker the model makes up to three exchanges, decided by seed and number of messages. Without tools
it only talks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from .filler import number, prose
from .situation import Situation, Tool

_MARKER = re.compile(r"\[\[((?:\w+:\S+\s*)+)\]\]")
_USE = re.compile(r"\[\[use:(\S+?)(?:\s+(\{.*?\}))?\s*\]\]")
PREFERRED = (
    "Read",
    "read",
    "Bash",
    "bash",
    "exec_command",
    "shell",
    "run_shell_command",
    "read_file",
    "view",
)
QUOTED_CHARS = 400


@dataclass(frozen=True, slots=True)
class Call:
    """`arguments` is an object, or text for a custom tool. `search` looks for tools that were not offered whole, and
    `namespace` is where such a tool was found."""

    id: str
    name: str
    arguments: Any
    custom: bool = False
    namespace: str = ""
    search: bool = False


@dataclass(frozen=True, slots=True)
class Output:
    """What the model says next. `thinking` is None for none at all, "" for thinking that isn't shown."""

    thinking: str | None = None
    text: str = ""
    search: str = ""
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """A marker as parsed; see the module's text."""

    calls: int = 0
    parallel: int = 1
    size: int = 400
    args: int = 0
    text: int = 0
    think: int = 120
    tool: str = ""
    path: str = ""
    lead: int = 0
    search: int = 0
    echo: int = 0
    say: str = ""
    uses: tuple[tuple[str, Any], ...] = field(default=())


def plan_of(typed: str) -> Plan | None:
    """The plan in the last line of typed words; None without one. Unknown keys are ignored."""
    line = next((line for line in reversed(typed.splitlines()) if line.strip()), "")
    uses = tuple((name, _json(held)) for name, held in _USE.findall(line))
    found = _MARKER.findall(_USE.sub("", line))
    if not found and not uses:
        return None
    pairs = dict(pair.split(":", 1) for pair in found[-1].split()) if found else {}
    known = {key: value for key, value in pairs.items() if key in Plan.__dataclass_fields__ and key != "uses"}
    values: dict[str, Any] = {k: v if k in {"tool", "path", "say"} else int(v) for k, v in known.items()}
    values["calls"] = max(len(uses), values.get("calls", 0))
    return replace(Plan(), uses=uses, **values)


def next_output(seen: Situation, *, seed: int, serial: str) -> Output:
    """The model's answer. `serial` makes call ids of one response unlike those of any other."""
    plan = plan_of(seen.typed) or _default_plan(seen, seed)
    thinking = _thought(seen, plan, serial)
    if seen.tools and seen.step < plan.calls:
        lead = f"Step {seen.step + 1} of {plan.calls}." if plan.lead else ""
        return Output(thinking, lead, "", _calls(seen, plan, serial))
    return Output(thinking, _final_text(seen, plan, seed), "kit" if plan.search and seen.can_search else "")


def _json(held: str) -> Any:
    """Arguments of a `use` marker; clients that quote prompts escape the quotes in it."""
    if not held:
        return {}
    try:
        return orjson.loads(held)
    except orjson.JSONDecodeError:
        return orjson.loads(held.replace('\\"', '"'))


def _default_plan(seen: Situation, seed: int) -> Plan:
    more = number(seed, seen.messages) % 3 != 0 and seen.step < 3
    return Plan(calls=seen.step + 1 if more else 0)


def _thought(seen: Situation, plan: Plan, serial: str) -> str | None:
    needed = seen.must_think and seen.step == 0
    if not seen.thinking or (plan.think == 0 and not needed):
        return None
    return "" if seen.thinking == "omitted" else prose(max(plan.think, 20), serial, "thought")


def _final_text(seen: Situation, plan: Plan, seed: int) -> str:
    pieces = [f"Done after {seen.step} exchanges."]
    if plan.say:
        pieces.append(plan.say.replace("_", " "))
    if (plan.echo or plan.uses) and seen.last_result:
        pieces.append(f"Result: {seen.last_result[:QUOTED_CHARS].strip()}")
    if plan.text:
        pieces.append(prose(plan.text, seed, seen.messages, "final"))
    return " ".join(pieces)


def _calls(seen: Situation, plan: Plan, serial: str) -> tuple[Call, ...]:
    if seen.step < len(plan.uses):
        name, arguments = plan.uses[seen.step]
        tool = _named(seen.tools, name) or Tool(name, {})
        call = Call(f"s_s{seen.step}p0_{serial}", tool.name, arguments)
        return (replace(call, namespace=tool.namespace, search=tool.search),)
    tool = (_named(seen.tools, plan.tool) if plan.tool else None) or _favourite(seen.tools)
    return tuple(
        Call(f"k_s{seen.step}p{at}_{serial}", tool.name, _arguments(tool, plan, seen.step, at), tool.custom)
        for at in range(plan.parallel)
    )


def _named(tools: tuple[Tool, ...], name: str) -> Tool | None:
    exact = [tool for tool in tools if tool.name == name]
    return next(iter(exact + [tool for tool in tools if tool.name.endswith(name)]), None)


def _favourite(tools: tuple[Tool, ...]) -> Tool:
    names = {tool.name: tool for tool in tools}
    return next((names[name] for name in PREFERRED if name in names), tools[0])


def _arguments(tool: Tool, plan: Plan, step: int, at: int) -> Any:
    filler = prose(plan.args, step, at, "args") if plan.args else ""
    if tool.custom:
        return f"*** Begin Patch\n{filler or 'note'} {step} {at}\n*** End Patch"
    properties: dict[str, Any] = tool.schema.get("properties") or {}
    wanted = set(tool.schema.get("required") or properties) | ({"size", "path", "command"} & set(properties))
    made = {name: _value(name, properties.get(name) or {}, plan, step, at) for name in properties if name in wanted}
    if filler:
        made["content" if "content" in properties else "note"] = filler
    return made


def _value(name: str, schema: dict[str, Any], plan: Plan, step: int, at: int) -> Any:
    kind = schema.get("type", "string")
    if schema.get("enum"):
        return schema["enum"][0]
    if name in {"command", "cmd"}:
        line = f"seq {10000 + 997 * step} {10000 + 997 * step + max(1, plan.size // 6) + at}"
        return ["bash", "-lc", line] if kind == "array" else line
    if name == "size":
        return plan.size
    if "path" in name.lower() or name == "file":
        return plan.path or f"src/file_{step}_{at}.py"
    plain = {"integer": 1, "number": 1, "boolean": False, "array": [], "object": {}}
    return plain.get(kind if isinstance(kind, str) else "string", f"kit {step} {at}")
