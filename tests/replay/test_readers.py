"""What the readers make of each oddity, in transcripts written by hand."""

from __future__ import annotations

import copy
import gzip
import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openmem_hook.replay import ReplayRequest, Transcript, UnknownTranscriptError, growth, read, requests
from tests.kit.prefix import check

Json = dict[str, Any]


class Claude:
    """Writes a Claude Code transcript line by line; each line hangs below the one before unless told."""

    def __init__(self) -> None:
        self.lines: list[Json] = []

    def add(self, kind: str, parent: str | None = "", **fields: Any) -> str:
        uuid = f"u{len(self.lines)}"
        above = self.lines[-1]["uuid"] if self.lines and parent == "" else parent or None
        base = {"type": kind, "uuid": uuid, "parentUuid": above, "sessionId": "s1", "version": "2.1.9"}
        self.lines.append(base | fields)
        return uuid

    def typed(self, words: str, parent: str | None = "", **fields: Any) -> str:
        return self.add("user", parent, message={"role": "user", "content": words}, **fields)

    def result(self, call: str, words: str = "done", parent: str | None = "") -> str:
        block = {"type": "tool_result", "tool_use_id": call, "content": words}
        return self.add("user", parent, message={"role": "user", "content": [block]})

    def reply(self, id_: str, block: str | Json, parent: str | None = "", prompt: int = 0, **more: Any) -> str:
        block = {"type": "text", "text": block} if isinstance(block, str) else block
        usage = {"input_tokens": prompt, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
        message = {"role": "assistant", "id": id_, "model": "claude-opus-4-5", "content": [block]}
        return self.add("assistant", parent, message=message | {"usage": usage} | more)

    def session(self, tmp_path: Path, *extra: str) -> Transcript:
        return read(write(tmp_path, self.lines, *extra))


def write(tmp_path: Path, lines: list[Json], *extra: str) -> Path:
    path = tmp_path / "session.jsonl"
    path.write_text("\n".join([*extra, *map(json.dumps, lines)]), encoding="utf-8")
    return path


def call(id_: str) -> Json:
    return {"type": "tool_use", "id": id_, "name": "Bash", "input": {"command": "ls"}}


def replayed(session: Transcript, **options: Any) -> list[ReplayRequest]:
    made = list(requests(session, prefix_tokens=300, **options))
    for request in made:
        assert check(request.body, request.format) == []
    return made


def said(messages: list[Json]) -> list[str]:
    """Each message in one word: its texts, calls and results."""
    return ["+".join(word for word in _words(message["content"])) for message in messages]


def _words(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [block.get("text") or block.get("tool_use_id") or block.get("id") or block["type"] for block in content]


# --- Claude Code


def test_lines_with_one_message_id_are_one_message_and_one_request(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello")
    log.reply("m1", "let me see", prompt=100)
    log.reply("m1", call("c1"), prompt=100)
    log.result("c1")
    log.reply("m2", "bye", prompt=150)
    first, second = replayed(log.session(tmp_path))
    assert said(first.messages) == ["hello"]
    assert said(second.messages) == ["hello", "let me see+c1", "c1"]
    assert first.step.usage is not None
    assert first.step.usage.prompt_tokens == 100
    assert first.step.usage.output_tokens is None


def test_a_message_interleaved_with_its_results_is_joined_before_them(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello")
    log.reply("m1", call("c1"))
    log.result("c1")
    log.reply("m1", call("c2"))
    log.result("c2")
    log.reply("m2", "bye")
    assert said(replayed(log.session(tmp_path))[-1].messages) == ["hello", "c1+c2", "c1+c2"]


def test_results_of_parallel_calls_hang_on_other_branches_and_come_back_in_order(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello")
    one = log.reply("m1", call("c1"))
    two = log.reply("m1", call("c2"))
    log.result("c1", parent=one)
    last = log.result("c2", parent=two)
    log.typed("and now?", last)
    log.reply("m2", "bye")
    made = replayed(log.session(tmp_path))
    assert said(made[-1].messages) == ["hello", "c1+c2", "c1+c2+and now?"]
    assert {request.step.branch for request in made} == {"main"}


def test_a_rewind_makes_a_branch_with_its_own_path(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello")
    back = log.reply("m1", "hi")
    log.typed("wrong")
    log.reply("m2", "oh")
    log.typed("right", back)
    log.reply("m3", "ah")
    log.typed("thanks")
    log.reply("m4", "bye")
    made = replayed(log.session(tmp_path))
    assert [request.step.branch for request in made] == ["main", "main", "main/1", "main/1"]
    assert said(made[2].messages) == ["hello", "hi", "right"]
    assert made[2].step.parent == 0


def test_history_goes_on_over_a_compaction_and_the_summary_is_what_was_sent(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello")
    log.reply("m1", call("c1"), prompt=900)
    log.result("c1")
    log.add("system", None, subtype="compact_boundary", compactMetadata={"trigger": "auto"})
    log.typed("summary of before", isCompactSummary=True)
    log.reply("m2", "going on", prompt=300)
    log.typed("more")
    log.reply("m3", "bye", prompt=350)
    made = replayed(log.session(tmp_path))
    assert [request.step.segment for request in made] == [0, 1, 1]
    assert said(made[2].messages) == ["hello", "c1", "c1", "going on", "more"]
    assert said(made[2].step.actual_messages) == ["summary of before", "going on", "more"]
    assert [(step.tokens, said(step.messages)) for step in growth(made)] == [(50, ["going on", "more"])]


def test_a_typed_compact_leaves_no_trace_in_the_history(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello")
    tip = log.reply("m1", "hi")
    log.add("system", None, subtype="compact_boundary", logicalParentUuid=tip)
    log.typed("summary", isCompactSummary=True)
    log.typed("<local-command-caveat>Caveat", isMeta=True)
    log.typed("<command-name>/compact</command-name>")
    log.typed("<local-command-stdout>Compacted</local-command-stdout>")
    log.typed("more")
    log.reply("m2", "bye")
    made = replayed(log.session(tmp_path))
    assert said(made[-1].messages) == ["hello", "hi", "more"]
    assert len(made[-1].step.actual_messages[0]["content"]) == 5


def test_results_that_vanish_in_a_turn_begin_a_segment(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello")
    for number, prompt in enumerate((50_000, 80_000, 55_000, 56_000)):
        log.reply(f"m{number}", call(f"c{number}"), prompt=prompt)
        log.result(f"c{number}")
    session = log.session(tmp_path)
    assert [request.step.segment for request in replayed(session)] == [0, 0, 1, 1]
    assert [request.step.is_actual_known for request in replayed(session)] == [True, True, False, False]
    assert session.omissions["silent clearing"] == 1


def test_a_sidechain_is_a_thread_of_its_own(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello")
    log.reply("m1", call("c1"))
    main = log.lines[-1]["uuid"]
    log.typed("do that", None, isSidechain=True, agentId="a7")
    log.lines.append(log.lines[1] | {"uuid": "side", "parentUuid": "gone", "isSidechain": True, "agentId": "a7"})
    log.lines[-1]["message"] = log.lines[1]["message"] | {"id": "m2", "content": [call("c9")]}
    log.result("c1", parent=main)
    log.reply("m3", "bye")
    made = replayed(log.session(tmp_path))
    assert [request.step.branch for request in made] == ["main", "agent-a7", "main"]
    assert said(made[1].messages) == ["do that"]
    assert made[1].headers["x-claude-code-agent-id"] == "a7"
    assert said(made[2].messages) == ["hello", "c1", "c1"]


def test_a_parent_that_was_never_written_is_the_line_before(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello", "nowhere")
    log.reply("m1", "hi")
    log.typed("more", "a stripped progress record")
    log.reply("m2", "bye")
    assert said(replayed(log.session(tmp_path))[-1].messages) == ["hello", "hi", "more"]


def test_synthetic_answers_and_thinking_alone_are_not_sent_again(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello")
    log.reply("e1", "API Error", model="<synthetic>")
    log.typed("again")
    log.reply("m1", {"type": "thinking", "thinking": "hm", "signature": "abc"})
    log.typed("well?")
    log.reply("m2", "bye")
    session = log.session(tmp_path)
    made = replayed(session)
    assert [said(request.messages) for request in made] == [["hello+again"], ["hello+again+well?"]]
    assert [request.step.branch for request in made] == ["main", "main/1"]
    assert made[0].step.reply == ()
    assert session.omissions["synthetic message"] == 1


def test_a_call_left_open_is_answered_and_an_orphan_goes_as_the_client_does_it(tmp_path: Path) -> None:
    log = Claude()
    log.result("before the file")
    log.reply("m1", call("c1"))
    log.typed("stop")
    log.reply("m2", "ok")
    session = log.session(tmp_path)
    made = replayed(session)
    assert said(made[0].messages) == ["[Orphaned tool result removed due to conversation resume]"]
    assert said(made[1].messages)[-1] == "c1+stop"
    assert session.repairs["call without a result"] == 1
    assert session.repairs["result without a call"] == 1


def test_a_prompt_queued_while_the_agent_ran_is_part_of_the_message(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello")
    log.reply("m1", call("c1"))
    log.result("c1")
    log.add("attachment", attachment={"type": "queued_command", "prompt": "and that too"})
    log.add("attachment", attachment={"type": "todo", "content": []})
    log.reply("m2", "bye")
    session = log.session(tmp_path)
    assert said(replayed(session)[-1].messages)[-1] == "c1+and that too"
    assert session.omissions["record attachment todo"] == 1


def test_blank_text_that_a_model_began_with_is_left_out(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello")
    log.reply("m1", "\n\n")
    log.reply("m1", "hi")
    log.typed("more")
    log.reply("m2", "bye")
    session = log.session(tmp_path)
    assert said(replayed(session)[-1].messages) == ["hello", "hi", "more"]
    assert session.repairs["blank text dropped"] == 1


def test_broken_lines_and_unknown_records_are_counted(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello")
    log.add("novelty", payloads=[1])
    log.reply("m1", "hi")
    log.lines.append({"type": "file-history-snapshot"})
    session = log.session(tmp_path, '{"type": "user", "mess', "[1, 2]", "")
    assert session.omissions == {"broken line": 2, "record novelty": 1, "record file-history-snapshot": 1}
    assert said(replayed(session)[0].messages) == ["hello"]


def test_the_breakpoint_is_on_a_copy_and_messages_are_shared(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello")
    log.reply("m1", "hi")
    log.typed("more")
    log.reply("m2", "bye")
    session = log.session(tmp_path)
    before = copy.deepcopy([step.messages for step in session.steps])
    first, second = replayed(session)
    assert first.messages[-1]["content"][-1]["cache_control"] == {"type": "ephemeral"}
    assert second.messages[0] == {"role": "user", "content": "hello"}
    assert [step.messages for step in session.steps] == before
    plain = replayed(session, breakpoints=False)
    assert plain[0].messages[0] is plain[1].messages[0]
    assert "cache_control" not in json.dumps(plain[1].body)


def test_a_body_carries_the_session_as_the_client_does(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello")
    log.reply("m1", call("c1"))
    request = replayed(log.session(tmp_path))[0]
    assert json.loads(request.body["metadata"]["user_id"])["session_id"] == "s1"
    assert request.headers["x-claude-code-session-id"] == "s1"
    assert "command" in {t["name"]: t for t in request.body["tools"]}["Bash"]["input_schema"]["properties"]


# --- files


@pytest.mark.parametrize("pack", [bytes, gzip.compress, lzma.compress])
def test_a_file_is_unpacked_by_its_content(tmp_path: Path, pack: Any) -> None:
    log = Claude()
    log.typed("hello")
    log.reply("m1", "hi")
    path = write(tmp_path, log.lines)
    path.write_bytes(pack(path.read_bytes()))
    assert said(replayed(read(path))[0].messages) == ["hello"]


@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress])
def test_a_truncated_archive_gives_what_it_has(tmp_path: Path, pack: Any) -> None:
    log = Claude()
    for number in range(400):
        log.typed(f"hello {number * 7919 % 1000}" + ("" if number else " first"))
        log.reply(f"m{number}", "hi")
    path = write(tmp_path, log.lines)
    path.write_bytes(pack(path.read_bytes())[:-200])
    session = read(path)
    assert session.omissions["damaged archive"] == 1
    assert 0 < len(session.steps) <= 400


@pytest.mark.parametrize("content", ["", "no json", '{"a": 1}\n{"b": 2}', "[]"])
def test_a_file_of_another_kind_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "other"
    path.write_text(content)
    with pytest.raises(UnknownTranscriptError):
        read(path)


def test_the_front_has_the_size_asked_for_and_is_the_same_each_time(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello")
    log.reply("m1", "hi")
    session = log.session(tmp_path)
    one, two = (next(requests(session, prefix_tokens=40_000)).body for _ in range(2))
    assert one == two
    size = len(json.dumps([one["system"], one["tools"]]))
    assert 130_000 < size < 150_000


# --- Codex


def item(kind: str, **fields: Any) -> Json:
    return {"type": "response_item", "payload": {"type": kind, **fields}}


def codex_said(role: str, words: str) -> Json:
    part = {"type": "output_text" if role == "assistant" else "input_text", "text": words}
    return item("message", role=role, content=[part])


def codex_call(id_: str) -> Json:
    return item("function_call", call_id=id_, name="exec_command", arguments="{}", metadata={"turn": 1})


def codex_result(id_: str) -> Json:
    return item("function_call_output", call_id=id_, output="done")


def count(prompt: int, total: int, reasoning: int = 0) -> Json:
    last = {"input_tokens": prompt, "cached_input_tokens": 5, "output_tokens": 7}
    info = {"last_token_usage": last | {"reasoning_output_tokens": reasoning}}
    return {"type": "event_msg", "payload": {"type": "token_count", "info": info | _total(total)}}


def _total(total: int) -> Json:
    return {"total_token_usage": {"total_tokens": total}}


META = {"type": "session_meta", "payload": {"id": "t1", "base_instructions": {"text": "Be good."}}}


def codex(tmp_path: Path, *lines: Json) -> Transcript:
    return read(write(tmp_path, [META, *lines]))


def codex_words(messages: list[Json]) -> list[str]:
    """Each item after the front in one word."""
    return [
        entry["content"][0]["text"] if entry["type"] == "message" else entry.get("call_id", entry["type"])
        for entry in messages
    ]


def test_a_codex_request_goes_out_before_each_run_of_outputs(tmp_path: Path) -> None:
    session = codex(
        tmp_path,
        codex_said("user", "hello"),
        item("reasoning", summary=[]),
        codex_call("c1"),
        codex_call("c2"),
        codex_result("c1"),
        codex_result("c2"),
        count(100, 107, reasoning=20),
        codex_said("assistant", "bye"),
        count(100, 107),
        count(150, 260),
    )
    first, second = replayed(session)
    assert codex_words(first.messages[1:]) == ["hello"]
    assert codex_words(second.messages[1:]) == ["hello", "reasoning", "c1", "c2", "c1", "c2"]
    assert [r.step.usage.prompt_tokens for r in (first, second) if r.step.usage] == [100, 150]
    assert [entry["type"] for entry in first.step.reply] == ["reasoning", "function_call", "function_call"]
    assert session.omissions["token count of no request"] == 1
    assert "metadata" not in second.messages[3]


def test_codex_reasoning_without_content_is_given_noise_of_its_size(tmp_path: Path) -> None:
    lines = [codex_said("user", "hello"), item("reasoning", summary=[]), codex_call("c1")]
    rest = [codex_result("c1"), count(100, 1100, reasoning=1000), codex_said("assistant", "bye")]
    session = codex(tmp_path, *lines, *rest)
    assert len(replayed(session)[1].messages[2]["encrypted_content"]) == 5_900
    assert session.repairs["encrypted reasoning stood in for"] == 1


def test_codex_history_goes_on_over_its_compaction(tmp_path: Path) -> None:
    replaced = [codex_said("user", "what was asked")["payload"]]
    session = codex(
        tmp_path,
        codex_said("user", "hello"),
        codex_call("c1"),
        codex_result("c1"),
        count(900, 907),
        {"type": "compacted", "payload": {"message": "", "replacement_history": replaced}},
        count(0, 907),
        codex_said("assistant", "going on"),
        count(300, 1207),
        codex_said("user", "more"),
        codex_said("assistant", "bye"),
        count(350, 1600),
    )
    made = replayed(session)
    assert [request.step.segment for request in made] == [0, 1, 1]
    assert codex_words(made[2].messages[1:]) == ["hello", "c1", "c1", "going on", "more"]
    assert codex_words(made[2].step.actual_messages) == ["what was asked", "going on", "more"]
    assert [step.tokens for step in growth(made)] == [50]


def test_an_interrupted_codex_run_is_mended_as_the_client_does(tmp_path: Path) -> None:
    session = codex(
        tmp_path,
        codex_said("user", "hello"),
        codex_call("c1"),
        item("reasoning", summary=[], encrypted_content="gA"),
        codex_result("unknown"),
        codex_said("user", "stop"),
        codex_said("assistant", "ok"),
    )
    made = replayed(session)
    assert codex_words(made[1].messages[1:]) == ["hello", "c1", "c1", "stop"]
    assert made[1].messages[3] == {"type": "function_call_output", "call_id": "c1", "output": "aborted"}
    assert made[0].step.usage is None


def test_a_codex_rollback_is_a_branch(tmp_path: Path) -> None:
    session = codex(
        tmp_path,
        codex_said("user", "hello"),
        codex_said("assistant", "hi"),
        codex_said("user", "wrong"),
        codex_said("assistant", "oh"),
        {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}},
        codex_said("user", "right"),
        codex_said("assistant", "ah"),
    )
    made = replayed(session)
    assert codex_words(made[2].messages[1:]) == ["hello", "hi", "right"]
    assert [(request.step.branch, request.step.parent) for request in made] == [
        ("main", None),
        ("main", 0),
        ("main/1", 0),
    ]


def test_a_codex_body_carries_thread_and_cache_key(tmp_path: Path) -> None:
    request = replayed(codex(tmp_path, codex_said("user", "hello"), codex_said("assistant", "hi")))[0]
    assert request.headers["thread-id"] == request.body["prompt_cache_key"] == "t1"
    assert request.body["store"] is False
    assert request.messages[0]["content"][0]["text"].startswith("Be good.")


# --- OpenCode


def opencode(tmp_path: Path, *messages: Json) -> Transcript:
    path = tmp_path / "export.json"
    document = {"info": {"id": "ses_1", "version": "1.2.3"}, "messages": messages}
    path.write_text("Exporting session: ses_1\n" + json.dumps(document))
    return read(path)


def asked(*parts: Json) -> Json:
    return {"info": {"role": "user", "id": "msg_u"}, "parts": list(parts)}


def answered(*parts: Json, prompt: int = 0, **info: Any) -> Json:
    tokens = {"input": prompt, "output": 3, "cache": {"read": 10, "write": 0}}
    return {"info": {"role": "assistant", "modelID": "m", "tokens": tokens} | info, "parts": list(parts)}


def words(text: str, **more: Any) -> Json:
    return {"type": "text", "text": text} | more


def ran(id_: str, status: str = "completed") -> Json:
    state = {"status": status, "input": {"command": "ls"}, "output": "a b", "error": "no"}
    return {"type": "tool", "callID": id_, "tool": "bash", "state": state}


def test_an_opencode_export_becomes_chat_requests(tmp_path: Path) -> None:
    session = opencode(
        tmp_path,
        asked(words("hello"), words("hidden", ignored=True)),
        answered(words("let me see"), ran("c1"), ran("c2", "running"), prompt=100, time={"created": 0}),
        answered(words("bye"), prompt=140),
    )
    first, second = replayed(session)
    assert [message["role"] for message in second.messages] == ["system", "user", "assistant", "tool", "tool"]
    assert second.messages[1]["content"] == "hello"
    assert [m["content"] for m in second.messages[3:]] == ["a b", "[Tool execution was interrupted]"]
    assert first.step.sent_at == "1970-01-01T00:00:00Z"
    assert [step.tokens for step in growth([first, second])] == [40]
    assert second.headers["x-session-id"] == "ses_1"


def test_opencode_steps_inside_one_message_are_requests(tmp_path: Path) -> None:
    start = {"type": "step-start"}
    finish = {"type": "step-finish", "tokens": {"input": 50, "output": 1, "cache": {"read": 0, "write": 0}}}
    parts = [start, ran("c1"), finish, start, words("bye"), {"type": "novelty"}]
    session = opencode(tmp_path, asked(words("hello")), answered(*parts))
    made = replayed(session)
    assert [len(request.messages) for request in made] == [2, 4]
    assert [request.step.usage is None for request in made] == [False, True]
    assert session.omissions["part novelty"] == 1


def test_opencode_history_goes_on_over_its_compaction(tmp_path: Path) -> None:
    session = opencode(
        tmp_path,
        asked(words("hello")),
        answered(words("hi"), prompt=500),
        asked({"type": "compaction", "auto": True}),
        answered(words("it was about"), summary=True),
        asked(words("more")),
        answered(words("bye"), prompt=90),
    )
    made = replayed(session)
    assert said(made[1].messages[1:]) == ["hello", "hi", "more"]
    assert said(made[1].step.actual_messages) == ["it was about", "more"]
    assert [request.step.segment for request in made] == [0, 1]


# --- damage


def damaged(value: Any) -> Iterator[Any]:
    """The value with one of its inner values spoilt, once for each inner value and kind of damage."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, held in inner:
        for other in (None, 7, "x", [], {}, [[]], [{"type": []}], *damaged(held)):
            spoilt = copy.copy(value)
            spoilt[key] = other
            yield spoilt


def whole_lives() -> Iterator[list[Json]]:
    log = Claude()
    log.typed("hello")
    log.reply("m1", call("c1"), prompt=100, stop_reason="tool_use")
    log.result("c1")
    log.add("attachment", attachment={"type": "queued_command", "prompt": "more"})
    log.add("system", None, subtype="compact_boundary", logicalParentUuid="u2")
    log.reply("m2", {"type": "thinking", "thinking": "hm", "signature": "abc"})
    log.reply("m2", "bye")
    yield log.lines
    compacted = {"type": "compacted", "payload": {"replacement_history": [codex_said("user", "x")["payload"]]}}
    rollback = {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}}
    first = [META, codex_said("user", "hello"), item("reasoning", summary=[]), codex_call("c1"), codex_result("c1")]
    yield [*first, count(9, 9), compacted, codex_said("assistant", "hi"), rollback, codex_said("assistant", "bye")]
    answer = answered(words("hm"), ran("c1"), {"type": "step-finish", "tokens": {"input": 3}}, time={"created": 1})
    yield [{"info": {"id": "ses_1"}, "messages": [asked(words("hello")), answer, answered(words("bye"))]}]


@pytest.mark.parametrize("lines", list(whole_lives()), ids=["claude-code", "codex", "opencode"])
def test_no_single_wrong_value_ends_the_reading(tmp_path: Path, lines: list[Json]) -> None:
    for broken in damaged(lines):
        try:
            session = read(write(tmp_path, broken))
        except UnknownTranscriptError:
            continue
        list(growth(requests(session, prefix_tokens=10)))
