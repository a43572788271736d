"""The one way a body becomes a `History`, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openmem_hook import fingerprint, tokens
from openmem_hook.facts import cached_facts
from openmem_hook.formats import blocks
from openmem_hook.model import Adapter, Facts, History, HistoryCache, KeyedFacts, Pause, Raw, no_pause
from openmem_hook.tokens import Sizes

OVERHEADS = 256
"""System prompts cached_facts a session; a title's may differ with every request."""


def messages_of(adapter: Adapter, body: Mapping[str, Any]) -> list[Raw]:
    given = body[adapter.messages_key]
    return [given] if isinstance(given, str) else given


def decode(adapter: Adapter, body: Mapping[str, Any], memo: HistoryCache, pause: Pause = no_pause) -> History:
    """The body's messages with their facts and fingerprints. `memo` is read and added to. `pause` is called between
    two messages, since this takes longest where all are new."""
    messages, facts = messages_of(adapter, body), list[Facts]()
    for raw in messages:
        facts.append(cached_facts(adapter, raw, memo))
        pause()
    lead = adapter.lead_of(messages)
    folded, fixed = _compaction(facts, lead)
    named = memo.newest = _named(facts, lead, memo.newest)
    sizes, size, names, deferred = _overhead(adapter, body, memo)
    if adapter.references_define:
        deferred |= {name for fact in facts for name in fact.references} - names
    return History(
        messages=messages,
        facts=facts,
        keys=named.keys,
        chain=named.chain,
        lead=lead,
        overhead=sizes,
        overhead_bytes=size,
        has_tools=bool(body.get("tools")),
        tool_names=names,
        deferred_tools=deferred,
        must_start_with_thinking=adapter.must_start_with_thinking(body),
        compaction_at=folded,
        editable_from=fixed,
        format=adapter.name,
    )


def _named(facts: Sequence[Facts], first: int, last: KeyedFacts) -> KeyedFacts:
    """Keys and chain of a history; what it has in common with the last one keeps its names."""
    same = 0
    if first == last.lead:
        pairs = enumerate(zip(facts, last.facts, strict=False))
        same = next((i for i, (new, old) in pairs if new is not old), min(len(facts), len(last.facts)))
    keys, chain = list(last.keys[:same]), list(last.chain[:same])
    past = chain[-1] if chain else fingerprint.ROOT
    for i in range(same, len(facts)):
        fact = facts[i]
        if fact.identifies and i >= first:
            past = fingerprint.chain(past, fact.digest)
            keys.append(past)
        else:
            keys.append(fingerprint.position_key(past, fact.digest))
        chain.append(past)
    return KeyedFacts(facts, keys, chain, first)


def _compaction(facts: Sequence[Facts], lead: int) -> tuple[int, int]:
    """Place of a provider's newest compaction (0: there is none), and where what belongs to it ends: the calls of
    the same output keep their results."""
    at = next((i for i in range(len(facts) - 1, -1, -1) if facts[i].kind == "compaction"), None)
    if at is None:
        return 0, lead
    end, made = 0, set[str]()
    reach = at + 1
    while end < reach:
        made = made.union(facts[end].calls).difference(facts[end].answers)
        end += 1
        if end == reach and made:
            reach = 1 + next((i for i in range(end, len(facts)) if made.intersection(facts[i].answers)), reach - 1)
    return at, reach


def _overhead(
    adapter: Adapter, body: Mapping[str, Any], memo: HistoryCache
) -> tuple[Sizes, int, frozenset[str], frozenset[str]]:
    """Sizes and bytes of system prompt and tools, the tools' names, and those whose loading is deferred."""
    system, tools = adapter.system_of(body), body.get("tools")
    text = system if isinstance(system, str) else "\n".join(blocks.text_of(b) for b in blocks.blocks_of(system))
    payload = fingerprint.dump(tools) if tools else b""
    said = f"{text}\n{payload.decode('utf-8', 'replace')}"
    key = hash(said)
    sizes = memo.overheads.get(key)
    if sizes is None:
        if len(memo.overheads) > OVERHEADS:
            memo.overheads.clear()
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
