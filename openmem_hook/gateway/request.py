"""From the gateway's body and key to the request that the core decides on."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Any

from openmem_hook import config
from openmem_hook.compaction.request import Request
from openmem_hook.formats import adapter_for
from openmem_hook.gateway import client_values, models, session, tenant
from openmem_hook.gateway.notices import Notices
from openmem_hook.limits import derive_limits
from openmem_hook.text import searchable


def read_request(base: config.Base, notices: Notices, key: object, data: object, call_type: str) -> Request | None:
    """The request as the core knows it; None for everything that is not a conversation of an agent.

    `data` is the hook's: the body with what the gateway puts beside it. `key` is its `user_api_key_dict`.
    """
    # Every call is noted, so that its success is no surprise; what is no turn of an agent ends here.
    call_id = call_id_of(data) if isinstance(data, dict) else None
    notices.begin_request(call_id)
    if not isinstance(data, dict):
        return None
    adapter = adapter_for(call_type, data)
    if adapter is None or is_no_turn(key):
        return None

    # What holds for this request: its settings, from the client's header down to the model's block.
    headers = client_values.headers_of(data)
    model = models.facts_for(data.get("model"), data)
    resolution = config.resolve(
        base,
        header=headers.get("x-openmem"),
        key=_settings_block(key, "metadata"),
        team=_settings_block(key, "team_metadata"),
        model=model.openmem,
    )
    settings = resolution.settings

    # Whose it is: from the authentication alone.
    owner = tenant.tenant_of(key, settings.tenant, tenant.authentication_of(proxy_module()))
    notices.check_request(owner, resolution.ignored_settings, model)
    if resolution.raw:
        return None

    # Which conversation it is: from what the client wrote.
    identity = session.session_of(headers, data, data.get("litellm_logging_obj"))
    return Request(
        adapter=adapter,
        body=data,
        tenant=owner,
        session_id=identity.id,
        subagent=identity.subagent,
        agent=identity.agent,
        model=searchable(model.name),
        settings=settings,
        limits=derive_limits(settings, model),
        call_id=call_id,
        may_edit=settings.enabled_for(identity.agent),
        project=session.project_of(headers),
    )


def proxy_module() -> Any:
    """`litellm.proxy.proxy_server`, None outside a gateway."""
    return sys.modules.get("litellm.proxy.proxy_server")


def call_id_of(data: Mapping[str, Any]) -> str | None:
    """LiteLLM's id of this call, which joins request and usage. A client may choose it with a header."""
    logging_object = data.get("litellm_logging_obj")
    own = client_values.as_text(data.get("litellm_call_id"))
    return own or client_values.as_text(getattr(logging_object, "litellm_call_id", None)) or None


_NO_TURN = re.compile(r"(?:count[_-]?tokens(?::\w+)?|/input_tokens|/compact)/?$", re.IGNORECASE)


def is_no_turn(key: object) -> bool:
    """True for a history that is sent to be counted or condensed. Only the route says so where the gateway passes
    bodies through: they have the shape of a turn."""
    return _NO_TURN.search(tenant.key_attribute(key, "request_route")) is not None


def _settings_block(key: object, name: str) -> Mapping[str, Any] | None:
    metadata = getattr(key, name, None)
    block = metadata.get("openmem") if isinstance(metadata, Mapping) else None
    return block if isinstance(block, Mapping) else None
