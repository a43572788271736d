"""The one way a body becomes a `History`, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openmem_hook import fingerprint, tokens
from openmem_hook.formats import blocks
from openmem_hook.messages import Adapter, Facts, History, Memo, Raw, facts_about
from openmem_hook.tokens import Sizes


def messages_of(adapter: Adapter, body: Mapping[str, Any]) -> list[Raw]:
    given = body[adapter.messages_key]
    return [given] if isinstance(given, str) else given


def decode(adapter: Adapter, body: Mapping[str, Any], memo: Memo) -> History:
    """The body's messages with their facts and fingerprints. `memo` is read and added to."""
    messages = messages_of(adapter, body)
    facts = [_facts(adapter, raw, memo) for raw in messages]
    lead, compacted = _lead(adapter, messages, facts)
    keys: list[bytes] = []
    chain: list[bytes] = []
    past = fingerprint.ROOT
    prompt = lead if not compacted else adapter.lead_of(messages)
    for i, fact in enumerate(facts):
        if fact.identifies and i >= prompt:
            past = fingerprint.chain(past, fact.digest)
            keys.append(past)
        else:
            keys.append(fingerprint.aside(past, fact.digest))
        chain.append(past)
    sizes, size, names, deferred = _overhead(adapter, body, memo)
    return History(
        messages=messages,
        facts=facts,
        keys=keys,
        chain=chain,
        lead=lead,
        overhead=sizes,
        overhead_bytes=size,
        has_tools=bool(body.get("tools")),
        tool_names=names,
        deferred=deferred,
        must_start_with_thinking=adapter.must_start_with_thinking(body),
        lead_counts=not compacted,
    )


def _facts(adapter: Adapter, raw: Raw, memo: Memo) -> Facts:
    payload = fingerprint.dump(raw)
    key = fingerprint.content_key(payload)
    known = memo.facts.get(key)
    if known is None:
        known = memo.facts[key] = facts_about(adapter, raw, len(payload))
    return known


def _lead(adapter: Adapter, messages: Sequence[Raw], facts: Sequence[Facts]) -> tuple[int, bool]:
    """Messages at the front that no edit touches, and whether a provider's compaction is among them."""
    last = next((i for i in range(len(facts) - 1, -1, -1) if facts[i].kind == "compaction"), None)
    return (adapter.lead_of(messages), False) if last is None else (last + 1, True)


def _overhead(
    adapter: Adapter, body: Mapping[str, Any], memo: Memo
) -> tuple[Sizes, int, frozenset[str], frozenset[str]]:
    """Sizes and bytes of system prompt and tools, the tools' names, and those whose loading is deferred."""
    system, tools = adapter.system_of(body), body.get("tools")
    text = system if isinstance(system, str) else "\n".join(blocks.text_of(b) for b in blocks.blocks_of(system))
    payload = fingerprint.dump(tools) if tools else b""
    said = f"{text}\n{payload.decode('utf-8', 'replace')}"
    key = fingerprint.content_key(said.encode("utf-8", "surrogatepass"))
    sizes = memo.overheads.get(key)
    if sizes is None:
        sizes = memo.overheads[key] = tokens.measure("system", said)
    named = [(_tool_name(tool), tool) for tool in tools] if isinstance(tools, list) else []
    deferred = (n for n, tool in named if isinstance(tool, dict) and tool.get("defer_loading") is True)
    return sizes, len(text) + len(payload), frozenset(n for n, _ in named), frozenset(deferred)


def _tool_name(tool: Any) -> str:
    if not isinstance(tool, dict):
        return ""
    told = tool.get("function") if isinstance(tool.get("function"), dict) else tool
    found = told.get("name") if isinstance(told, dict) else None
    return found if isinstance(found, str) else ""
