"""Which stored messages count as in sight: those that the newest request of their thread shows whole."""

from __future__ import annotations

from collections.abc import Callable

from openmem_hook.gateway.hook import ContextHook
from tests.harness.conversation import Conversation
from tests.kit.builders import assistant, session, user
from tests.kit.filler import listing
from tests.kit.histories import growth

NewHook = Callable[..., ContextHook]


async def test_a_cut_takes_what_it_does_not_show_out_of_sight(new_hook: NewHook) -> None:
    talk = Conversation(new_hook(trim_at_tokens=6_000, compress_over_tokens=0))
    outs = [await talk.send(body) for body in growth(session("anthropic", exchanges=40, size=2_000))]
    shown = [row.raw for row in talk.rows() if row.shown]
    tail = outs[-1]["messages"][1:]
    assert talk.trims() > 1
    assert shown[1:] == tail


async def test_a_result_that_goes_out_short_is_out_of_sight_and_only_that(new_hook: NewHook) -> None:
    talk = Conversation(new_hook(compress_over_tokens=500, chars_per_token=2.5))
    *before, last = growth(session("anthropic", exchanges=3, size=300))
    last["messages"][-1]["content"][0]["content"] = listing(3_000)
    for body in [*before, last]:
        await talk.send(body)
    assert [row.shown for row in talk.rows()] == [True] * 6 + [False]
    (told,) = talk.events("compression")
    assert told["chars_before"] == len(listing(3_000)) > told["chars_after"] > 0


async def test_a_fork_that_takes_over_a_cut_has_out_of_sight_what_the_cut_does_not_show(new_hook: NewHook) -> None:
    hook = new_hook(trim_at_tokens=6_000, compress_over_tokens=0)
    requests = growth(session("anthropic", exchanges=30, size=2_000))
    parent = Conversation(hook, "parent")
    for body in requests:
        await parent.send(body)
    fork = Conversation(hook, "fork")
    out = await fork.send({**requests[-1], "messages": [*requests[-1]["messages"], assistant("Done."), user("On.")]})
    shown = [row.raw for row in fork.rows() if row.shown]
    assert fork.trims() == 0
    assert shown[1:] == out["messages"][1:]
    assert len(shown) < len(fork.rows()) / 2


async def test_a_history_that_goes_back_before_its_cut_is_in_sight_again(new_hook: NewHook) -> None:
    talk = Conversation(new_hook(trim_at_tokens=6_000, compress_over_tokens=0))
    requests = growth(session("anthropic", exchanges=12, size=2_000))
    for body in requests:
        await talk.send(body)
    assert talk.trims() >= 1
    early = requests[1]
    talk.last = None
    assert (await talk.send(early))["messages"] == early["messages"]
    assert [row.shown for row in talk.rows()][: len(early["messages"])] == [True] * len(early["messages"])
    talk.last = None
    out = await talk.send(requests[-1])
    assert [row.raw for row in talk.rows() if row.shown][1:] == out["messages"][1:]


async def test_a_reminder_of_its_own_at_the_end_starts_no_thread(new_hook: NewHook) -> None:
    talk = Conversation(new_hook())
    for body in growth(session("anthropic", exchanges=4, size=300)):
        reminded = {**body, "messages": [*body["messages"], user("<system-reminder>Be brief.</system-reminder>")]}
        talk.last = None
        await talk.send(reminded)
    assert len({row.thread for row in talk.rows()}) == 1


async def test_words_merged_into_the_newest_result_leave_no_older_row_in_sight(new_hook: NewHook) -> None:
    """A person who stops the agent: what they type stands beside the result that was sent alone before."""
    talk = Conversation(new_hook(trim_at_tokens=6_000, compress_over_tokens=0))
    body = session("anthropic", exchanges=30, size=2_000)
    messages = body["messages"]
    stopped = {"role": "user", "content": [*messages[6]["content"], {"type": "text", "text": "No, the other one."}]}
    for end in (3, 5, 7):
        await talk.send({**body, "messages": messages[:end]})
    talk.last = None
    for end in range(7, len(messages) + 1, 2):
        out = await talk.send({**body, "messages": [*messages[:6], stopped, *messages[7:end]]})
    shown = [row.raw for row in talk.rows() if row.shown]
    assert talk.trims() > 1
    assert all(message in messages_in(out, messages) for message in shown if message not in (messages[6], stopped))


def messages_in(out: dict, messages: list) -> list:
    """Those of these messages that a request shows whole, and the first, which carries the pointer."""
    return [messages[0], *(message for message in messages if message in out["messages"])]
