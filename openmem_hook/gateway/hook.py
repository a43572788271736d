"""The gateway's callback: hand a request over, hand a response over, and never stand in the way.

Everything is decided elsewhere. The one broad `except` of this package is here: whatever goes wrong, the next
tactic is tried, and the last one is the client's own body.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import litellm
from litellm.integrations.custom_logger import CustomLogger

from openmem_hook import config
from openmem_hook.compactor import Compactor, Outcome
from openmem_hook.gateway import startup
from openmem_hook.gateway.notices import LOG, Notices
from openmem_hook.gateway.request import proxy_module, read_request
from openmem_hook.gateway.usage import reported_usage
from openmem_hook.settings import Owner
from openmem_hook.tools import ToolRunner


class ContextHook(CustomLogger):  # type: ignore[misc]  # the gateway ships no types
    """Pre-call and success hook. LiteLLM looks for the hooks on the registered class itself."""

    def __init__(self, base: config.Base, compactor: Compactor, notices: Notices) -> None:
        super().__init__()
        self.base = base
        self.compactor = compactor
        self.notices = notices
        compactor.store.pool.on_catalog_error = notices.report_catalog_failure

    async def async_pre_call_hook(
        self,
        user_api_key_dict: Any,
        cache: Any,  # noqa: ARG002
        data: Any,
        call_type: Any,
        **later: Any,  # noqa: ARG002 - what later versions of the gateway may add
    ) -> Any:
        for tactic, report in (
            (self._compact, self.notices.report_compaction_failure),
            (self._replay, self.notices.report_replay_failure),
        ):
            try:
                return await tactic(user_api_key_dict, data, str(getattr(call_type, "value", call_type)))
            except Exception as error:  # noqa: BLE001 - fail open, whatever it is
                report(error)
        return data

    async def async_log_success_event(
        self,
        kwargs: Any,
        response_obj: Any,
        start_time: Any,  # noqa: ARG002
        end_time: Any,  # noqa: ARG002
        **later: Any,  # noqa: ARG002
    ) -> None:
        for record in (self._record_usage, self._record_events):
            try:
                await record(kwargs if isinstance(kwargs, Mapping) else {}, response_obj)
            except Exception as error:  # noqa: BLE001 - the response is long with the client
                self.notices.report_response_failure(error)

    async def _compact(self, key: Any, data: Any, call_type: str) -> Any:
        request = read_request(self.base, self.notices, key, data, call_type)
        return data if request is None else _body(data, await self.compactor.compact_request(request))

    async def _replay(self, key: Any, data: Any, call_type: str) -> Any:
        request = read_request(self.base, self.notices, key, data, call_type)
        return data if request is None else _body(data, await self.compactor.replay_request(request))

    async def _record_usage(self, kwargs: Mapping[str, Any], response: Any) -> None:
        call_id = kwargs.get("litellm_call_id")
        if call_id is None and isinstance(kwargs.get("litellm_params"), Mapping):
            call_id = kwargs["litellm_params"].get("litellm_call_id")
        if not isinstance(call_id, str):
            call_id = None
        self.notices.check_call(call_id, str(kwargs.get("call_type")))
        if call_id is not None:
            usage = await reported_usage(kwargs, response, self.compactor.store.executor)
            await self.compactor.record_response(call_id, usage)

    async def _record_events(self, kwargs: Mapping[str, Any], response: Any) -> None:  # noqa: ARG002
        """Each event that waits, until the store takes one no more."""
        events = self.notices.take_events()
        try:
            while events and await self.compactor.recorder.record_event(*events[0]):
                events.pop(0)
        finally:
            self.notices.return_events(events)


def _body(data: dict[str, Any], outcome: Outcome) -> dict[str, Any]:
    """What the gateway goes on with; savings go where its own report looks for them, never into client metadata."""
    body = outcome.body if isinstance(outcome.body, dict) else dict(outcome.body)
    if outcome.savings is None:
        return body
    report = {
        "tokens_before": outcome.savings.before,
        "tokens_after": outcome.savings.after,
        "tokens_saved": outcome.savings.before - outcome.savings.after,
        "source": "openmem",
    }
    for name in ("litellm_metadata", "metadata"):
        metadata = data.get(name)
        if isinstance(metadata, dict) and "user_api_key" in metadata:
            return {**body, name: {**metadata, "compression_savings": report}}
    return body


_LOCK = threading.Lock()
_HANDLERS: list[ContextHook] = []


def shared_handler() -> ContextHook:
    """The one handler of this process, however often and under whatever name it is asked for.

    Raises config.SettingsError, whose line was printed already, when the gateway's configuration is wrong.
    """
    with _LOCK:
        if not _HANDLERS:
            base = startup.load_settings(getattr(litellm, "callback_settings", None), os.environ, proxy_module())
            compactor = Compactor(Path(base.settings.state_dir))
            _HANDLERS.append(ContextHook(base, compactor, Notices()))
            _serve_tools(compactor, base.settings.tenant)
        return _HANDLERS[0]


def _serve_tools(compactor: Compactor, tenant_mode: Owner) -> None:
    """The search tools need the MCP SDK that comes with the gateway; without one that fits, all else works."""
    try:
        from openmem_hook.gateway import mcp_route
    except ImportError as error:
        LOG.warning("openmem: no search tools: the MCP SDK of this gateway does not fit (%s)", error.name)
        return
    mcp_route.add_to(proxy_module(), ToolRunner(compactor.store.pool, compactor.store.executor), tenant_mode)
