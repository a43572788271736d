"""Mistakes that somebody could make in the code, and the tests that catch them: `python -m tests.mutations [WORDS…]`.

Each mutation is one change of one text. The repository is copied to a temporary folder, the change made there, and
the tests run that should fail; the one that did is printed. A mutation that survives, or whose text is not in its file
exactly once, makes the exit code 1. Tests that fail without any change catch nothing: they are named and left out.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".hypothesis", ".clients", ".demo", ".peers", ".*_cache")
WORKERS = 2
FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+\.py::.*?)(?: - .*)?$", re.MULTILINE)
TESTS_FAILED = 1
"""Exit code of pytest; any other but 0 says that nothing was tested."""

PURE = "-p", "tests.no_litellm"
CORE = "openmem_hook/compaction"
ROOM = "tests/compaction"


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mistake."""

    name: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]
    """Arguments of pytest."""


def pure(name: str, module: str, before: str, after: str, *tests: str) -> Mutation:
    """A mistake in the core that tests of these modules of `tests/compaction` should catch."""
    return Mutation(name, f"{CORE}/{module}.py", before, after, (*PURE, *(f"{ROOM}/test_{test}.py" for test in tests)))


MUTATIONS: tuple[Mutation, ...] = (
    # Where a history may be cut, and what is chosen.
    pure("an open call is overlooked", "boundaries", "return [not waiting for waiting in accumulate(change)]",
         "return [waiting <= 1 for waiting in accumulate(change)]", "boundaries", "trim"),
    pure("a range is split", "boundaries", "change[first + 1] += 1", "change[first + 1] += 0", "boundaries", "trim"),
    pure("the cut is one too deep", "trim", "turn if around is None else None, start - 1, turn)",
         "turn if around is None else None, start, turn)", "trim"),
    pure("the anchor is one before", "freeze", "anchor = choice.anchor\n", "anchor = choice.anchor - 1\n", "freeze"),
    pure("two exchanges stay", "trim", "KEEP_EXCHANGES = 3", "KEEP_EXCHANGES = 2", "trim"),
    pure("references are not pinned", "trim", "not in_use.intersection(facts[i].references)", "True", "trim"),
    pure("interjections leave", "trim",
         "words = _newest_interjection(history, start, exchanges, turn_body) if strict else range(0)",
         "words = range(0)", "trim"),
    pure("no opener with thinking", "trim", "must_think = history.must_start_with_thinking and",
         "must_think = False and", "trim"),
    pure("an anchor without identity", "trim", "while at > 0 and not facts[at - 1].identifies:", "while False:",
         "trim"),
    # What a head is.
    pure("messages are frozen raw", "freeze", "(message := adapter.freeze_message(raw, keep_thinking))",
         "(message := raw)",
         "freeze"),
    pure("the running turn loses its thinking", "freeze", "keep_thinking = i > choice.turn or",
         "keep_thinking = False or", "freeze"),
    pure("a head ignores swaps and splices", "freeze", "outgoing_messages(adapter, history, range(i, i + 1), edits)",
         "[history.messages[i]]", "freeze"),
    pure("a quote keeps its brackets", "wording", '.replace("<", "‹")', "", "freeze", "wording"),
    # Which edits stand.
    pure("a splice at a look-alike", "active",
         " else splice.recent_outputs == find_recent_outputs(history, i))", " else True)",
         "active"),
    pure("a splice stands twice", "active", "and splice not in standing.values()", "", "active"),
    pure("an abandoned edit is active", "edits", 'if edit.state == "active"', 'if edit.state != "prepared"', "edits",
         "active"),
    pure("no old names after drift", "active", "return replace(history, keys=keys, chain=chain)", "return history",
         "active"),
    pure("a head stands though what it shows was edited", "active",
         "return all(digest in digests for digest in cut.shown_digests)", "return True", "active"),
    pure("a cut stands on another branch", "active", "if find_recent_outputs(history, index) != cut.recent_outputs:",
         "if False:", "active"),
    pure("a typed anchor without its neighbour", "active", "if find_digest_before(history, index) != cut.before:",
         "if False:", "active"),
    pure("an open call that was answered later", "active",
         "if cut is not None and history.facts[i].identifies and closed_at[i + 1]:",
         "if cut is not None and history.facts[i].identifies:", "active"),
    pure("a head of another format", "active", 'if cut.format in ("", history.format)', "if True", "active"),
    # What goes out.
    pure("apply skips swaps", "outgoing", "for edit in edits.edited_rows.get(history.keys[index], ()):",
         "for edit in ():", "outgoing"),
    pure("apply drops what follows an inner cut", "outgoing", "at = active.anchor + 1\n", "at = active.anchor + 2\n",
         "outgoing"),
    pure("an inner cut's rows are charged", "outgoing",
         "keys[active.start : active.anchor + 1] = [None] * len(places)", "pass", "outgoing"),
    pure("splices weigh nothing", "outgoing",
         "facts[i] = parts[0] if len(parts) == 1 else _together(history.facts[i], parts)", "pass", "outgoing"),
    # Threads, costs, state.
    pure("a sub-agent's label is ignored", "threads", "for thread in threads if thread.agent == agent}",
         "for thread in threads}", "threads"),
    pure("learning counts dropped thinking", "learning", "sum(sizes, tokens.ZERO) - dropped_thinking, growth",
         "sum(sizes, tokens.ZERO), growth", "learning"),
    pure("new messages are charged with dropped thinking", "learning", "growth, costs.calibration, dropped_thinking)",
         "growth, costs.calibration)", "learning"),
    pure("another tokenizer's report counts", "estimate",
         "if report is not None and report.family_rate != costs.family_rate:", "if False:", "estimate"),
    pure("a swapped row keeps its tokens", "state",
         "row_tokens={**state.row_tokens, **forget} if forget else state.row_tokens,", "row_tokens=state.row_tokens,",
         "state"),
    pure("edits of a lost database are forgotten", "state", 'if edit.state != "abandoned")', "if False)", "state"),
    # The steps.
    pure("a retry breaks at the soft limit", "cut", "if is_over and not is_retry and not is_summary",
         "if is_over and not is_summary", "pipeline"),
    pure("what was sent raw is shortened", "draft", "if not (keys[i] in row_tokens or keys[i] in sent_unstored)]", "]",
         "pipeline"),
    pure("a squeezed result is measured as before", "squeeze", "costs=costs, tokens=count", "tokens=count", "pipeline"),
    pure("another kind's text is shortened too", "compress", "if slot.call_id not in others] if others", "] if others",
         "pipeline"),
    pure("kinds apply as they are listed", "active", "by_row[key] = in_order(edits)", "pass",
         "edits"),
    pure("a short form is forgotten under another name", "compress", "        swaps += renamed_swaps\n", "",
         "pipeline"),
    pure("repeated breaks for any gain", "trim", "REPEATED_GAIN = 0.2", "REPEATED_GAIN = 0.0", "pipeline"),
    pure("short forms that left are edits", "cut", "if edit.replaced_row not in removed_keys", "if True",
         "pipeline"),
    pure("what left is still shown", "record",
         "hidden_keys = [key for i, key in enumerate(history.keys) if i not in whole]", "hidden_keys = []", "record"),
    pure("an inner cut is whole", "record", "else i not in under_cuts)}", "else True)}", "record"),
    # Outside the core.
    Mutation("no breakpoint after a trim", "openmem_hook/formats/breakpoints.py", "    if marker is None:\n",
             "    if True:\n",
             (*PURE,
              "tests/formats/test_breakpoints.py::test_the_last_breakpoint_is_set_again_where_a_trim_removed_all")),
    Mutation("a key owns before its user", "openmem_hook/gateway/tenant.py", "else (user, holder, team)",
             "else (holder, user, team)",
             ("tests/gateway/test_identity.py::test_the_tenant_is_what_the_gateway_authenticated",)),
    Mutation("a session forks from itself", "openmem_hook/store/sql/catalog.sql", "a.session <> ?", "a.session = ?",
             ("tests/store/test_store.py::test_the_deepest_anchor_of_another_session_is_found",)),
    Mutation("a claim without its version", "openmem_hook/store/session.py", "if version(db) != loaded_version:",
             "if False:",
             ("tests/store/test_store.py::test_of_two_workers_the_second_one_is_told_to_decide_again",)),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a mutation."""

    mutation: Mutation
    caught_by: str
    """The test that failed, "" for none."""
    problem: str
    """Why there is none."""
    seconds: float


def main(words: Sequence[str]) -> int:
    """Runs the mutations with one of these texts in their name, all without any, and prints a line for each. Gives the
    exit code."""
    selection = [mutation for mutation in MUTATIONS if not words or any(text in mutation.name for text in words)]
    if not selection:
        print("No mutation has that in its name. There are:", *(mutation.name for mutation in MUTATIONS), sep="\n  ")
        return 1
    faults = failing_as_it_is(selection)
    for fault in faults:
        print(f"fails without any mutation, and is left out: {fault}")
    width = max(len(mutation.name) for mutation in selection)
    survivors = 0
    with ThreadPoolExecutor(WORKERS) as workers:
        for result in workers.map(lambda mutation: run(mutation, faults), selection):
            survivors += not result.caught_by
            answer = result.caught_by.rpartition("/")[2] or f"*** {result.problem} ***"
            print(f"{result.mutation.name:<{width}}  {result.seconds:5.1f} s  {answer}", flush=True)
    print(f"{len(selection) - survivors} of {len(selection)} caught")
    return 1 if survivors else 0


def failing_as_it_is(selection: Sequence[Mutation]) -> list[str]:
    """Tests of these mutations that fail on the repository as it is."""
    places = {argument for mutation in selection for argument in mutation.tests if argument.startswith("tests/")}
    return FAILURE.findall(run_tests(ROOT, sorted(places)).stdout)


def run(mutation: Mutation, faults: Sequence[str]) -> Result:
    """The mutation in a copy of the repository, and the first of its tests that fails there."""
    beginning = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutation-") as folder:
        copy = Path(folder) / "repository"
        shutil.copytree(ROOT, copy, ignore=NOT_COPIED)
        caught_by, problem = "", mutate(copy / mutation.file, mutation)
        if not problem:
            outcome = run_tests(copy, ["-x", *mutation.tests, *(f"--deselect={fault}" for fault in faults)])
            failures = FAILURE.findall(outcome.stdout)
            is_caught = outcome.returncode == TESTS_FAILED and bool(failures)
            caught_by = failures[0] if is_caught else ""
            problem = "" if is_caught else "survives" if outcome.returncode == 0 else "could not be tested"
    return Result(mutation, caught_by, problem, time.monotonic() - beginning)


def mutate(path: Path, mutation: Mutation) -> str:
    """Changes the text; what is wrong where that can't be done, else ""."""
    source = path.read_text()
    count = source.count(mutation.before)
    if count != 1:
        return f"its text is in {mutation.file} {count} times"
    path.write_text(source.replace(mutation.before, mutation.after))
    return ""


def run_tests(folder: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
