"""What the gateway knows of a model: names, windows, price steps, fallbacks."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from openmem_hook.gateway import models
from openmem_hook.gateway.models import ModelQuery, facts_for, read
from openmem_hook.limits import ModelFacts, derive_limits
from openmem_hook.settings import Settings

COSTS: dict[str, Any] = {
    "claude-sonnet-4-5": {"max_input_tokens": 200_000, "max_output_tokens": 64_000, "max_tokens": 64_000},
    "claude-haiku-4-5": {"max_input_tokens": 200_000, "max_output_tokens": 64_000},
    "claude-opus-4-6": {"max_input_tokens": 1_000_000, "max_output_tokens": 128_000},
    "us.anthropic.claude-sonnet-4-5-20250929-v1:0": {
        "max_input_tokens": 200_000,
        "max_output_tokens": 64_000,
        "input_cost_per_token_above_200k_tokens": 6.6e-06,
    },
    "gpt-5.4": {
        "max_input_tokens": 1_050_000,
        "max_output_tokens": 128_000,
        "input_cost_per_token_above_272k_tokens": 5e-06,
        "input_cost_per_token_above_128k_tokens_batches": 1e-06,
        "output_cost_per_token_above_100k_tokens": 1e-06,
    },
    "azure/gpt-5.4": {"max_input_tokens": 400_000, "max_output_tokens": 128_000},
    "step-less": {"max_input_tokens": 100_000, "input_cost_per_token_above_50k_tokens": None},
    "two-steps": {"input_cost_per_token_above_200k_tokens": 2, "input_cost_per_token_above_128k_tokens": 1},
    "llama3": {"max_input_tokens": 128_000},
    "ollama/llama3": {"max_input_tokens": 8192, "max_tokens": 8192},
    "old": {"max_tokens": 4096},
    "sample_spec": {"max_input_tokens": "max input tokens, if the provider specifies it"},
    "broken": None,
}


def deployment(model: str, **info: object) -> dict[str, Any]:
    return {"model_name": "group", "litellm_params": {"model": model}, "model_info": {"id": "1", **info}}


class Router:
    """The four attributes that are read, and a count of the look-ups."""

    def __init__(self, groups: dict[str, list[Any]], fallbacks: object = None, **teams: list[Any]) -> None:
        self.groups, self.teams, self.fallbacks, self.look_ups = groups, teams, fallbacks, 0
        self.model_list = [row for rows in groups.values() for row in rows]
        self.model_group_alias: dict[str, str] = {}

    def get_model_list(self, model_name: str | None = None, team_id: str | None = None) -> list[Any]:
        self.look_ups += 1
        name = self.model_group_alias.get(model_name or "", model_name or "")
        return self.groups.get(name) or self.teams.get(team_id or "", [])


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch):
    """Puts a router and the cost map where the gateway has them."""

    def loaded(router: object, costs: dict[str, Any] = COSTS) -> Any:
        proxy, litellm = ModuleType("litellm.proxy.proxy_server"), ModuleType("litellm")
        proxy.llm_router, litellm.model_cost = router, costs  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "litellm.proxy.proxy_server", proxy)
        monkeypatch.setitem(sys.modules, "litellm", litellm)
        return router

    monkeypatch.setattr(models, "_MEMORY", models._Memory())
    return loaded


# --- names -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "window", "family"),
    [
        ("claude-sonnet-4-5", 200_000, "claude-sonnet"),
        ("anthropic/claude-sonnet-4-5", 200_000, "claude-sonnet"),
        ("claude-sonnet-4-5-20250929", 200_000, "claude-sonnet"),
        ("vertex_ai/claude-sonnet-4-5@20250929", 200_000, "claude-sonnet"),
        ("anthropic/claude-sonnet-4-5[1m]", 1_000_000, "claude-sonnet"),
        ("claude-sonnet-4-5[1M]", 1_000_000, "claude-sonnet"),
        ("litellm_proxy/anthropic/claude-opus-4-6", 1_000_000, "claude-opus"),
        ("bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0", 200_000, "claude-sonnet"),
        ("bedrock/us-east-1/anthropic.claude-haiku-4-5-20251001-v1:0", 200_000, "claude-haiku"),
        ("bedrock/converse/global.anthropic.claude-opus-4-6-v1", 1_000_000, "claude-opus"),
        ("bedrock/arn:aws:bedrock:us-east-1:1:application-inference-profile/x", None, ""),
        ("gpt-5.4", 1_050_000, "gpt"),
        ("gpt-5.4-2026-03-05", 1_050_000, "gpt"),
        ("azure/gpt-5.4", 400_000, "gpt"),
        ("openai/gpt-5.4", 1_050_000, "gpt"),
        ("ollama/llama3", 8192, "llama"),
        ("ollama_chat/llama3", None, "llama"),
        ("hosted_vllm/gpt-5.4", None, "gpt"),
        ("claude-haiku-x", None, "claude-haiku"),
        ("unknown-local-8k", None, ""),
        ("old", None, ""),
        ("sample_spec", None, ""),
        ("broken", None, ""),
        ("a/b/c/d/e", None, ""),
        ("/", None, ""),
        ("[1m]", 1_000_000, ""),
        ("", None, ""),
    ],
)
def test_a_name_is_found_however_it_is_spelled(name: str, window: int | None, family: str) -> None:
    found = read(ModelQuery(name), None, COSTS)
    assert (found.window, found.family, found.name) == (window, family, name)


@pytest.mark.parametrize(
    ("model", "data", "name"),
    [
        (None, {"model": "gpt-5.4"}, "gpt-5.4"),
        ("gpt-5.4", {"model": "other"}, "gpt-5.4"),
        (None, {}, ""),
        (None, {"model": None}, ""),
        (None, {"model": 5}, ""),
        ([], {}, ""),
        ([None, "gpt-5.4"], {}, "gpt-5.4"),
        ({"a": 1}, {}, ""),
    ],
)
def test_a_missing_or_strange_model_is_unknown_and_no_error(gateway, model, data, name) -> None:
    gateway(None)
    assert facts_for(model, data).name == name


def test_without_a_loaded_gateway_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("litellm", "litellm.proxy.proxy_server"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert facts_for("gpt-5.4", {}) == ModelFacts("gpt-5.4", "gpt")
    assert "litellm" not in sys.modules


# --- groups and what the operator wrote ------------------------------------------------------------------


def test_an_alias_is_judged_by_the_model_behind_it(gateway) -> None:
    router = gateway(Router({"my-haiku-alias": [deployment("anthropic/claude-sonnet-4-5")]}))
    router.model_group_alias["short"] = "my-haiku-alias"
    for name in ("my-haiku-alias", "short"):
        found = facts_for(name, {})
        assert (found.name, found.family) == ("anthropic/claude-sonnet-4-5", "claude-sonnet")
        assert derive_limits(Settings(), found).trim_at == 125_000


@pytest.mark.parametrize(
    ("name", "info", "window"),
    [
        ("openai/local", {"max_input_tokens": 8192}, 8192),
        ("openai/local", {"max_input_tokens": "8192"}, 8192),
        ("openai/local", {"max_input_tokens": 8192.0}, 8192),
        ("openai/local", {"max_tokens": 8192}, None),
        ("openai/local", {}, None),
        ("openai/local", {"base_model": "gpt-5.4"}, 1_050_000),
        ("claude-sonnet-4-5", {"max_input_tokens": 64_000}, 64_000),
        ("claude-sonnet-4-5", {"max_input_tokens": 500_000}, 500_000),
        ("claude-sonnet-4-5[1m]", {"max_input_tokens": 64_000}, 64_000),
        *(("claude-sonnet-4-5", {"max_input_tokens": bad}, 200_000) for bad in (0, -1, True, "x", None, [])),
    ],
)
def test_what_the_operator_wrote_beside_a_deployment_counts_first(gateway, name, info, window) -> None:
    gateway(Router({"group": [deployment(name, **info)]}))
    assert facts_for("group", {}).window == window


def test_a_group_of_several_is_bound_by_its_smallest(gateway) -> None:
    rows = [
        deployment("claude-opus-4-6", openmem={}),
        deployment("claude-haiku-4-5", openmem={"max_media": 5}),
    ]
    gateway(Router({"group": [*rows, deployment("who-knows")]}))
    found = facts_for("group", {})
    assert (found.name, found.family, found.window) == ("claude-opus-4-6", "claude-haiku", 200_000)
    assert found.max_output is None
    assert found.openmem == {"max_media": 5}


@pytest.mark.parametrize(
    ("info", "output"),
    [
        ({}, 64_000),
        ({"max_output_tokens": 4096}, 4096),
        ({"max_tokens": 8192}, 8192),
        ({"max_tokens": 0}, 64_000),
    ],
)
def test_the_longest_answer_is_the_operators_or_the_cost_maps(gateway, info, output) -> None:
    gateway(Router({"group": [deployment("claude-sonnet-4-5", **info)]}))
    assert facts_for("group", {}).max_output == output


@pytest.mark.parametrize(
    ("model", "info", "step"),
    [
        ("gpt-5.4", {}, 272_000),
        ("bedrock/us.anthropic.claude-sonnet-4-5-20250929-v1:0", {}, 200_000),
        ("two-steps", {}, 128_000),
        ("step-less", {}, None),
        ("claude-opus-4-6", {}, None),
        ("openai/local", {"input_cost_per_token_above_32k_tokens": 1e-6}, 32_000),
    ],
)
def test_a_price_step_is_read_from_the_prices_name(gateway, model, info, step) -> None:
    gateway(Router({"group": [deployment(model, **info)]}))
    assert facts_for("group", {}).price_step == step


def test_a_price_step_may_stand_with_the_call_parameters(gateway) -> None:
    row = deployment("openai/local")
    row["litellm_params"]["input_cost_per_token_above_64k_tokens"] = 1e-6
    gateway(Router({"group": [row]}))
    assert facts_for("group", {}).price_step == 64_000


@pytest.mark.parametrize("block", [{"trim_at_tokens": 50_000}, {}])
def test_the_models_own_settings_come_along(gateway, block) -> None:
    gateway(Router({"group": [deployment("gpt-5.4", openmem=block)]}))
    assert facts_for("group", {}).openmem == block


@pytest.mark.parametrize("holder", ["metadata", "litellm_metadata"])
def test_a_teams_own_model_is_found_through_the_authenticated_team(gateway, holder) -> None:
    gateway(Router({}, team_a=[deployment("openai/a", max_input_tokens=1111)]))
    assert facts_for("ours", {holder: {"user_api_key_team_id": "team_a"}}).window == 1111
    assert facts_for("ours", {holder: {"user_api_key_team_id": "team_b"}}).window is None
    assert facts_for("ours", {"user_api_key_team_id": "team_a"}).window is None


@pytest.mark.parametrize(
    ("model", "data", "window"),
    [
        ("claude-sonnet-4-5", {"anthropic_beta": ["context-1m-2025-08-07"]}, 1_000_000),
        ("claude-haiku-4-5", {"anthropic_beta": ["context-1m-2025-08-07"]}, 200_000),
        ("azure/gpt-5.4", {"anthropic_beta": ["context-1m-2025-08-07"]}, 400_000),
        ("claude-sonnet-4-5", {"anthropic_beta": ["interleaved-thinking-2025-05-14"]}, 200_000),
        (
            "claude-sonnet-4-5",
            {"proxy_server_request": {"headers": {"anthropic-beta": "a,context-1m-2025-08-07"}}},
            1_000_000,
        ),
        ("claude-sonnet-4-5", {"proxy_server_request": {"headers": {}}}, 200_000),
    ],
)
def test_the_beta_for_a_million_tokens_widens_a_claude_window(gateway, model, data, window) -> None:
    gateway(None)
    assert facts_for(model, data).window == window


# --- fallbacks -------------------------------------------------------------------------------------------


def with_small(fallbacks: object) -> Router:
    small = {"small": [deployment("openai/small", max_input_tokens=64_000)]}
    tiny = {"tiny": [deployment("openai/tiny", max_input_tokens=16_000)]}
    big = {"big": [deployment("claude-sonnet-4-5")], "anthropic/big": [deployment("claude-sonnet-4-5")]}
    return Router(big | small | tiny, fallbacks)


@pytest.mark.parametrize(
    ("fallbacks", "data", "window"),
    [
        (None, {}, 200_000),
        ([], {}, 200_000),
        ([{"big": ["small"]}], {}, 64_000),
        ([{"big": ["small", "tiny"]}], {}, 16_000),
        ([{"big": ["small"]}, {"small": ["tiny"]}], {}, 16_000),
        ([{"big": ["small"]}, {"small": ["big"]}], {}, 64_000),
        ([{"other": ["tiny"]}], {}, 200_000),
        ([{"*": ["small"]}], {}, 64_000),
        ([{"*": ["tiny"]}, {"big": ["small"]}, {"small": ["big"]}], {}, 64_000),
        ([{"*": ["tiny"]}, {"big": ["small"]}], {}, 16_000),
        ([{"big": ["unheard-of"]}, {"unheard-of": ["small"]}], {}, 64_000),
        ([{"big": ["small"]}], {"disable_fallbacks": True}, 200_000),
        (None, {"fallbacks": ["small"]}, 64_000),
        (None, {"fallbacks": [{"model": "small", "api_key": "x"}]}, 64_000),
        (None, {"fallbacks": [{"big": ["tiny"]}]}, 16_000),
        (None, {"router_settings_override": {"fallbacks": [{"big": ["small"]}]}}, 64_000),
        ([{"big": ["tiny"]}], {"fallbacks": ["small"]}, 64_000),
        (None, {"fallbacks": "small"}, 64_000),
        (None, {"fallbacks": 5}, 200_000),
        (None, {"fallbacks": [None, 5, {}, {"big": None}, {"big": 5}]}, 200_000),
        ("small", {}, 64_000),
        (7, {}, 200_000),
    ],
)
def test_the_smallest_window_among_known_fallbacks_bounds_the_request(gateway, fallbacks, data, window) -> None:
    gateway(with_small(fallbacks))
    found = facts_for("big", data)
    assert (found.window, found.name) == (window, "claude-sonnet-4-5")


def test_fallbacks_in_a_circle_are_each_asked_once(gateway) -> None:
    router = gateway(with_small([{"big": ["small"]}, {"small": ["big", "tiny"]}, {"tiny": ["small", "tiny"]}]))
    assert facts_for("big", {}).window == 16_000
    assert router.look_ups == 3


def test_a_provider_prefix_does_not_hide_a_fallback(gateway) -> None:
    gateway(with_small([{"big": ["small"]}]))
    assert facts_for("anthropic/big", {}).window == 64_000


def test_a_list_of_models_is_one_with_fallbacks(gateway) -> None:
    gateway(with_small(None))
    assert facts_for(["big", "small"], {}).window == 64_000
    assert facts_for(["big"], {}).window == 200_000


def test_a_fallback_lends_neither_family_nor_settings_nor_price(gateway) -> None:
    groups = {
        "big": [deployment("claude-opus-4-6")],
        "small": [deployment("claude-haiku-4-5", openmem={"max_media": 1}, max_output_tokens=5)],
    }
    gateway(Router(groups, [{"big": ["small"]}]))
    found = facts_for("big", {})
    assert (found.family, found.openmem, found.max_output, found.window) == (
        "claude-opus",
        {},
        128_000,
        200_000,
    )


# --- routers of other versions, and remembering ----------------------------------------------------------


class Explodes:
    model_list = ()
    fallbacks = None

    def __init__(self, error: Exception) -> None:
        self.error = error

    def get_model_list(self, **_: object) -> list[Any]:
        raise self.error


@pytest.mark.parametrize("error", [KeyError("x"), ValueError("x"), TypeError("x"), AttributeError("x")])
def test_a_router_that_fails_leaves_the_name_itself(gateway, error) -> None:
    gateway(Explodes(error))
    assert facts_for("gpt-5.4", {}).window == 1_050_000


def test_the_registry_of_newer_versions_is_asked_first(gateway) -> None:
    router = Router({"group": [deployment("gpt-5.4")]})
    row = SimpleNamespace(
        litellm_params=SimpleNamespace(model_dump=lambda **_: {"model": "claude-opus-4-6"}),
        model_info=SimpleNamespace(model_dump=lambda **_: {"max_input_tokens": 777}),
    )
    router.registry = lambda: SimpleNamespace(deployments=lambda name: [row] if name == "group" else [])  # type: ignore[attr-defined]
    gateway(router)
    assert facts_for("group", {}).name == "claude-opus-4-6"
    assert facts_for("group", {}).window == 777


@pytest.mark.parametrize("row", [{}, None, 5, {"litellm_params": None, "model_info": []}, {"litellm_params": {}}])
def test_a_broken_deployment_counts_as_the_name_itself(gateway, row) -> None:
    gateway(Router({"gpt-5.4": [row]}))
    assert facts_for("gpt-5.4", {}).window == 1_050_000


def test_a_second_look_up_asks_nobody(gateway) -> None:
    router = gateway(Router({"group": [deployment("gpt-5.4")]}))
    for _ in range(3):
        facts_for("group", {})
        facts_for("unknown-local-8k", {"messages": []})
    assert router.look_ups == 2


def added(router: Router) -> None:
    router.groups["group"].append(deployment("openai/small", max_input_tokens=5000))
    router.model_list.append(router.groups["group"][-1])


def replaced(router: Router) -> None:
    router.groups["group"][:] = [deployment("openai/small", max_input_tokens=5000)]
    router.model_list[:] = router.groups["group"]


def given_a_fallback(router: Router) -> None:
    router.groups["small"] = [deployment("openai/small", max_input_tokens=5000)]
    router.fallbacks = [{"group": ["small"]}]


def aliased(router: Router) -> None:
    router.groups["small"] = [deployment("openai/small", max_input_tokens=5000)]
    router.model_group_alias["group"] = "small"


@pytest.mark.parametrize("change", [added, replaced, given_a_fallback, aliased])
def test_a_change_of_the_routers_lists_is_seen(gateway, change) -> None:
    router = gateway(Router({"group": [deployment("gpt-5.4")]}))
    assert facts_for("group", {}).window == 1_050_000
    change(router)
    assert facts_for("group", {}).window == 5000


def test_a_new_router_and_a_new_cost_map_are_seen(gateway) -> None:
    gateway(Router({}))
    assert facts_for("fresh", {}).window is None
    gateway(Router({}), COSTS | {"fresh": {"max_input_tokens": 9000}})
    assert facts_for("fresh", {}).window == 9000
    gateway(Router({"fresh": [deployment("gpt-5.4")]}), COSTS)
    assert facts_for("fresh", {}).window == 1_050_000


def test_a_reloaded_cost_map_of_the_same_length_is_seen(gateway) -> None:
    router = Router({})
    gateway(router, {"fresh": {"max_input_tokens": 9000}})
    assert facts_for("fresh", {}).window == 9000
    gateway(router, {"fresh": {"max_input_tokens": 7000}})
    assert facts_for("fresh", {}).window == 7000


def test_invented_names_do_not_fill_the_memory(gateway) -> None:
    gateway(None)
    for number in range(2000):
        facts_for(f"invented-{number}", {})
    assert len(models._MEMORY.facts) <= 512


# --- the real router -------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_litellms_own_router_and_cost_map_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")
    import litellm

    def row(name: str, model: str, **info: object) -> dict[str, Any]:
        return {"model_name": name, "litellm_params": {"model": model, "api_key": "x"}, "model_info": info}

    router = litellm.Router(
        model_list=[
            row("my-haiku-alias", "anthropic/claude-sonnet-4-5", openmem={"trim_at_tokens": 50_000}),
            row("local", "openai/local", max_input_tokens=8192),
            row("anthropic/*", "anthropic/*"),
        ],
        model_group_alias={"short": "my-haiku-alias", "hidden": {"model": "local", "hidden": True}},
        fallbacks=[{"anthropic/claude-opus-4-6": ["my-haiku-alias"]}],
    )

    def found(name: str) -> tuple[str, int | None]:
        facts = read(ModelQuery(name), router, litellm.model_cost)
        return facts.name, facts.window

    sonnet = ("anthropic/claude-sonnet-4-5", 200_000)
    assert found("my-haiku-alias") == found("short") == sonnet
    assert found("local") == found("hidden") == ("openai/local", 8192)
    assert found("anthropic/claude-haiku-4-5") == ("anthropic/claude-haiku-4-5", 200_000)
    assert found("anthropic/claude-opus-4-6") == ("anthropic/claude-opus-4-6", 200_000)
    assert found("anthropic/claude-sonnet-4-5[1m]")[1] == 1_000_000
    assert found("nowhere") == ("nowhere", None)
    assert read(ModelQuery("short"), router, litellm.model_cost).openmem == {"trim_at_tokens": 50_000}
    assert read(ModelQuery("gemini/gemini-2.5-pro"), None, litellm.model_cost).price_step == 200_000
