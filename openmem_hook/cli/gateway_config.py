"""What `openmem serve` reads in the gateway's YAML before LiteLLM does: our settings, keys and models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

import openmem_hook
from openmem_hook import config
from openmem_hook.cli.base import CannotRunError

CONFIG_NAME = "litellm_config.yaml"

_YAML_ERRORS = (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError, RecursionError)
"""What the reader of YAML raises: also what Python says of a date, a number or a depth that can't be."""

_REFERENCE = "os.environ/"
"""How LiteLLM's file names a value of the environment."""

Document = Mapping[Any, Any]
"""The parsed file."""


def default_file() -> Path:
    """The file in the current folder, else the shipped one: beside the package, or inside it when installed."""
    package = Path(openmem_hook.__file__).resolve().parent
    folders = [Path.cwd(), package.parent, package]
    return next((folder / CONFIG_NAME for folder in folders if (folder / CONFIG_NAME).is_file()), Path(CONFIG_NAME))


def read(file: Path) -> Document:
    """Parses the file. Raises CannotRunError where it can't be read or holds no mapping."""
    try:
        document = yaml.safe_load(file.read_text("utf-8"))
    except OSError as error:
        raise CannotRunError(f"{file}: {error.strerror}") from error
    except _YAML_ERRORS as error:
        mark = getattr(error, "problem_mark", None)
        where = f": line {mark.line + 1}, {getattr(error, 'problem', '')}" if mark else ""
        raise CannotRunError(f"{file} is not readable as YAML{where}") from error
    if not isinstance(document, Mapping):
        raise CannotRunError(f"{file} is no gateway configuration: a mapping is allowed")
    return document


def check_settings(document: Document, environ: Mapping[str, str]) -> None:
    """Makes the check that the gateway makes too, seconds earlier. Raises CannotRunError.

    What the file refers to in the environment is left to the gateway.
    """
    try:
        config.load(_without_references(_section(document, "callback_settings").get("openmem")), environ)
        for name, model in _models(document):
            config.check_model(name, _without_references(_section(model, "model_info").get("openmem")))
    except config.SettingsError as error:
        raise CannotRunError(str(error)) from error


def unset_variables(document: Document, environ: Mapping[str, str]) -> Mapping[str, list[str]]:
    """Provider variables that the file refers to and that are not set, with the models that need them."""
    models: dict[str, list[str]] = {}
    for name, model in _models(document):
        for value in _section(model, "litellm_params").values():
            variable = _variable(value)
            if variable and not environ.get(variable) and name not in models.setdefault(variable, []):
                models[variable].append(name)
    return {variable: names for variable, names in models.items() if names}


def sets_master_key(document: Document, variable: str) -> bool:
    """Whether the file has a master key, literally or in an environment variable other than this one."""
    master_key = _section(document, "general_settings").get("master_key")
    return bool(master_key) and _variable(master_key) != variable


def _models(document: Document) -> Iterator[tuple[str, Mapping[Any, Any]]]:
    models = document.get("model_list")
    for model in models if isinstance(models, list) else []:
        if isinstance(model, Mapping):
            yield str(model.get("model_name")), model


def _section(holder: Mapping[Any, Any], name: str) -> Mapping[Any, Any]:
    value = holder.get(name)
    return value if isinstance(value, Mapping) else {}


def _without_references(block: object) -> object:
    if not isinstance(block, Mapping):
        return block
    return {key: value for key, value in block.items() if not str(value).startswith(_REFERENCE)}


def _variable(value: object) -> str:
    """The environment variable that this value refers to, empty for a value that stands for itself."""
    return value.removeprefix(_REFERENCE) if isinstance(value, str) and value.startswith(_REFERENCE) else ""
