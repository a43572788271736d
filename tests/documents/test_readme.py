"""What the documents say is true: commands run, YAML is what the gateway takes, SQL answers, links lead somewhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
import tomllib
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from clients import drivers
from clients import page as clients_page
from openmem_hook import config
from openmem_hook.gateway.hook import ContextHook
from tests.conftest import make_key

REPO = Path(__file__).parents[2]
DOCUMENTS = [REPO / "README.md", REPO / "CHANGELOG.md", *sorted((REPO / "docs").glob("*.md"))]
README = (REPO / "README.md").read_text("utf-8")
SCHEMA = (REPO / "docs/schema.md").read_text("utf-8")


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


COMMANDS = [line for block in blocks(README, "sh") for line in block.splitlines()]
MADE = [line.split("#")[0].strip() for line in COMMANDS if line.startswith("make ")]


def sh(command: str, home: Path, folder: Path = REPO) -> str:
    environ = {"PATH": os.environ["PATH"], "HOME": str(home)}
    done = subprocess.run(
        ["/bin/sh", "-euc", command], cwd=folder, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


# --- commands -----------------------------------------------------------------------------------------------


def test_the_readme_has_the_three_commands_and_nothing_that_is_not_tested_here() -> None:
    assert MADE == ["make demo", "make serve", "make test"]
    known = (
        "make ",
        "export ANTHROPIC_",
        "export OPENMEM_KEY=",
        "claude --model ",
        "mkdir -p ~/.claude/commands && cp ",
    )
    assert [line for line in COMMANDS if not line.startswith(known)] == []


@pytest.mark.parametrize(
    ("command", "runs"),
    [
        ("make demo", "exec .venv/bin/python -m demo"),
        ("make serve", "exec .venv/bin/openmem serve"),
        ("make test", ".venv/bin/python -m pytest"),
        ("make test-fast", ".venv/bin/python -m pytest -p tests.no_litellm -n 2 --dist worksteal tests/"),
        ("make mutations", "exec .venv/bin/python -m tests.mutations"),
        ("make clients", ".venv/bin/python -m clients"),
        ("make laws", "OPENMEM_LAWS_EXAMPLES=3000 .venv/bin/python -m pytest -n 2 --dist worksteal -m laws"),
        ("make bench", "exec .venv/bin/python -m bench"),
        ("make clean", "rm -rf .venv"),
    ],
)
def test_a_make_target_runs_what_it_says(command: str, runs: str, tmp_path: Path) -> None:
    assert runs in sh(f"{command} --dry-run", tmp_path)


@pytest.mark.xdist_group("one")
def test_what_shares_a_gateway_runs_on_one_worker(request: pytest.FixtureRequest) -> None:
    """The plugin for several workers marks groups in a test's id; a pytest that it doesn't know yet may lose them."""
    if not request.config.getoption("loadgroup", default=False):
        pytest.skip("this run has no groups: make test has")
    assert request.node.nodeid.endswith("@one")


def test_the_fast_tests_do_not_import_litellm(tmp_path: Path) -> None:
    """Their modules, in a process of their own; what they import while they run is refused by the command itself."""
    words = shlex.split(sh("make test-fast --dry-run --old-file=.venv/.ready", tmp_path))
    collect = [sys.executable, *words[1:], "--collect-only"]
    done = subprocess.run(collect, cwd=REPO, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout


def test_make_alone_lists_every_target(tmp_path: Path) -> None:
    listed = sh("make", tmp_path)
    for target in re.findall(r"^\.PHONY: (.*)$", (REPO / "Makefile").read_text(), re.MULTILINE)[0].split():
        assert f"make {target} " in listed


def test_the_key_is_read_where_serve_writes_it(tmp_path: Path) -> None:
    key_file = tmp_path / ".local/share/openmem/master_key"
    key_file.parent.mkdir(parents=True)
    key_file.write_text("sk-made\n")
    exports = "\n".join(line for line in COMMANDS if line.startswith("export "))
    said = sh(f'{exports}\necho "$ANTHROPIC_BASE_URL $ANTHROPIC_AUTH_TOKEN"', tmp_path)
    assert said == "http://127.0.0.1:4000 sk-made\n"


def test_the_slash_command_is_copied_to_where_claude_code_looks(tmp_path: Path) -> None:
    sh(next(line for line in COMMANDS if line.startswith("mkdir ")), tmp_path)
    assert (tmp_path / ".claude/commands/smart-compact.md").is_file()


def test_the_model_that_the_readme_asks_for_is_in_the_shipped_file() -> None:
    asked = shlex.split(next(line for line in COMMANDS if line.startswith("claude ")))[-1]
    shipped = yaml.safe_load((REPO / "litellm_config.yaml").read_text("utf-8"))
    assert asked in {model["model_name"] for model in shipped["model_list"]}


# --- YAML ---------------------------------------------------------------------------------------------------


def test_the_one_line_is_the_shipped_file_s_own() -> None:
    shipped = yaml.safe_load((REPO / "litellm_config.yaml").read_text("utf-8"))
    one_line = yaml.safe_load(blocks(README, "yaml")[0])
    assert one_line == {"litellm_settings": shipped["litellm_settings"]}


def test_the_settings_that_the_readme_shows_are_accepted() -> None:
    shown = yaml.safe_load(blocks(README, "yaml")[1])
    assert config.load(shown["callback_settings"]["openmem"], {}).settings.ttl_days == 14
    for model in shown["model_list"]:
        config.check_model(model["model_name"], model["model_info"]["openmem"])


# --- SQL ----------------------------------------------------------------------------------------------------

QUERIES = blocks(SCHEMA, "sql")


def sessions_below(state_dir: Path) -> list[Path]:
    return list(state_dir.glob("context/*/sessions/*.db"))


@pytest.fixture
async def session_file(new_hook, state_dir: Path) -> Path:
    """A short session through the hook: a trim, a usage report, and the words that the examples look for."""
    hook: ContextHook = new_hook(trim_at_tokens=5000)
    messages = [{"role": "user", "content": "please add a retry with a timeout"}]
    for turn in range(30):
        call = {"type": "tool_use", "id": f"t{turn}", "name": "Bash", "input": {"command": f"make {turn}"}}
        output = f"{turn}: connection refused\ntest {turn} FAILED\n" + "other output\n" * 80
        messages += [
            {"role": "assistant", "content": [call]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": f"t{turn}", "content": output}]},
        ]
        body = {"model": "claude-sonnet-5", "max_tokens": 9, "tools": [{"name": "Bash"}], "messages": list(messages)}
        headers = {"x-claude-code-session-id": "s"}
        data = {**body, "litellm_call_id": f"c{turn}", "proxy_server_request": {"headers": headers}}
        out = await hook.async_pre_call_hook(make_key(), None, data, "anthropic_messages")
        used = {"prompt_tokens": len(str(out["messages"])) // 3, "prompt_tokens_details": {"cached_tokens": 900}}
        await hook.async_log_success_event({"litellm_call_id": f"c{turn}"}, {"usage": used}, None, None)
    return sessions_below(state_dir)[0]


async def test_every_example_query_answers(session_file: Path) -> None:
    with closing(sqlite3.connect(f"{session_file.as_uri()}?mode=ro", uri=True)) as db:
        for query in QUERIES:
            rows = db.execute(query).fetchall()
            assert rows, query
            assert rows[0][0] is not None, query


async def test_every_documented_column_is_there(session_file: Path) -> None:
    documented = set(re.findall(r"^\| `(\w+)` \|", SCHEMA, re.MULTILINE))
    with closing(sqlite3.connect(f"{session_file.as_uri()}?mode=ro", uri=True)) as db:
        columns = {row[1] for row in db.execute("PRAGMA table_xinfo(messages)")}
        assert documented == columns
        assert {"seq", "line_no", "text"} <= {row[1] for row in db.execute("PRAGMA table_xinfo(lines)")}
        assert {"kind", "created_at", "data"} <= {row[1] for row in db.execute("PRAGMA table_xinfo(events)")}


def test_there_are_examples() -> None:
    assert len(QUERIES) == SCHEMA.count("```sql")
    assert len(QUERIES) >= 8


# --- links --------------------------------------------------------------------------------------------------


def anchors(document: Path) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", document.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", document.read_text("utf-8")):
        if link.startswith("http"):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name) if name else document
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


# --- clients ------------------------------------------------------------------------------------------------


def test_the_clients_page_shows_the_recorded_results() -> None:
    assert clients_page.written() == clients_page.table(clients_page.read()), "make clients writes it anew"


def test_the_clients_page_sets_clients_up_as_the_suite_does() -> None:
    text = clients_page.DOCS.read_text("utf-8")
    shown = [shlex.split(line) for line in blocks(text, "text")[1].splitlines()]
    at = "http://127.0.0.1:4000"
    exports = [f"{k}={v.format(gateway=at, key='$OPENMEM_KEY')}" for k, v in drivers.CLAUDE_EXPORTS.items()]
    assert [line[1] for line in shown if line[0] == "export"] == exports
    adding = list(drivers.claude_adds(at))
    assert [line[1:] for line in shown if line[0] == "claude"] == [adding]
    assert shlex.split(blocks(README, "text")[0])[1:] == adding
    tools = blocks((REPO / "docs/tools.md").read_text("utf-8"), "text")[0].split("Codex")[0].replace("\\\n", "")
    *words, server = shlex.split(tools)
    assert words[3:] == adding[:-1]
    assert json.loads(server) == json.loads(adding[-1])
    codex, opencode = (tomllib.loads(blocks(text, "toml")[0]), json.loads(blocks(text, "json")[0]))
    place = drivers.Place(Path(), Path(), "http://127.0.0.1:4000", "")
    row = next(client for client in drivers.CLIENTS if client.model == "local")
    ran = tomllib.loads(drivers.CODEX_FILE.format(model="gpt-5.5", gateway=place.gateway, mcp=drivers.MCP))
    assert codex.items() <= ran.items()
    shipped = yaml.safe_load((REPO / "litellm_config.yaml").read_text("utf-8"))["model_list"]
    windows = {model["model_name"]: model.get("model_info", {}).get("max_input_tokens") for model in shipped}
    assert {codex["model"], row.model} <= set(windows)
    assert opencode["provider"]["local"]["models"][row.model]["limit"]["context"] == windows[row.model]
    assert opencode.items() <= drivers.opencode_file(row, place, "local", "@ai-sdk/openai-compatible").items()
