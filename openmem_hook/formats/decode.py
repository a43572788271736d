"""The one way a body becomes a `History`, whatever its format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from openmem_hook import fingerprint, tokens
from openmem_hook.facts import cached_facts
from openmem_hook.formats import blocks
from openmem_hook.model import Adapter, Facts, History, HistoryCache, KeyedFacts, Pause, Raw, no_pause
from openmem_hook.tokens import Sizes

MOST_OVERHEADS = 256
"""Overheads that one session's cache keeps; a client that asks for titles may send another system prompt each time."""


def messages_of(adapter: Adapter, body: Mapping[str, Any]) -> list[Raw]:
    messages = body[adapter.messages_key]
    return [messages] if isinstance(messages, str) else messages


def decode(adapter: Adapter, body: Mapping[str, Any], cache: HistoryCache, pause: Pause = no_pause) -> History:
    """The body's messages with their facts and fingerprints. `cache` is read and added to. `pause` is called between
    two messages, since this takes longest where all are new."""
    # The facts about each message, from the cache where its bytes came before.
    messages, facts = messages_of(adapter, body), list[Facts]()
    for raw in messages:
        facts.append(cached_facts(adapter, raw, cache))
        pause()
    # What follows from the messages together: the system prompt in front, a provider's compaction, keys and chain.
    lead = adapter.lead_of(messages)
    compaction_at, editable_from = _compaction(facts, lead)
    newest = cache.newest = _keyed_facts(facts, lead, cache.newest)
    # What is sent beside the messages. Where a reference defines its tool, those that `tools` lacks are known by it.
    overhead = _overhead(adapter, body, cache)
    deferred_tools = overhead.deferred_tools
    if adapter.references_define:
        deferred_tools |= {name for fact in facts for name in fact.references} - overhead.tool_names
    return History(
        messages=messages,
        facts=facts,
        keys=newest.keys,
        chain=newest.chain,
        lead=lead,
        overhead=overhead.sizes,
        overhead_bytes=overhead.bytes,
        has_tools=bool(body.get("tools")),
        tool_names=overhead.tool_names,
        deferred_tools=deferred_tools,
        must_start_with_thinking=adapter.must_start_with_thinking(body),
        compaction_at=compaction_at,
        editable_from=editable_from,
        format=adapter.name,
    )


def _keyed_facts(facts: Sequence[Facts], lead: int, previous: KeyedFacts) -> KeyedFacts:
    """Keys and chain of a history; what it has in common with the previous one keeps its own."""
    # The cache gives the same object for the same bytes, so the common front is found without a look inside. With
    # another `lead`, other messages take part in the chain: then nothing is in common.
    same = 0
    if lead == previous.lead:
        pairs = enumerate(zip(facts, previous.facts, strict=False))
        same = next((i for i, (new, old) in pairs if new is not old), min(len(facts), len(previous.facts)))
    keys, chain = list(previous.keys[:same]), list(previous.chain[:same])
    # A message that has an identity moves the chain on, and its link is its key. Any other message leaves the chain
    # where it is, and its key names its text and its place.
    link = chain[-1] if chain else fingerprint.ROOT
    for i in range(same, len(facts)):
        fact = facts[i]
        if fact.identifies and i >= lead:
            link = fingerprint.chain(link, fact.digest)
            keys.append(link)
        else:
            keys.append(fingerprint.position_key(link, fact.digest))
        chain.append(link)
    return KeyedFacts(facts, keys, chain, lead)


def _compaction(facts: Sequence[Facts], lead: int) -> tuple[int, int]:
    """Where a provider's newest compaction is (0: there is none), and the first message that an edit may touch.

    The model may call tools in the same output that holds the compaction. The results of those calls belong to it,
    with all that stands before them: without the results the calls would have no answer.
    """
    at = next((i for i in range(len(facts) - 1, -1, -1) if facts[i].kind == "compaction"), None)
    if at is None:
        return 0, lead
    open_calls = set[str]()
    i, end = 0, at + 1
    while i < end:
        open_calls = open_calls.union(facts[i].calls).difference(facts[i].answers)
        i += 1
        # Calls that nothing answers before the end move it behind the next answer to one of them.
        if i == end and open_calls:
            answers = (k for k in range(end, len(facts)) if open_calls.intersection(facts[k].answers))
            end = 1 + next(answers, end - 1)
    return at, end


class _Overhead(NamedTuple):
    """What a request sends beside its messages: system prompt and tools."""

    sizes: Sizes
    bytes: int
    """Characters of the system prompt's text, and bytes of the tools' JSON."""
    tool_names: frozenset[str]
    deferred_tools: frozenset[str]
    """Names of the tools whose definition the provider shows the model only after a search."""


def _overhead(adapter: Adapter, body: Mapping[str, Any], cache: HistoryCache) -> _Overhead:
    # The text of both, as it is counted and looked up.
    system, tools = adapter.system_of(body), body.get("tools")
    text = system if isinstance(system, str) else "\n".join(map(blocks.text_of, blocks.blocks_of(system)))
    payload = fingerprint.dump(tools) if tools else b""
    prompt = f"{text}\n{payload.decode('utf-8', 'replace')}"
    # Measured once for each text.
    key = hash(prompt)
    sizes = cache.overheads.get(key)
    if sizes is None:
        if len(cache.overheads) > MOST_OVERHEADS:
            cache.overheads.clear()
        sizes = cache.overheads[key] = tokens.measure("system", prompt)
    # The tools by name.
    tools = tools if isinstance(tools, list) else []
    names = frozenset(map(_tool_name, tools))
    late = (tool for tool in tools if isinstance(tool, dict) and tool.get("defer_loading") is True)
    return _Overhead(sizes, len(text) + len(payload), names, frozenset(map(_tool_name, late)))


def _tool_name(tool: Any) -> str:
    """Chat completions have the name inside `function`, the other formats beside the type. Empty for a tool without."""
    if not isinstance(tool, dict):
        return ""
    function = tool.get("function")
    return blocks.string_or_empty((function if isinstance(function, dict) else tool).get("name"))
