"""Fixtures that every test file may use: a hook over a fresh private store, and a key to call it with.

The gateway's library takes seconds to import. Nothing here imports it before a test asks for a hook, so that
`make test-fast` runs without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from openmem_hook.gateway.hook import ContextHook

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # litellm asks the network for prices otherwise
pytest.register_assert_rewrite("tests.harness.gateway_process", "tests.harness.tracked_session", "clients.session")

INSTALLED_CLIENTS = "test_installed_clients.py"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Installed agents run on demand only: `-m clients`."""
    return True if collection_path.name == INSTALLED_CLIENTS and "clients" not in config.option.markexpr else None


def pytest_make_parametrize_id(val: object) -> str | None:
    """A test is named by the beginning of a long text: some are of a megabyte."""
    return f"{ascii(val[:60])[1:-1]}..." if isinstance(val, str) and len(val) > 100 else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that run the real gateway share it by file, those of an installed agent by agent: one worker takes them
    all."""
    for item in items:
        if item.get_closest_marker("e2e"):
            item.add_marker(pytest.mark.xdist_group(item.nodeid.partition("::")[0]))
        elif item.get_closest_marker("clients") and isinstance(item, pytest.Function):
            client: Any = item.callspec.params["client"]
            item.add_marker(pytest.mark.xdist_group(client.name))


CALL_TYPES = {"anthropic": "anthropic_messages", "chat": "acompletion", "responses": "aresponses"}


def make_key(user_id: str | None = "user-1", token: str = "a" * 64, **more: Any) -> SimpleNamespace:
    """What the gateway's authentication hands a hook, for an ordinary virtual key."""
    told = {"team_id": None, "metadata": {}, "team_metadata": None, "api_key": token, "key_alias": None, **more}
    return SimpleNamespace(user_id=user_id, token=token, **told)


@pytest.fixture
def key() -> SimpleNamespace:
    return make_key()


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def new_hook(state_dir: Path) -> Iterator[Callable[..., ContextHook]]:
    """Makes hooks over one store, as workers and restarts do: `new_hook(trim_at_tokens=20_000)`."""
    from openmem_hook import config
    from openmem_hook.compactor import Compactor
    from openmem_hook.gateway.hook import ContextHook
    from openmem_hook.gateway.notices import Notices

    made: list[ContextHook] = []

    def build(**settings: Any) -> ContextHook:
        patient = {"deadline_s": 30.0, **settings}  # a busy machine is no reason to fail
        base = config.load(patient, {"OPENMEM_STATE_DIR": str(state_dir), "HOME": str(state_dir)})
        hook = ContextHook(base, Compactor(state_dir / "context"), Notices())
        made.append(hook)
        return hook

    yield build
    for hook in made:
        hook.compactor.close()
