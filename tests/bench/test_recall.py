"""The benchmark's tasks and ways: the same for the same seed, scored as they say."""

from __future__ import annotations

import dataclasses
import json
import re
from itertools import chain
from pathlib import Path

import pytest

from bench import needed, rereads, with_model
from bench.arms import TRIM_AT, KeepAll, Plugin, PluginSearch, PluginSql, Tail
from bench.recall import converse
from bench.tasks import Question, Task, key_value, log_triage

# --- tasks --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [lambda: key_value(1_000), lambda: key_value(1_000, True), lambda: log_triage(1_600)])
def test_a_task_is_the_same_each_time(make) -> None:
    assert make() == make()
    assert len(make().questions) == 24


def test_records_are_batches_of_a_hundred_with_24_words_and_a_tag() -> None:
    task = key_value(1_000)
    assert [len(batch) for batch in task.batches] == [100] * 10
    for line in chain.from_iterable(task.batches):
        assert re.fullmatch(r"SET K\d{5} = (?:[a-z]+ ){24}#[0-9a-f]{8}", line)


def test_a_tenth_is_overwritten_and_the_newest_value_is_the_right_one() -> None:
    task = key_value(4_000, overwrites=True)
    told = "\n".join(chain.from_iterable(task.batches))
    keys = re.findall(r"^SET (K\d+)", told, re.MULTILINE)
    assert 0.08 < 1 - len(set(keys)) / len(keys) < 0.12
    assert sum(bool(question.stale) for question in task.questions) == 12
    for question in task.questions:
        assert question.line.findall(told)[-1] == question.answer
        assert question.stale == set(question.line.findall(told)[:-1])


def test_log_batches_are_14_to_54_lines_and_every_question_has_its_answer_in_them() -> None:
    task = log_triage(1_600)
    told = "\n".join(chain.from_iterable(task.batches))
    assert all(14 <= len(batch) <= 54 for batch in task.batches[:-1])
    assert [question.counts for question in task.questions] == [False] * 12 + [True] * 12
    for question in task.questions:
        found = question.line.findall(told)
        assert question.answer == (str(len(found)) if question.counts else found[0])


def test_leniently_the_tag_or_a_count_within_one_in_a_hundred_is_enough() -> None:
    value = Question("GET K1", "alpha beta #00c0ffee", re.compile(""), {}, "")
    count = dataclasses.replace(value, answer="200", counts=True)
    assert [value.near(said) for said in ("it is #00c0ffee", "alpha beta", None)] == [True, False, False]
    assert not value.right("it is #00c0ffee")
    assert [count.near(said) for said in ("198", "197", "about 200", None)] == [True, False, False, False]


# --- ways ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def long_task() -> Task:
    """More than the window holds, with a question about what left and one about what is still there."""
    task = key_value(4_000)
    told = list(chain.from_iterable(task.batches))
    seen = [question for question in task.questions if any(question.line.match(line) for line in told[-300:])]
    left = [question for question in task.questions if any(question.line.match(line) for line in told[:2_000])]
    return dataclasses.replace(task, questions=[left[0], seen[0]])


@pytest.mark.parametrize(
    ("way", "right", "calls"), [(PluginSearch, 2, 1), (PluginSql, 2, 1), (Plugin, 1, 0), (Tail, 1, 0)]
)
async def test_what_left_is_found_with_a_tool_and_not_without(
    way: type[KeepAll], right: int, calls: int, long_task: Task, tmp_path: Path
) -> None:
    row = await converse(long_task, way, tmp_path)
    assert row["lookups"]["strict"] == right
    assert row["tool_calls"] == calls
    assert row["peak_prompt"] <= TRIM_AT
    assert row["refused_at"] is None
    assert row["requests"] == 1 + len(long_task.batches) + len(long_task.questions) + calls


async def test_a_conversation_ends_where_the_window_does(long_task: Task, tmp_path: Path) -> None:
    row = await converse(long_task, KeepAll, tmp_path)
    assert row["refused_at"] == row["requests"] + 1
    assert row["lookups"] == {"asked": 2, "strict": 0, "lenient": 0, "stale": 0}


# --- boundaries ---------------------------------------------------------------------------------------------


def test_details_are_paths_hashes_identifiers_and_numbers() -> None:
    text = (
        "in /home/me/app/store/pool.py at 3aa10144, max_body_bytes = 30000, see readFile; not this word, 12 or deadbeef"
    )
    assert needed.details(text) == {
        "store/pool.py": "path",
        "3aa10144": "hash",
        "max_body_bytes": "identifier",
        "30000": "number",
        "readFile": "identifier",
    }


def test_reads_and_their_results_are_told_apart_from_other_calls() -> None:
    def call(id_: str, name: str) -> dict:
        return {"type": "tool_use", "id": id_, "name": name, "input": {"file_path": f"/{id_}.py"}}

    answer = {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "1 import os"}]}
    messages = [{"content": [call("a", "Read"), call("b", "Edit")]}, {"content": [answer]}, {"content": "thanks"}]
    assert list(rereads.reads(messages)) == [("/a.py", "a")]
    assert rereads.results(messages) == {"a": "1 import os"}


# --- with a model -------------------------------------------------------------------------------------------


async def test_a_model_is_given_the_tool_and_its_sentence_is_scored(long_task: Task, tmp_path: Path) -> None:
    bodies = []

    async def model(body: dict) -> dict:
        """Looks once for what it was asked, then repeats the line that it was told."""
        bodies.append(body)
        newest = body["messages"][-1]["content"]
        told = next((block["content"] for block in newest if block["type"] == "tool_result"), None)
        if told is not None:
            line = re.search(r"\| SET K\d+ = (.*)", told)
            return {"content": [{"type": "text", "text": f"It is {line[1]}." if line else "Not there."}]}
        session = re.search(r"Session id: ([0-9a-f]{16})", json.dumps(body["messages"]))
        asked = newest[-1]["text"].split()[-1]
        query = {"session_id": session[1] if session else "", "query": f'"SET {asked}"'}
        return {
            "content": [{"type": "tool_use", "id": f"t{len(bodies)}", "name": body["tools"][0]["name"], "input": query}]
        }

    row = await converse(long_task, PluginSearch, tmp_path, lambda arm: with_model.Reader(arm, create=model))
    assert row["lookups"]["strict"] == 2
    assert row["tool_calls"] == 2
    assert [[tool["name"] for tool in body["tools"]] for body in bodies] == [["smart_compact_search"]] * 4


def test_what_a_model_says_in_a_sentence_is_read() -> None:
    value = Question("GET K1", "alpha #00c0ffee", re.compile(""), {}, "", stale=frozenset({"beta #0badcafe"}))
    count = dataclasses.replace(value, answer="1200", counts=True)
    assert with_model.said(value, "It is alpha #00c0ffee.") == "alpha #00c0ffee"
    assert with_model.said(value, "It was beta #0badcafe.") in value.stale
    assert with_model.said(value, "I don't know.") is None
    assert with_model.said(count, "There are 1,200.") == "1200"
