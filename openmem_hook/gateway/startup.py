"""What is checked while the gateway loads the callback: every setting that can be known by then.

LiteLLM has read its file by that moment but has no router yet, so the models come from its configuration
state. A wrong setting is printed in one line; the exception that then stops the start would be printed once more by
uvicorn, as a traceback of a hundred lines, and that is kept out of the log.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping
from typing import Any

from openmem_hook import config


def load_settings(callback_settings: object, environ: Mapping[str, str], proxy: object) -> config.Base:
    """The gateway's settings; `proxy` is `litellm.proxy.proxy_server`, None where there is none.

    Raises config.SettingsError after printing its line on standard error.
    """
    try:
        block = callback_settings.get("openmem") if isinstance(callback_settings, Mapping) else None
        base = config.load(block, environ)
        for name, model_block in _model_blocks(proxy):
            config.check_model(name, model_block)
    except config.SettingsError as error:
        line = str(error)
        sys.stderr.write(f"{line}\n")
        sys.stderr.flush()
        # The server logs the same error as a traceback.
        logging.getLogger("uvicorn.error").addFilter(lambda record: line not in record.getMessage())
        raise
    return base


def _model_blocks(proxy: object) -> Iterator[tuple[str, object]]:
    """Name and `model_info.openmem` of each model in the gateway's file that has one."""
    state = getattr(getattr(proxy, "proxy_config", None), "get_config_state", None)
    rows: Any = state().get("model_list") if callable(state) else None
    for row in rows if isinstance(rows, list) else []:
        info = row.get("model_info") if isinstance(row, Mapping) else None
        if isinstance(info, Mapping) and "openmem" in info:
            yield str(row.get("model_name")), info["openmem"]
