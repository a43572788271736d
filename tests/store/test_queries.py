"""Search over what is stored: what is found by which words, and that counts are those of a naive count."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from openmem_hook.store.database import migrations, read_only_blocking
from openmem_hook.store.search import by_words, patterns, words
from openmem_hook.store.search.values import Filters
from tests.harness.filled_store import LARGE, NOW, FilledStore, Row, found_lines, number, reply, result, said


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[FilledStore]:
    made = FilledStore(tmp_path / "context")
    yield made
    made.close()


# --- words are words ------------------------------------------------------------------------------------------------

FOUND = {
    "multi-agent": "the multi-agent run",
    "don't": "they don't know",
    "C++": "written in C++ and C",
    "a:b": "key a:b here",
    '"': None,
    "NEAR(": "near the end",
    "*": "a * b",
    "AND": "this and that",
    "NOT": "not here",
    "OR": "one or two",
    "foo(bar": "call foo(bar) now",
    "-x": "rm -x file",
    "^": "caret ^ sign",
    "{a b}:c": "of a and b}:c there",
    "file.py": "in file.py:12",
    "x\0y": "x\0y",
    "src/app/main.py": "File src/app/main.py, line 3",
    'File "/srv/app.py", line 12, in run': 'Traceback: File "/srv/app.py", line 12, in run',
    "deadbeef0042cafe": "commit deadbeef0042cafe done",
    '{"name": "x", "n": [1, 2]}': 'got {"name": "x", "n": [1, 2]} back',
    "🙂": "well 🙂 done",
    "->": "a -> b",
    "user_id": "the user_id is 5",
    "conf*": "the configuration",
    '"connection refused"': "error: connection refused by peer",
    "Ärger": "viel ARGER hier",
    "naïve-x": "a naive-x way",
    "v1.2.3-rc.1": "tag v1.2.3-rc.1 pushed",
    "100%": "at 100% now",
    "a\\b": "path a\\b here",
    "it’s": "it’s fine",
}


@pytest.mark.parametrize("query", FOUND, ids=map(repr, FOUND))
def test_words_with_signs_find_their_row_and_nothing_else(query: str, shelf: FilledStore) -> None:
    wanted = FOUND[query]
    rows = ["nothing of interest", "zzz yyy"] + ([wanted] if wanted else [])
    session = shelf.put(rows)
    answer = shelf.search(query)
    if wanted is None:
        assert number(answer, "total_matches") == 0
        return
    assert number(answer, "total_matches") == number(answer, "line_matches") == 1, answer.text
    assert found_lines(answer) == [shelf.lines(session)[-1]]


NOTHING = ("", " ", "\n", '""', "\0", "\ud800", "()", "nonsuch", "x" * 5_000, "word " * 2_000, "!" * 300, '"open quote')


@pytest.mark.parametrize("query", NOTHING, ids=range(len(NOTHING)))
def test_a_query_that_finds_nothing_is_answered(query: str, shelf: FilledStore) -> None:
    shelf.put(["some text"])
    answer = shelf.ask("smart_compact_search", query=query)
    assert answer.is_error == (not query.strip())
    assert answer.is_error or "hint: " in answer.text


def test_no_string_makes_a_search_fail(shelf: FilledStore) -> None:
    session = shelf.put(["alpha beta", 'x "y" z', "中文 text"])
    draw = random.Random(5)
    signs = [*"abc AND OR NOT NEAR(\"'*^:{}[]()+-.,/\\\0\n\t中한あ🙂éİß", "\ud800", "\uffff", "\u0301"]
    with read_only_blocking(shelf.path(session), seconds=120) as db:
        for _ in range(2_000):
            query = "".join(draw.choices(signs, k=draw.randint(0, 12)))
            by_words.search_words(db, words.parse(query), Filters(), 8)


# --- scripts without spaces -----------------------------------------------------------------------------------------

RUNS = {
    "chinese": "请检查config_path文件是否存在",
    "japanese": "設定ファイルのtimeoutを確認してください",
    "korean": "설정파일을확인하세요 retryCount값",
    "thai": "กรุณาตรวจสอบไฟล์settingsก่อน",
    "wide": "ＡＰＩキーは無効です",
    "plain": "please check the config_path file and the timeout, API key",
}
HITS = {
    "检": {"chinese"}, "检查": {"chinese"}, "请检查": {"chinese"}, "文件是否存在": {"chinese"},
    "config_path": {"chinese", "plain"},
    "確認": {"japanese"}, "ファイル": {"japanese"}, "ルの": {"japanese"}, "timeout": {"japanese", "plain"},
    "파일": {"korean"}, "확": {"korean"}, "retryCount": {"korean"}, "retryCount값": {"korean"},
    "ตรวจ": {"thai"}, "settings": {"thai"}, "API": {"wide", "plain"}, "ＡＰＩ": {"wide", "plain"}, "无效": set(),
    "検査": set(), "config": {"chinese", "plain"}, "conf": set(), "conf*": {"chinese", "plain"},
    "文件 config_path": {"chinese"},
}  # fmt: skip


@pytest.mark.parametrize("behind", [False, True], ids=["indexed", "not indexed yet"])
@pytest.mark.parametrize("query", HITS)
def test_words_are_found_in_text_without_spaces(query: str, behind: bool, shelf: FilledStore) -> None:
    filler = [LARGE] if behind else []
    shelf.put([*filler, *RUNS.values()], behind=behind)
    answer = shelf.search(query)
    assert set(found_lines(answer)) == {RUNS[name] for name in HITS[query]}
    assert number(answer, "line_matches") == len(HITS[query])


def test_the_database_and_python_mean_the_same_scripts(shelf: FilledStore) -> None:
    """The migration marks what was stored before it by the same signs that mark new messages."""
    glob = re.search(r"GLOB \((.*?)\);", migrations("session")[1], re.DOTALL)
    assert glob is not None
    bounds = [int(found) for found in re.findall(r"char\((\d+)\)", glob[1])]
    ranges = list(zip(bounds[::2], bounds[1::2], strict=True))
    for point in [
        *range(0x3100),
        *range(0x3100, 0x40100, 7),
        *bounds,
        *(b + 1 for b in bounds),
        *(b - 1 for b in bounds),
    ]:
        marked = any(low <= point <= high for low, high in ranges)
        assert words.runs_on(chr(point)) == marked, hex(point)


# --- exact counts -------------------------------------------------------------------------------------------

PLAIN = ["alpha", "beta", "Gamma", "delta-one", "delta", "one", "x.y", "x", "y", "ERROR", "error_code", "42", "naïve"]
MIXED = [*PLAIN, "检查", "中beta", "alpha中"]


def random_rows(seed: int) -> list[str]:
    """Messages with words of Latin script only, and others where some have Chinese beside or in them."""
    draw = random.Random(seed)
    line = lambda from_: " ".join(draw.choices(from_, k=draw.randint(0, 6)))  # noqa: E731
    return ["\n".join(line((PLAIN, MIXED)[n % 2]) for _ in range(draw.randint(1, 30))) for n in range(80)]


def naive(query: str, lines: list[str]) -> int:
    """By the definition in docs/tools.md, without any index: whole words, change of script ends one."""
    letter = r"[A-Za-z0-9àïéÀÏÉ]"
    fold = lambda text: text.lower().replace("ï", "i")  # noqa: E731
    checks = []
    for word in query.split():
        body = re.escape(fold(word))
        checks.append(body if not word.isascii() else rf"(?<!{letter}){body}(?!{letter})")
    return sum(all(re.search(check, fold(line)) for check in checks) for line in lines)


QUERIES = ("alpha", "beta", "gamma", "delta", "delta-one", "alpha beta", "error", "ERROR_CODE", "x.y", "42 one", "检",
           "naive", "查 alpha", "beta 中", "delta one x.y")  # fmt: skip


@pytest.mark.parametrize("behind", [False, True], ids=["indexed", "not indexed yet"])
def test_line_matches_equals_a_naive_count(behind: bool, shelf: FilledStore) -> None:
    rows = random_rows(1)
    session = shelf.put([LARGE, *rows] if behind else rows, behind=behind)
    lines = shelf.lines(session)
    for query in QUERIES:
        assert number(shelf.search(query), "line_matches") == naive(query, lines), query


def test_short_and_long_messages_show_the_same_lines(shelf: FilledStore, monkeypatch) -> None:
    """The matching lines of a short message are looked for in its text, those of a long one in the index."""
    shelf.put(random_rows(1)[::2])  # of Latin script, which the index can be trusted with
    short = {query: shelf.search(query).text for query in QUERIES}
    monkeypatch.setattr(by_words, "_SHORT_LINES", 0)
    assert {query: shelf.search(query).text for query in QUERIES} == short


PATTERNS = (r"alpha", r"^beta", r"beta$", r"\bdelta\b", r"x\.y.*42", r"(?i)error", r"[^a]+", r"alpha\s+beta", r"a|b",
            r"", r"(?<!alpha )beta", r"\Aalpha", r"42\Z", r"(alpha|beta) \1", r"alpha(?! beta)", r"检.", r"\d{2}",
            r"(?s)alpha.*beta", r"(?x) alpha \s beta", r"delta(?:-one)? alpha", r"a++l",
            r"error_code.{3,400}one")  # fmt: skip


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_counts_every_line_as_if_it_stood_alone(pattern: str, shelf: FilledStore) -> None:
    session = shelf.put(random_rows(2))
    wanted = sum(
        re.search(pattern.replace("a++l", "a+l"), line, re.MULTILINE) is not None for line in shelf.lines(session)
    )
    answer = shelf.ask("smart_compact_search", pattern=pattern or "(?:)")
    assert number(answer, "line_matches") == wanted


def test_the_text_looked_for_first_is_in_every_match() -> None:
    for pattern in (
        r"ab?cdef",
        r"xyz{0,3}abc",
        r"(abc|x)def",
        r"[abc]def",
        r"\p{Letter}xyz",
        r"(?i)mask",
        r"abc+d",
        r"\x41bcd",
    ):
        literal = patterns.compile_pattern(pattern).literal.lower()
        for text in ("acdef", "xyabc", "xdef", "adef", "Qxyz", "MASK", "abccd", "Abcd"):
            if re.search(pattern.replace(r"\p{Letter}", "[A-Z]"), text):
                assert literal in text.lower()


# --- filters and order --------------------------------------------------------------------------------------


def test_roles_visibility_and_time_narrow_both_counts(shelf: FilledStore) -> None:
    shelf.put(
        [
            said("needle one", at=NOW - 7200),
            reply("needle two"),
            result("needle three\nneedle four", shown=False),
            said("needle five", shown=False, at=NOW - 60),
        ]
    )
    counts: list[tuple[dict[str, object], tuple[int, int]]] = [
        ({}, (3, 4)),
        ({"role": "all"}, (4, 5)),
        ({"role": "assistant"}, (1, 1)),
        ({"role": ["tool", "assistant"]}, (2, 3)),
        ({"in_context": True}, (1, 1)),
        ({"in_context": False}, (2, 3)),
        ({"since": "1h"}, (2, 3)),
        ({"until": "2026-02-02T01:00:00Z"}, (1, 1)),
        ({"since": "2026-02-02", "role": "user"}, (2, 2)),
    ]
    for given, wanted in counts:
        for asked in ({"query": "needle"}, {"pattern": "needle"}):
            answer = shelf.ask("smart_compact_search", **asked, **given)
            assert (number(answer, "total_matches"), number(answer, "line_matches")) == wanted, (given, asked)


def test_what_says_more_of_it_comes_first_and_the_newest_of_equals(shelf: FilledStore) -> None:
    shelf.put(["needle old", "hay " * 50 + "needle", "needle new", *["hay"] * 8])
    assert found_lines(shelf.search("needle"))[:2] == ["needle new", "needle old"]


def test_all_words_may_stand_in_different_lines_of_a_message(shelf: FilledStore) -> None:
    shelf.put(["alpha first\nmiddle\nbeta last", "alpha only"])
    answer = shelf.search("alpha beta")
    assert (number(answer, "total_matches"), number(answer, "line_matches")) == (1, 0)
    assert found_lines(answer) == ["alpha first", "beta last"]


READ = Row("file_path: /srv/app.py", "assistant", "call", "Read")
EDIT = Row("file_path: /srv/app.py", "assistant", "call", "Edit")


@pytest.mark.parametrize("behind", [False, True], ids=["indexed", "not indexed yet"])
def test_a_path_brings_what_the_calls_that_name_it_returned(behind: bool, shelf: FilledStore) -> None:
    """Beside the rows and not counted: a file's text doesn't say its own path."""
    rows = [
        READ,
        result("old text"),
        said("see /srv/app.py"),
        READ,
        result("\nimport sys\nnew text"),
        EDIT,
        result("done"),
    ]
    session = shelf.put([LARGE, *rows] if behind else rows, behind=behind)
    answer = shelf.search("/srv/app.py")
    assert (number(answer, "total_matches"), found_lines(answer)) == (1, ["see /srv/app.py"])
    at = answer.text.splitlines().index(f"results of the newest calls that name it, session_id={session}:")
    first = 2 if behind else 1
    assert answer.text.splitlines()[at + 1 : at + 3] == [
        f"  ~ seq={first + 4} role=tool kind=result| import sys",
        f"  ~ seq={first + 1} role=tool kind=result| old text",
    ]
    assert "| done" not in answer.text
    assert "old text" in shelf.search("app.py").text


def test_the_newest_call_comes_first_however_many_there_are(shelf: FilledStore) -> None:
    """Whatever it says beside the path, and with other calls of the same output before its result."""
    older = [row for n in range(120) for row in (READ, result(f"text {n}"))]
    newest = Row("file_path: /srv/app.py\n" + "offset: 1\n" * 400, "assistant", "call", "Read")
    other = Row("file_path: /srv/other.py", "assistant", "call", "Read")
    shelf.put([*older, newest, other, result("the newest text"), result("of the other")])
    lines = shelf.search("/srv/app.py").text.splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("results of the newest calls"))
    assert [line.split("| ")[1] for line in lines[at + 1 : at + 4]] == ["the newest text", "of the other", "text 119"]


@pytest.mark.parametrize(
    "asked",
    [
        {"query": "app"},
        {"query": "srv app.py"},
        {"query": "/srv/app.py", "role": "tool"},
        {"query": "/srv/app.py", "in_context": True},
        {"query": "/srv/app.py", "until": "2026-01-01"},
        {"pattern": r"/srv/app\.py"},
    ],
    ids=str,
)
def test_only_a_path_does_and_under_the_same_filters(asked, shelf: FilledStore) -> None:
    shelf.put([READ, result("the text", shown=False), said("see /srv/app.py, the app of srv")])
    assert "the text" not in shelf.ask("smart_compact_search", **asked).text


def test_the_tools_own_answers_are_not_found_again(shelf: FilledStore) -> None:
    """They quote what they found: counted again, no count would be right after the first search."""
    shelf.put(
        [
            said("needle"),
            result("1| needle", tool="mcp__openmem__smart_compact_search"),
            result("needle", tool="smart_compact_get, mcp__x__smart_compact_sql"),
            result("needle", tool="Read, smart_compact_search"),
        ]
    )
    for asked in ({"query": "needle"}, {"pattern": "needle"}):
        assert number(shelf.ask("smart_compact_search", **asked), "line_matches") == 2
