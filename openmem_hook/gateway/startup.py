"""What is checked while the gateway loads the callback: every setting that can be known by then.

LiteLLM has read its file by that moment but has no router yet, so the models come from its configuration
state. A wrong setting is told in one line; the exception that then stops the start would be told once more by
uvicorn, as a traceback of a hundred lines, and that is kept out of the log.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from openmem_hook import config


def checked_settings(callback_settings: object, environ: Mapping[str, str], proxy: object) -> config.Base:
    """The gateway's settings; `proxy` is `litellm.proxy.proxy_server`, None where there is none.

    Raises config.SettingsError after telling its line on standard error.
    """
    try:
        base = config.load(_block(callback_settings), environ)
        for name, block in _models(proxy):
            config.check_model(name, block)
    except config.SettingsError as error:
        _tell(str(error))
        raise
    return base


def _block(callback_settings: object) -> object:
    return callback_settings.get("openmem") if isinstance(callback_settings, Mapping) else None


def _models(proxy: object) -> Iterator[tuple[str, object]]:
    """Name and `model_info.openmem` of each model in the gateway's file. A model without one is no entry."""
    state = getattr(getattr(proxy, "proxy_config", None), "get_config_state", None)
    listed: Any = state().get("model_list") if callable(state) else None
    for row in listed if isinstance(listed, list) else []:
        info = row.get("model_info") if isinstance(row, Mapping) else None
        if isinstance(info, Mapping) and "openmem" in info:
            yield str(row.get("model_name")), info["openmem"]


def _tell(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
    logging.getLogger("uvicorn.error").addFilter(lambda record: line not in record.getMessage())
