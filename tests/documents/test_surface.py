"""What is public is documented, and what is documented is there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import openmem_hook
from openmem_hook import config
from openmem_hook.facts import TRIM_COMMAND
from openmem_hook.formats import typed
from openmem_hook.limits import TRIM_AT, TRIM_AT_OF_FAMILY
from openmem_hook.settings import PER_REQUEST, RULES, Settings

REPO = Path(__file__).parents[2]
PACKAGE = REPO / "openmem_hook"
PROJECT = tomllib.loads((REPO / "pyproject.toml").read_text("utf-8"))
OPERATIONS = (REPO / "docs/operations.md").read_text("utf-8")
SOURCES = {path.relative_to(PACKAGE): path.read_text("utf-8") for path in sorted(PACKAGE.rglob("*.py"))}


# --- settings -----------------------------------------------------------------------------------------------


def settings_table() -> dict[str, tuple[str, str]]:
    """Default and environment variable that the README gives for each setting."""
    readme = (REPO / "README.md").read_text("utf-8")
    part = readme.partition("\n## Settings\n")[2].partition("\n## ")[0]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| `")
    ]
    return {key: (row[1], row[2]) for row in rows for key in re.findall(r"`([^`]+)`", row[0])}


def test_every_setting_is_in_the_table_with_its_environment_variable() -> None:
    told = {key: variable.strip("`") for key, (_, variable) in settings_table().items()}
    assert told == {key: rule.variable for key, rule in RULES.items()}


def test_the_table_has_the_defaults() -> None:
    """Those that are a rule (`trim_at_tokens`, `chars_per_token`, agents) are told in words."""
    for key, (default, _) in settings_table().items():
        value = None if "." in key else Settings.model_fields[key].default
        if value is not None:
            assert default == f"`{str(value).lower() if isinstance(value, bool) else value}`", key
        else:
            assert not default.startswith("`"), key


def test_the_table_has_the_numbers_of_the_trim_rule() -> None:
    told = settings_table()["trim_at_tokens"][0]
    assert told == f"{TRIM_AT_OF_FAMILY['claude-haiku']} for Haiku, else {TRIM_AT}"


def test_what_holds_for_the_whole_gateway_is_marked_so() -> None:
    readme = (REPO / "README.md").read_text("utf-8")
    rows = [line for line in readme.splitlines() if line.endswith("Whole gateway only |")]
    marked = {re.findall(r"`([^`]+)`", line)[0] for line in rows}
    assert marked == set(RULES) - set(PER_REQUEST)


def test_the_shipped_file_is_right_and_gives_each_kind_of_model_its_own_limit() -> None:
    shipped = yaml.safe_load((REPO / "litellm_config.yaml").read_text("utf-8"))
    config.load(shipped["callback_settings"]["openmem"], {})
    limits = {}
    for model in shipped["model_list"]:
        block = model.get("model_info", {}).get("openmem", {})
        config.check_model(model["model_name"], block)
        limits[model["model_name"]] = block.get("trim_at_tokens")
    named = {name: limit for name, limit in limits.items() if "*" not in name}
    assert {"claude-sonnet-5", "claude-haiku-4-5", "gpt-5.5", "local"} <= set(named)
    assert None not in named.values()
    assert len(set(named.values())) == len(named)


# --- what operators read ------------------------------------------------------------------------------------


def test_every_kind_of_event_is_documented() -> None:
    made = {kind for text in SOURCES.values() for kind in re.findall(r'\bEvent\(\s*"(\w+)"', text)}
    table = OPERATIONS.partition("\n## Events\n")[2].partition("\n## ")[0]
    told = set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE))
    assert told == made


def test_every_log_line_is_documented() -> None:
    """Compared by the words that stand fixed in the source."""
    told = re.sub(r"\s+", " ", OPERATIONS)
    for path, text in SOURCES.items():
        for line in re.findall(r'f?"(openmem: [^"]+)"', text) if path.name in ("notices.py", "retention.py") else ():
            for words in re.split(r"\{[^}]*\}|%[ds]|\(|\)", line):
                assert words.strip(" ;") in told, line


def test_the_version_is_the_same_everywhere() -> None:
    changes = (REPO / "CHANGELOG.md").read_text("utf-8")
    newest = re.findall(r"^## (\d\S*)", changes, re.MULTILINE)[0]
    assert newest == PROJECT["project"]["version"] == openmem_hook.__version__


# --- the slash command --------------------------------------------------------------------------------------


def test_the_slash_command_forces_a_trim_in_the_form_that_claude_code_sends() -> None:
    """Recorded from Claude Code: the record of the command is one block, the file's text the next."""
    record = "<command-message>smart-compact</command-message>\n<command-name>/smart-compact</command-name>"
    assert typed.classify(record) == "command"


def test_the_text_of_the_slash_command_is_no_command_itself_and_no_notice() -> None:
    _, front, text = (REPO / "deploy/commands/smart-compact.md").read_text("utf-8").split("---\n", 2)
    said = yaml.safe_load(front)
    assert said["description"]
    assert said["disable-model-invocation"] is True
    assert typed.classify(text) == "text"
    assert TRIM_COMMAND.match(text) is None


# --- the package --------------------------------------------------------------------------------------------


def test_importing_the_package_never_imports_the_gateway() -> None:
    look = (
        "import sys, openmem_hook; print(sorted(m for m in sys.modules if 'litellm' in m or m.startswith('openmem')))"
    )
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "['openmem_hook']"


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="handlers"):
        openmem_hook.handlers  # noqa: B018


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(path) for path, text in SOURCES.items() if text.strip() and not text.startswith('"""')]
    assert silent == []


def test_the_bound_on_the_gateway_leaves_out_the_compromised_release_and_has_no_upper_end() -> None:
    bound = next(line for line in PROJECT["project"]["dependencies"] if line.startswith("litellm"))
    assert bound == "litellm[proxy]>=1.108.7,!=1.107.0"


def test_ci_runs_make_test_and_two_clients_with_an_empty_home() -> None:
    script = (REPO / ".ci/run").read_text("utf-8")
    assert os.access(REPO / ".ci/run", os.X_OK)
    assert "set -euo pipefail" in script
    assert 'HOME="$(mktemp -d)"' in script
    assert script.rstrip().endswith('make test\nmake clients ARGS="--check --if-reachable codex claude-code-2.1.3"')
