"""The gateway's callback: hand a request over, hand a response over, and never stand in the way.

Everything is decided elsewhere. The one broad `except` of this package is here: whatever goes wrong, the next
tactic is tried, and the last one is the client's own body.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

from openmem_hook import config
from openmem_hook.compactor import Compactor, Outcome, Request
from openmem_hook.formats import adapter_for
from openmem_hook.gateway import identity, models, startup
from openmem_hook.gateway.reported import reported_usage
from openmem_hook.gateway.watch import LOG, Watch
from openmem_hook.tools import ToolRunner


class ContextHook(CustomLogger):  # type: ignore[misc]  # the gateway ships no types
    """Pre-call and success hook. LiteLLM looks for the hooks on the registered class itself."""

    def __init__(self, base: config.Base, compactor: Compactor, watch: Watch) -> None:
        super().__init__()
        self.base = base
        self.compactor = compactor
        self.watch = watch
        compactor.pool.trouble = watch.troubled

    async def async_pre_call_hook(
        self,
        user_api_key_dict: Any,
        cache: Any,  # noqa: ARG002
        data: Any,
        call_type: Any,
        **later: Any,  # noqa: ARG002 - what later versions of the gateway may add
    ) -> Any:
        for tactic, failed in ((self._compact, self.watch.failed), (self._replay, self.watch.failed_again)):
            try:
                return await tactic(user_api_key_dict, data, str(getattr(call_type, "value", call_type)))
            except Exception as error:  # noqa: BLE001 - fail open, whatever it is
                failed(error)
        return data

    async def async_log_success_event(
        self,
        kwargs: Any,
        response_obj: Any,
        start_time: Any,  # noqa: ARG002
        end_time: Any,  # noqa: ARG002
        **later: Any,  # noqa: ARG002
    ) -> None:
        for report in (self._record, self._note_failures):
            try:
                await report(kwargs if isinstance(kwargs, Mapping) else {}, response_obj)
            except Exception as error:  # noqa: BLE001 - the response is long with the client
                self.watch.missed(error)

    async def _compact(self, key: Any, data: Any, call_type: str) -> Any:
        request = self._request(key, data, call_type)
        if request is None:
            return data
        return _answer(data, await self.compactor.compact_request(request))

    async def _replay(self, key: Any, data: Any, call_type: str) -> Any:
        request = self._request(key, data, call_type)
        return data if request is None else _answer(data, await self.compactor.replay_request(request))

    async def _record(self, kwargs: Mapping[str, Any], response: Any) -> None:
        call_id = _call_id(kwargs)
        self.watch.answered(call_id, str(kwargs.get("call_type")))
        if call_id is not None:
            await self.compactor.record_response(call_id, await reported_usage(kwargs, response))

    async def _note_failures(self, kwargs: Mapping[str, Any], response: Any) -> None:  # noqa: ARG002
        events = self.watch.taken()
        try:
            while events and await self.compactor.recorder.record_event(*events[0]):
                events.pop(0)
        finally:
            self.watch.keep(events)

    def _request(self, key: Any, data: Any, call_type: str) -> Request | None:
        """The request as the core knows it; None for everything that is not a conversation of an agent."""
        call_id = identity.call_id_of(data) if isinstance(data, dict) else None
        self.watch.asked(call_id)
        adapter = adapter_for(call_type, data) if isinstance(data, dict) else None
        if adapter is None or identity.is_no_turn(key):
            return None
        headers = identity.headers_of(data)
        model = models.facts_for(data.get("model"), data)
        resolved = config.resolve(
            self.base,
            header=headers.get("x-openmem"),
            key=_block(key, "metadata"),
            team=_block(key, "team_metadata"),
            model=model.openmem,
        )
        settings = resolved.settings
        tenant = identity.tenant_of(key, settings.tenant, identity.authentication_of(_proxy()))
        self.watch.met(tenant, resolved.ignored, model)
        if resolved.raw:
            return None
        session = identity.session_of(headers, data, data.get("litellm_logging_obj"))
        return Request(
            adapter=adapter,
            body=data,
            tenant=tenant,
            session_id=session.id,
            agent_thread=session.agent_thread,
            agent=session.agent,
            model=model.name,
            settings=settings,
            limits=config.limits(settings, model),
            call_id=call_id,
            may_edit=settings.enabled_for(session.agent),
            project=identity.project_of(headers),
        )


def _proxy() -> Any:
    return sys.modules.get("litellm.proxy.proxy_server")


def _block(key: Any, name: str) -> Mapping[str, Any] | None:
    metadata = getattr(key, name, None)
    found = metadata.get("openmem") if isinstance(metadata, Mapping) else None
    return found if isinstance(found, Mapping) else None


def _call_id(kwargs: Mapping[str, Any]) -> str | None:
    found = kwargs.get("litellm_call_id")
    if found is None and isinstance(kwargs.get("litellm_params"), Mapping):
        found = kwargs["litellm_params"].get("litellm_call_id")
    return found if isinstance(found, str) else None


def _answer(data: dict[str, Any], outcome: Outcome) -> dict[str, Any]:
    """What the gateway goes on with; savings go where its own report looks for them, never into client metadata."""
    body = outcome.body if isinstance(outcome.body, dict) else dict(outcome.body)
    if outcome.savings is None:
        return body
    told = {
        "tokens_before": outcome.savings.before,
        "tokens_after": outcome.savings.after,
        "tokens_saved": outcome.savings.before - outcome.savings.after,
        "source": "openmem",
    }
    for name in ("litellm_metadata", "metadata"):
        held = data.get(name)
        if isinstance(held, dict) and "user_api_key" in held:
            return {**body, name: {**held, "compression_savings": told}}
    return body


_LOCK = threading.Lock()
_HANDLERS: list[ContextHook] = []


def shared_handler() -> ContextHook:
    """The one handler of this process, however often and under whatever name it is asked for.

    Raises config.SettingsError, one line that was told already, when the gateway's configuration is wrong.
    """
    with _LOCK:
        if not _HANDLERS:
            import litellm

            base = startup.checked_settings(getattr(litellm, "callback_settings", None), os.environ, _proxy())
            settings = config.resolve(base, header=None, key=None, team=None, model=None).settings
            compactor = Compactor(Path(settings.state_dir))
            _HANDLERS.append(ContextHook(base, compactor, Watch()))
            _serve_tools(compactor, settings.tenant)
        return _HANDLERS[0]


def _serve_tools(compactor: Compactor, tenant_mode: str) -> None:
    """The search tools need the MCP SDK that comes with the gateway; without one that fits, all else works."""
    try:
        from openmem_hook.gateway import routes
    except ImportError as error:
        LOG.warning("openmem: no search tools: the MCP SDK of this gateway does not fit (%s)", error.name)
        return
    routes.add_to(_proxy(), ToolRunner(compactor.pool), tenant_mode)
