"""`openmem replay`: what it reports of small transcripts, and that hostile ones neither stop nor speak through it."""

from __future__ import annotations

import gzip
import json
import lzma
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openmem_hook import cli
from openmem_hook.compactor import Compactor
from openmem_hook.gateway.prices import PriceList, price_list, shipped_costs
from openmem_hook.replay import read
from openmem_hook.replay.scale import scale_of
from openmem_hook.replay.show import name, remarks
from openmem_hook.replay.summary import summary, total
from openmem_hook.replay.trial import run
from openmem_hook.store.pool import SessionBusyError
from tests.kit.filler import listing
from tests.replay.test_readers import Claude, call

Json = dict[str, Any]
SECRET = "hunter2-in-the-transcript"
PER_RESULT = 1_500
"""Tokens that the transcript's provider counted for each exchange."""


def session(
    tmp_path: Path, *, exchanges: int = 30, file: str = "session.jsonl", model: str = "claude-opus-4-5"
) -> Path:
    """A session of one long turn; each request reads from the cache what the one before sent."""
    log = Claude()
    log.typed(f"Find the fault. {SECRET}")
    for at in range(exchanges):
        sent = 12_000 + PER_RESULT * at
        read_ = sent - PER_RESULT if at else 0
        usage = {"input_tokens": 0, "cache_read_input_tokens": read_, "cache_creation_input_tokens": sent - read_}
        message = {"role": "assistant", "id": f"m{at}", "model": model, "content": [call(f"c{at}")], "usage": usage}
        log.add("assistant", message=message, timestamp=f"2026-01-01T00:{at % 60:02}:00Z")
        log.result(f"c{at}", listing(4_500, "log", at))
    path = tmp_path / file
    path.write_text("\n".join(map(json.dumps, log.lines)), encoding="utf-8")
    return path


def figures(path: Path, **settings: object) -> Json:
    return summary(run(read(path), settings, shipped_costs(), lambda *_: None))


def openmem(*words: object) -> int:
    return cli.main(["replay", *map(str, words)])


def test_a_terminal_of_ascii_shows_the_report_too(tmp_path: Path) -> None:
    path = session(tmp_path, exchanges=2, file="größe.jsonl")
    command = [Path(sys.executable).with_name("openmem"), "replay", path]
    environ = {"HOME": str(tmp_path), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=environ, capture_output=True, timeout=120, check=True)
    assert rb"gr\xf6\xdfe" in done.stdout


# --- what is reported ---------------------------------------------------------------------------------------


def test_a_long_session_is_trimmed_and_sends_less(tmp_path: Path) -> None:
    one = figures(session(tmp_path), trim_at_tokens=25_000)
    assert one["trims"] >= 1
    assert one["with"]["largest"] < 26_000 < one["without"]["largest"]
    assert one["with"]["tokens"] < one["without"]["tokens"]
    assert one["with"]["bytes"] < one["without"]["bytes"]
    assert (one["with"]["refused"], one["without"]["refused"]) == (0, 0)
    assert len(one["prompts"]) == one["requests"] == 30


def test_what_was_recorded_is_what_the_client_s_own_way_costs(tmp_path: Path) -> None:
    one = figures(session(tmp_path))
    assert [row[0] for row in one["prompts"]] == [12_000 + PER_RESULT * at for at in range(30)]


def test_the_cache_misses_at_trims_and_nowhere_else(tmp_path: Path) -> None:
    one = figures(session(tmp_path), trim_at_tokens=25_000)
    assert one["without"]["misses"] == 0
    assert one["with"]["misses"] == one["trims"]
    assert one["cache_check"]["close"] is True


def test_below_every_limit_the_two_ways_differ_by_the_note_alone(tmp_path: Path) -> None:
    one = figures(session(tmp_path, exchanges=5), standing_instruction=False)
    assert one["with"]["tokens"] == one["without"]["tokens"]
    assert one["with"]["dollars"] == one["without"]["dollars"]
    assert one["trims"] == 0


def test_the_front_and_the_rate_make_the_counted_request_as_large_as_the_recorded_one(tmp_path: Path) -> None:
    trial = run(read(session(tmp_path)), {}, {}, lambda *_: None)
    assert trial.scale.rates
    estimate = [row.estimate for row in trial.requests]
    assert estimate[-1] == pytest.approx(trial.requests[-1].through.tokens, rel=0.02)


def test_a_damaged_count_does_not_blow_up_the_front(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello")
    log.reply("m1", "bye", prompt=10**15)
    assert scale_of(log.session(tmp_path)).front < 1_000_000


def test_a_store_that_is_busy_for_a_moment_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def refusing(own: Any) -> Any:
        async def sometimes(*given: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls % 3 == 0:
                raise SessionBusyError("another request of this session takes too long")
            return await own(*given)

        return sometimes

    usual = figures(session(tmp_path, exchanges=8), trim_at_tokens=15_000)
    for name_ in ("compact_request", "record_response"):
        monkeypatch.setattr(Compactor, name_, refusing(getattr(Compactor, name_)))
    one = figures(session(tmp_path, exchanges=8), trim_at_tokens=15_000)
    assert calls > 16
    assert (one["requests"], one["trims"], one["without"]) == (8, usual["trims"], usual["without"])


def test_without_recorded_counts_sizes_are_counted_and_nothing_is_checked(tmp_path: Path) -> None:
    log = Claude()
    log.typed("hello")
    log.reply("m1", call("c1"), usage={})
    log.result("c1")
    log.reply("m2", "bye", usage={})
    one = summary(run(log.session(tmp_path), {}, {}, lambda *_: None))
    assert one["counts_recorded"] == 0
    assert one["cache_check"] == {"recorded": None, "simulated": None, "close": None}
    assert 30_000 < one["without"]["tokens"] / one["requests"] < 60_000
    assert not scale_of(log.session(tmp_path)).rates


def test_a_model_without_a_price_is_named_and_left_out_of_the_cost_both_ways(tmp_path: Path) -> None:
    priced = figures(session(tmp_path, exchanges=3))
    unknown = figures(session(tmp_path, exchanges=2, file="b.jsonl", model="nobody-knows"))
    sums = total([priced, unknown])
    assert sums["requests"] == 5
    assert unknown["with"]["dollars"] is None
    assert (priced["without_price"], unknown["without_price"]) == ([], ["nobody-knows"])
    assert [sums[way]["dollars"] for way in ("without", "with")] == [priced[w]["dollars"] for w in ("without", "with")]
    assert any("nobody-knows" in line for line in remarks([priced, unknown], sums))


# --- prices -------------------------------------------------------------------------------------------------

ENTRY = {
    "input_cost_per_token": 1.0,
    "cache_read_input_token_cost": 0.1,
    "cache_creation_input_token_cost": 1.25,
    "cache_creation_input_token_cost_above_1hr": 2.0,
    "input_cost_per_token_above_200k_tokens": 2.0,
    "cache_read_input_token_cost_above_200k_tokens": 0.3,
}


def prices(**entry: Any) -> PriceList:
    found = price_list([entry])
    assert found is not None
    return found


def test_each_kind_of_token_has_its_price() -> None:
    assert prices(**ENTRY).cost(1_000, 100, 10, 1) == pytest.approx(100 + 125 + 20 + 1)


def test_a_prompt_over_a_step_is_paid_at_the_step_s_prices_as_a_whole() -> None:
    assert prices(**ENTRY).cost(200_000, 0, 0, 0) == pytest.approx(20_000)
    assert prices(**ENTRY).cost(200_000, 0, 0, 1) == pytest.approx(60_002)


def test_what_a_step_doesn_t_name_rises_as_its_fresh_tokens_do() -> None:
    assert prices(**ENTRY).cost(0, 300_000, 0, 0) == pytest.approx(300_000 * 2.5)


def test_a_model_without_cache_prices_pays_the_whole_prompt() -> None:
    assert prices(input_cost_per_token=1.0).cost(10, 20, 30, 40) == 100
    assert price_list([{"max_tokens": 8_000}]) is None


def test_the_shipped_table_knows_the_agents_models() -> None:
    costs = shipped_costs()
    assert price_list([costs["claude-sonnet-4-5"]]) is not None
    steps = prices(**costs["gpt-5.5"]).steps
    assert steps[0].above == 272_000
    assert steps[0].fresh == 2 * steps[-1].fresh


# --- the command --------------------------------------------------------------------------------------------


def test_the_table_fits_80_columns_and_has_both_ways(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert openmem(session(tmp_path), "--trim-at-tokens", 25_000) == 0
    said = capsys.readouterr()
    assert said.err == ""
    assert max(map(len, said.out.splitlines())) <= 80
    assert re.search(r"tokens sent +1\.01M +\d+\.\dk +-\d+ %", said.out)
    assert "Every one of 30 requests is accepted" in said.out
    assert SECRET not in said.out


SCHEMA = {"schema", "openmem", "settings", "sessions", "total"}
SESSION = {
    *("file", "client", "models", "requests", "trims", "without", "with", "cache_check", "estimate_error", "hook_ms"),
    "without_price",
    *("counts_recorded", "cleared_by_client", "skipped", "repaired", "prompts", "dollars"),
}
WAY = {
    *("tokens", "largest", "bytes", "read", "written", "hit_share", "misses", "dollars", "refused", "faults"),
}


def test_json_holds_every_figure_and_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert openmem(session(tmp_path, exchanges=3), "--json") == 0
    out = capsys.readouterr().out
    told = json.loads(out)
    assert told.keys() == SCHEMA
    assert told["sessions"][0].keys() == SESSION
    assert told["sessions"][0]["with"].keys() == WAY
    assert told["total"]["requests"] == 3
    assert SECRET not in out


@pytest.mark.parametrize(("pack", "ending"), [(gzip.compress, "gz"), (lzma.compress, "xz")])
def test_packed_files_are_read(pack: Any, ending: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    packed = tmp_path / f"session.jsonl.{ending}"
    packed.write_bytes(pack(session(tmp_path, exchanges=2).read_bytes()))
    assert openmem(packed, "--json") == 0
    assert json.loads(capsys.readouterr().out)["total"]["requests"] == 2


def test_a_file_that_is_no_transcript_is_one_line_and_two_and_the_others_are_still_replayed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "notes.txt").write_text("milk, bread")
    assert openmem(tmp_path / "notes.txt", tmp_path / "missing.jsonl", session(tmp_path, exchanges=2), "--json") == 2
    said = capsys.readouterr()
    assert said.err.splitlines() == [
        f"openmem: {tmp_path}/notes.txt: not a transcript of Claude Code, Codex or OpenCode",
        f"openmem: {tmp_path}/missing.jsonl: No such file or directory",
    ]
    assert json.loads(said.out)["total"]["requests"] == 2


def test_a_transcript_without_a_request_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = Claude()
    log.typed("hello?")
    (tmp_path / "short.jsonl").write_text(json.dumps(log.lines[0]))
    assert openmem(tmp_path / "short.jsonl") == 2
    assert capsys.readouterr().err.endswith("short.jsonl: a transcript without a request\n")


def test_broken_lines_and_unknown_records_are_counted_and_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = session(tmp_path, exchanges=3)
    broken = ['{"type": "assistant", "mess', "[1, 2]", '{"type": "marvel", "uuid": "x", "sessionId": "s1"}', "\x00\xff"]
    path.write_text("\n".join([*broken, path.read_text()]), encoding="utf-8")
    assert openmem(path) == 0
    assert "4 lines or records were broken, unknown" in capsys.readouterr().out


def test_a_wrong_limit_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert openmem("x.jsonl", "--trim-at-tokens", "0") == 2
    assert "0 is not allowed: a whole number from 1000 to 100000000 is" in capsys.readouterr().err


# --- the page -----------------------------------------------------------------------------------------------

EVIL_FILE = "<script>alert(1)<\N{DIVISION SLASH}script>&amp;\x1b[31m.jsonl"
EVIL_MODEL = '"><img src=x onerror=alert(2)> $\\frac{1}{0}$ ]]> [red]\x07'


def page_of(tmp_path: Path, *words: object, **about: Any) -> str:
    made = tmp_path / "page.html"
    assert openmem(session(tmp_path, **about), "--html", made, *words) == 0
    return made.read_text("utf-8")


def test_names_are_escaped_in_the_page_and_on_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = page_of(tmp_path, exchanges=3, file=EVIL_FILE, model=EVIL_MODEL)
    assert "<script" not in page
    assert "<img" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "&quot;&gt;&lt;img src=x" in page
    out = capsys.readouterr().out
    assert not {"\x1b", "\x07"} & set(page + out)


def test_the_page_loads_nothing_and_shows_no_text_of_the_transcript(tmp_path: Path) -> None:
    page = page_of(tmp_path, exchanges=12, model="claude-opus-4-5")
    assert SECRET not in page
    assert not re.search(r"<(?:script|link|iframe|object|embed|img|image)\b|@import|url\((?!#)", page)
    assert [found for found in re.findall(r"(?:href|src)=\"([^\"]*)", page) if not found.startswith("#")] == []
    assert "default-src 'none'" in page


def test_the_page_has_two_charts_a_session_with_the_lines_named(tmp_path: Path) -> None:
    page = page_of(tmp_path, "--trim-at-tokens", 25_000)
    charts = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(charts) == 2
    for chart in charts:
        assert ">without</text>" in chart
        assert ">with openmem</text>" in chart
        assert "stroke-dasharray" in chart, "told apart without colours"


def test_without_the_library_one_line_says_how_to_get_it_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "openmem_hook.replay.page", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert openmem(session(tmp_path), "--html", tmp_path / "page.html") == 2
    said = capsys.readouterr()
    assert said.err == "openmem: --html draws with matplotlib: pip install 'openmem-hook[report]'\n"
    assert said.out == ""


def test_a_page_that_can_t_be_written_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert openmem(session(tmp_path, exchanges=2), "--html", tmp_path / "no" / "page.html") == 2
    assert capsys.readouterr().err.endswith("page.html: No such file or directory\n")


def test_a_long_name_keeps_both_ends() -> None:
    assert name("a" * 40 + "z" * 40, 10) == "aaaaa…zzzz"
    assert name("ok.jsonl") == "ok.jsonl"


# --- the document -------------------------------------------------------------------------------------------

DOCUMENT = (Path(__file__).parents[2] / "docs/replay.md").read_text("utf-8")


def test_every_option_and_every_field_is_documented(capsys: pytest.CaptureFixture[str]) -> None:
    assert openmem("--help") == 0
    options = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out)) - {"--help"}
    assert options == set(re.findall(r"--[a-z][a-z-]+", DOCUMENT.partition("## How")[0].split("\n\n")[1]))
    told = set(re.findall(r"`(\w+)`", DOCUMENT.partition("## JSON")[2]))
    assert told >= SCHEMA | SESSION | WAY
