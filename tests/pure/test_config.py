"""Settings: who wins, what is refused, what is ignored, and the limits that follow."""

from __future__ import annotations

import timeit
from pathlib import Path

import pytest

from openmem_hook.config import Base, IgnoredSetting, ResolvedSettings, SettingsError, check_model, load, resolve
from openmem_hook.limits import ModelFacts, derive_limits, family_of
from openmem_hook.settings import RULES, Settings

NO_ENV: dict[str, str] = {}


def base(file: object = None, **environ: str) -> Base:
    return load(file, environ)


def refusal(file: object = None, **environ: str) -> str:
    with pytest.raises(SettingsError) as refused:
        load(file, environ)
    return str(refused.value)


def ignored(resolved: ResolvedSettings) -> list[tuple[str, str]]:
    return [(fault.where, fault.key) for fault in resolved.ignored_settings]


# --- defaults and files ----------------------------------------------------------------------------------


def test_a_setting_that_nobody_gives_has_its_default() -> None:
    assert base(HOME="/home/ada").settings.model_dump() == {
        "enabled": True,
        "agents": {},
        "trim_at_tokens": None,
        "trim_to_fraction": 0.3,
        "chars_per_token": None,
        "compress_over_tokens": 4000,
        "max_body_bytes": 30_000_000,
        "max_media": 90,
        "standing_instruction": True,
        "ttl_days": 30,
        "deadline_s": 2.0,
        "tenant": "user",
        "state_dir": Path("/home/ada/.local/share/openmem/context"),
    }


def test_body_and_media_stay_below_what_the_provider_accepts() -> None:
    assert base().settings.max_body_bytes < 32_000_000
    assert base().settings.max_media < 100


@pytest.mark.parametrize(
    ("file", "environ", "folder"),
    [
        (None, {"OPENMEM_STATE_DIR": "/var/openmem"}, "/var/openmem/context"),
        (None, {"OPENMEM_STATE_DIR": "/var/openmem/"}, "/var/openmem/context"),
        (None, {"OPENMEM_STATE_DIR": "~/state", "HOME": "/h"}, "/h/state/context"),
        ({"state_dir": "/data/ctx"}, {}, "/data/ctx"),
        ({"state_dir": "~/ctx"}, {"HOME": "/h"}, "/h/ctx"),
        ({"state_dir": "/data/ctx"}, {"OPENMEM_STATE_DIR": "/var/openmem"}, "/var/openmem/context"),
        (None, {}, "~/.local/share/openmem/context"),
    ],
)
def test_the_state_folder_comes_from_environment_file_or_home(file, environ, folder) -> None:
    assert load(file, environ).settings.state_dir == Path(folder)


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="nothing"):
        Settings(nothing=1)  # type: ignore[call-arg]
    settings = base({"agents": {"codex": False}}).settings
    with pytest.raises(ValueError):
        settings.enabled = False  # type: ignore[misc]
    with pytest.raises(TypeError):
        settings.agents["codex"] = True  # type: ignore[index]


def test_a_null_in_the_file_says_nothing() -> None:
    assert base({"trim_to_fraction": None, "agents": None}).settings == base().settings


# --- what stops the start --------------------------------------------------------------------------------

NOT_WHOLE = ["abc", 0.0, 1.5, True, False, -1, "90000", [1], {}, float("nan"), float("inf"), 10**16]
NOT_NUMBER = ["abc", "0.5", True, False, -1, float("nan"), float("inf"), [1], {}]
NOT_SWITCH = ["true", 1, 0, "maybe", [], 1.0]

BAD_IN_FILE = {
    "enabled": NOT_SWITCH,
    "agents.claude-code": NOT_SWITCH,
    "agents.codex": NOT_SWITCH,
    "agents.opencode": NOT_SWITCH,
    "trim_at_tokens": [*NOT_WHOLE, 0, 999],
    "trim_to_fraction": [*NOT_NUMBER, 0, 0.04, 0.91, 1],
    "chars_per_token": [*NOT_NUMBER, 0, 0.4, 20.5],
    "compress_over_tokens": NOT_WHOLE,
    "max_body_bytes": [*NOT_WHOLE, 0, 99_999],
    "max_media": [*NOT_WHOLE, 0],
    "standing_instruction": NOT_SWITCH,
    "ttl_days": [*NOT_WHOLE, 40_000],
    "deadline_s": [*NOT_NUMBER, 0, 60.5],
    "tenant": ["users", "", "USER", 1, True],
    "state_dir": ["", 5, True, "a\x00b", "a\nb"],
}
BAD_IN_ENVIRONMENT = {
    "CONTEXT_PROXY_ENABLED": ["maybe", "2", "truee"],
    "CONTEXT_TRIM_AT_TOKENS": [
        "abc",
        "0",
        "-1",
        "1.5",
        "true",
        "999",
        "1e5",
        "100k",
        "1_000_000",
        "9" * 5000,
    ],
    "CONTEXT_TRIM_TO_FRACTION": ["abc", "0", "-1", "0.95", "nan", "true", "30%"],
    "CONTEXT_CHARS_PER_TOKEN": ["abc", "0", "-1", "21", "inf", "nan", "true"],
    "CONTEXT_COMPRESS_OVER_TOKENS": ["abc", "-1", "1.5", "true"],
    "CONTEXT_STANDING_INSTRUCTION": ["maybe", "2"],
    "CONTEXT_STORE_TTL_DAYS": ["abc", "-1", "1.5", "true", "40000"],
}


def nested(key: str, value: object) -> dict[str, object]:
    outer, dot, inner = key.partition(".")
    return {outer: {inner: value}} if dot else {outer: value}


def test_every_key_has_bad_values_and_every_variable_too() -> None:
    assert set(BAD_IN_FILE) == set(RULES)
    variables = {rule.variable for rule in RULES.values() if rule.variable}
    assert set(BAD_IN_ENVIRONMENT) == variables - {"OPENMEM_STATE_DIR"}


@pytest.mark.parametrize(("key", "value"), [(key, v) for key, values in BAD_IN_FILE.items() for v in values])
def test_a_wrong_value_in_the_file_stops_the_start(key: str, value: object) -> None:
    line = refusal(nested(key, value))
    assert line.startswith(f"openmem: callback_settings.openmem.{key} is ")
    assert RULES[key].domain in line
    assert "\n" not in line


@pytest.mark.parametrize(
    ("variable", "text"), [(name, text) for name, texts in BAD_IN_ENVIRONMENT.items() for text in texts]
)
def test_a_wrong_value_in_the_environment_stops_the_start(variable: str, text: str) -> None:
    line = refusal(None, **{variable: text})
    key, rule = next((key, rule) for key, rule in RULES.items() if rule.variable == variable)
    assert variable in line
    assert key in line
    assert rule.domain in line
    assert len(line) < 300


def test_the_line_reads_as_documented() -> None:
    assert refusal({"trim_at_tokens": "abc"}) == (
        "openmem: callback_settings.openmem.trim_at_tokens is 'abc': a whole number of at least 1000 is allowed"
    )


@pytest.mark.parametrize("value", ["x" * 5000, "a\nb\r\n" * 50, ["long"] * 500])
def test_a_long_or_many_lined_value_still_makes_one_short_line(value: object) -> None:
    line = refusal({"trim_at_tokens": value})
    assert "\n" not in line
    assert "\r" not in line
    assert len(line) < 300


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("trim_at_token", "trim_at_tokens"),
        ("Enabled", "enabled"),
        ("ttl_day", "ttl_days"),
        ("state-dir", "state_dir"),
    ],
)
def test_an_unknown_key_stops_the_start_and_names_the_nearest(key: str, nearest: str) -> None:
    line = refusal({key: 5})
    assert f"callback_settings.openmem.{key}" in line
    assert f"did you mean '{nearest}'?" in line
    assert all(known in line for known in RULES)


@pytest.mark.parametrize("key", ["recall", "zzz", True, 7, "a\nb", "x" * 9000])
def test_any_other_unknown_key_stops_the_start_too(key: object) -> None:
    line = refusal({key: 5})
    assert "no such setting" in line
    assert "\n" not in line
    assert len(line) < 700


def test_an_unknown_agent_stops_the_start() -> None:
    assert "did you mean 'agents.codex'?" in refusal({"agents": {"codx": True}})
    assert "agents is 5: a mapping of claude-code, codex, opencode" in refusal({"agents": 5})


@pytest.mark.parametrize("block", [[], "off", 5, True])
def test_a_block_that_is_no_mapping_stops_the_start(block: object) -> None:
    assert "a mapping of settings is allowed" in refusal(block)


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_variable_says_nothing(text: str) -> None:
    variables = {rule.variable: text for rule in RULES.values() if rule.variable}
    assert load({"trim_at_tokens": 5000}, variables).settings == base({"trim_at_tokens": 5000}).settings


def test_variables_of_others_are_not_our_business() -> None:
    assert base(CONTEXT_TRIM_AT="zzz", CONTEXT_WHATEVER="1").settings == base().settings


@pytest.mark.parametrize(
    ("variable", "text", "key", "value"),
    [
        ("CONTEXT_PROXY_ENABLED", "OFF", "enabled", False),
        ("CONTEXT_PROXY_ENABLED", " 1 ", "enabled", True),
        ("CONTEXT_TRIM_AT_TOKENS", "90000", "trim_at_tokens", 90_000),
        ("CONTEXT_TRIM_TO_FRACTION", ".5", "trim_to_fraction", 0.5),
        ("CONTEXT_CHARS_PER_TOKEN", "3", "chars_per_token", 3.0),
        ("CONTEXT_COMPRESS_OVER_TOKENS", "0", "compress_over_tokens", 0),
        ("CONTEXT_STANDING_INSTRUCTION", "no", "standing_instruction", False),
        ("CONTEXT_STORE_TTL_DAYS", "0", "ttl_days", 0),
    ],
)
def test_a_variable_sets_its_key_over_the_default(variable: str, text: str, key: str, value: object) -> None:
    assert getattr(base(**{variable: text}).settings, key) == value
    assert getattr(base().settings, key) != value or key == "enabled"


@pytest.mark.parametrize("key", ["ttl_days", "deadline_s", "tenant", "state_dir"])
def test_what_holds_for_the_whole_gateway_cannot_be_set_for_a_model(key: str) -> None:
    with pytest.raises(SettingsError, match=rf"'opus' model_info.openmem.{key} is .*whole gateway"):
        check_model("opus", {key: 5})


def test_a_models_block_is_checked_at_start() -> None:
    check_model("opus", None)
    check_model("opus", {"trim_at_tokens": 50_000, "agents": {"codex": False}})
    with pytest.raises(SettingsError, match=r"'opus' model_info\.openmem\.trim_at_tokens is 'abc'"):
        check_model("opus", {"trim_at_tokens": "abc"})
    with pytest.raises(SettingsError, match="did you mean 'max_media'"):
        check_model("opus", {"max_medai": 5})


# --- who wins --------------------------------------------------------------------------------------------

LEVELS = ["default", "file", "environment", "model", "team", "key", "header"]


def at_level(*levels: str) -> Settings:
    """Every named level says its own number."""
    value = {level: 10_000 * LEVELS.index(level) for level in levels}
    file = {"trim_at_tokens": value["file"]} if "file" in value else None
    environ = {"CONTEXT_TRIM_AT_TOKENS": str(value["environment"])} if "environment" in value else {}
    blocks = {level: {"trim_at_tokens": value[level]} if level in value else None for level in ("model", "team", "key")}
    header = f"trim_at_tokens={value['header']}" if "header" in value else None
    return resolve(load(file, environ), header=header, **blocks).settings


@pytest.mark.parametrize("winner", LEVELS[1:])
def test_each_level_beats_all_below_it(winner: str) -> None:
    below = LEVELS[1 : LEVELS.index(winner)]
    assert at_level(*below, winner).trim_at_tokens == 10_000 * LEVELS.index(winner)


@pytest.mark.parametrize("key", ["trim_to_fraction", "max_media", "standing_instruction"])
def test_levels_add_up_where_they_speak_of_different_keys(key: str) -> None:
    said = {"trim_to_fraction": 0.5, "max_media": 7, "standing_instruction": False}
    resolved = resolve(base({"trim_to_fraction": 0.5}), team={"max_media": 7}, key={"standing_instruction": False})
    assert getattr(resolved.settings, key) == said[key]


@pytest.mark.parametrize(
    ("file", "key", "header", "agent", "on"),
    [
        (None, None, None, "codex", True),
        ({"enabled": False}, None, None, "codex", False),
        ({"enabled": False, "agents": {"codex": True}}, None, None, "codex", True),
        ({"enabled": False, "agents": {"codex": True}}, None, None, "opencode", False),
        ({"agents": {"codex": True}}, {"enabled": False}, None, "codex", False),
        ({"agents": {"codex": False}}, None, "on", "codex", True),
        (None, {"agents": {"codex": False}}, None, "codex", False),
        (None, {"agents": {"codex": False}}, None, "", True),
        ({"agents": {"codex": False}}, {"agents": {"opencode": False}}, None, "codex", False),
        (None, None, "agents.codex=off", "codex", False),
    ],
)
def test_an_agent_follows_what_the_highest_level_says_of_it(file, key, header, agent, on) -> None:
    assert resolve(base(file), key=key, header=header).settings.enabled_for(agent) is on


# --- what is ignored at run time -------------------------------------------------------------------------

SECRET = "sk-canary-0123456789"


@pytest.mark.parametrize("where", ["key", "team", "model"])
@pytest.mark.parametrize(
    ("block", "faults"),
    [
        ({"trim_at_tokens": "abc", "max_media": 5}, ["trim_at_tokens"]),
        ({"trim_at_tokens": 0, "max_media": 5}, ["trim_at_tokens"]),
        ({"trim_at_tokens": 1.5, "max_media": 5}, ["trim_at_tokens"]),
        ({"trim_at_tokens": True, "max_media": 5}, ["trim_at_tokens"]),
        ({"nothing": 1, "max_media": 5}, ["nothing"]),
        ({"tenant": "team", "max_media": 5}, ["tenant"]),
        ({"state_dir": "/etc", "ttl_days": 0, "max_media": 5}, ["state_dir", "ttl_days"]),
        ({"agents": {"cod": True}, "max_media": 5}, ["agents.cod"]),
        ({"max_media": 5}, []),
    ],
)
def test_a_wrong_key_at_run_time_is_ignored_and_the_rest_counts(where, block, faults) -> None:
    resolved = resolve(base({"trim_at_tokens": 7000}), **{where: block})
    assert ignored(resolved) == [(where, fault) for fault in faults]
    assert resolved.settings == base({"trim_at_tokens": 7000, "max_media": 5}).settings


@pytest.mark.parametrize("block", ["off", 5, [1], True, [("enabled", False)]])
def test_a_block_of_the_wrong_kind_is_ignored(block: object) -> None:
    resolved = resolve(base(), team=block)
    assert resolved.settings == base().settings
    assert ignored(resolved) == [("team", "")]
    assert resolved.ignored_settings[0].reason.startswith(type(block).__name__)


@pytest.mark.parametrize(
    "call",
    [
        {"key": {"trim_at_tokens": SECRET}},
        {"key": {"agents": SECRET}},
        {"team": SECRET},
        {"key": {SECRET: 1}},
        {"header": SECRET},
        {"header": f"{SECRET}=5"},
        {"header": f"trim_at_tokens={SECRET}"},
    ],
)
def test_what_is_ignored_never_shows_the_value(call) -> None:
    resolved = resolve(base(), **call)
    assert len(resolved.ignored_settings) == 1
    assert "canary" not in repr(resolved.ignored_settings)


def test_what_is_ignored_says_what_is_allowed() -> None:
    resolved = resolve(base(), key={"trim_at_tokens": "abc"})
    assert resolved.ignored_settings == (
        IgnoredSetting("key", "trim_at_tokens", "str found: a whole number of at least 1000 is allowed"),
    )


@pytest.mark.parametrize(
    ("header", "raw", "changed", "faults"),
    [
        (None, False, {}, []),
        ("", False, {}, []),
        (" , ,", False, {}, []),
        ("raw", True, {}, []),
        ("RAW", True, {}, []),
        ("off", False, {"enabled": False}, []),
        ("off, on", False, {"enabled": True}, []),
        ("raw,off", True, {"enabled": False}, []),
        ("trim_at_tokens=5000", False, {"trim_at_tokens": 5000}, []),
        (" trim_at_tokens = 5000 , max_media=3", False, {"trim_at_tokens": 5000, "max_media": 3}, []),
        ("max_media=3,max_media=4", False, {"max_media": 4}, []),
        ("standing_instruction=no", False, {"standing_instruction": False}, []),
        ("chars_per_token=3.5", False, {"chars_per_token": 3.5}, []),
        ("trim_at_tokens=abc,max_media=3", False, {"max_media": 3}, ["trim_at_tokens"]),
        ("trim_at_tokens=0", False, {}, ["trim_at_tokens"]),
        ("trim_at_tokens=-1", False, {}, ["trim_at_tokens"]),
        ("trim_at_tokens=1.5", False, {}, ["trim_at_tokens"]),
        ("trim_at_tokens=true", False, {}, ["trim_at_tokens"]),
        ("trim_at_tokens=", False, {}, ["trim_at_tokens"]),
        ("trim_at_tokens", False, {}, ["trim_at_tokens"]),
        ("tenant=team", False, {}, ["tenant"]),
        ("state_dir=/etc", False, {}, ["state_dir"]),
        ("raw=1", False, {}, ["raw"]),
        ("nothing=1,raw", True, {}, ["nothing"]),
        ("=", False, {}, [""]),
    ],
)
def test_the_header_is_read_word_by_word(header, raw, changed, faults) -> None:
    resolved = resolve(base(), header=header)
    assert resolved.raw is raw
    assert resolved.settings == base().settings.model_copy(update=changed)
    assert ignored(resolved) == [("header", fault) for fault in faults]


def test_a_huge_header_is_cut_off() -> None:
    resolved = resolve(base(), header="x," * 100_000)
    assert 0 < len(resolved.ignored_settings) <= 32
    assert resolve(base(), header="," * 100_000 + "off").settings.enabled
    assert resolve(base(), header=" " * 100_000 + "off").settings.enabled


@pytest.mark.parametrize("strange", [10**30, {1, 2}, object(), "\ud800", {("a", 1): 2}])
def test_content_that_is_no_json_is_ignored_like_any_other(strange: object) -> None:
    resolved = resolve(base(), key={"trim_at_tokens": strange, "max_media": 5})
    assert resolved.settings.max_media == 5
    assert resolved.settings.trim_at_tokens is None
    assert len(resolved.ignored_settings) == 1


def test_a_changed_block_is_seen_although_answers_are_remembered() -> None:
    gateway, block = base(), {"max_media": 5}
    assert resolve(gateway, key=block).settings.max_media == 5
    assert resolve(gateway, key=block) is resolve(gateway, key={"max_media": 5})
    block["max_media"] = 6
    assert resolve(gateway, key=block).settings.max_media == 6
    assert resolve(gateway, team=block) != resolve(gateway, team={"max_media": 7})
    assert resolve(base({"max_media": 9})).settings.max_media == 9


def test_a_true_is_not_remembered_as_a_one() -> None:
    gateway = base()
    assert resolve(gateway, key={"max_media": 1}).ignored_settings == ()
    assert ignored(resolve(gateway, key={"max_media": True})) == [("key", "max_media")]


def test_resolving_costs_less_than_50_microseconds() -> None:
    gateway, key, team = base({"trim_at_tokens": 90_000}), {"max_media": 5}, {"agents": {"codex": False}}
    seconds = min(timeit.repeat(lambda: resolve(gateway, header="on", key=key, team=team), number=200, repeat=5))
    assert seconds / 200 < 50e-6


# --- limits ----------------------------------------------------------------------------------------------


def facts(name: str = "claude-sonnet-4-5", window: int | None = 200_000, **more: int) -> ModelFacts:
    return ModelFacts(name, family_of(name), window, **more)


@pytest.mark.parametrize(
    ("model", "setting", "trim_at", "hard"),
    [
        (facts(), None, 125_000, 180_000),
        (facts("claude-haiku-4-5"), None, 95_000, 180_000),
        (facts("bedrock/us.anthropic.claude-haiku-4-5-20251001-v1:0"), None, 95_000, 180_000),
        (facts("claude-haiku-x", None), None, 95_000, None),
        (facts("unknown-local", None), None, 125_000, None),
        (facts("unknown-local", None), 300_000, 300_000, None),
        (facts(), 5000, 5000, 180_000),
        (facts(), 190_000, 180_000, 180_000),
        (facts("claude-opus-4-6", 1_000_000), None, 125_000, 980_000),
        (facts("claude-opus-4-6", 1_000_000), 700_000, 700_000, 980_000),
        (facts("local", 64_000), None, 48_000, 48_000),
        (facts("local", 8192), None, 6144, 6144),
        (facts("local", 200_000, max_output=4096), 199_000, 195_904, 195_904),
        (facts("local", 200_000, max_output=64_000), None, 125_000, 180_000),
        (facts("local", 40_000, max_output=64_000), None, 30_000, 30_000),
        (facts("grok", 500_000, price_step=100_000), None, 100_000, 480_000),
        (facts("grok", 500_000, price_step=100_000), 300_000, 300_000, 480_000),
        (facts("gpt-5.4", 1_050_000, price_step=272_000), None, 125_000, 1_030_000),
        (facts("claude-haiku-4-5", 200_000, price_step=90_000), None, 90_000, 180_000),
        (facts("tiny", 1), None, 1, 1),
    ],
)
def test_limits_follow_from_setting_family_price_and_window(model, setting, trim_at, hard) -> None:
    found = derive_limits(Settings(trim_at_tokens=setting), model)
    assert (found.trim_at, found.hard) == (trim_at, hard)


def test_a_family_decided_upstream_beats_the_words_in_a_name() -> None:
    sonnet = ModelFacts("my-haiku-alias", "claude-sonnet", 200_000)
    assert derive_limits(Settings(), sonnet).trim_at == 125_000
    assert derive_limits(Settings(), ModelFacts("my-haiku-alias")).trim_at == 95_000


def test_limits_carry_the_other_numbers_on() -> None:
    found = derive_limits(Settings(max_body_bytes=200_000, max_media=3, trim_to_fraction=0.5), facts())
    assert (found.max_body_bytes, found.max_media, found.trim_to_fraction) == (200_000, 3, 0.5)
