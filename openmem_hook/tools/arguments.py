"""What an agent sends with a call, read leniently; whatever can't be used is answered with what to send instead."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from openmem_hook.store.queries import Filters

ROLES = ("user", "assistant", "tool", "system")
DEFAULT_ROLES = ("user", "tool")
MOST_ROWS = 50
_ID = re.compile(r"[0-9a-f]{16}")
_AGO = re.compile(r"(\d{1,6})\s*([mhd])")
_UNITS = {"m": "minutes", "h": "hours", "d": "days"}


class ArgumentError(ValueError):
    """What is wrong with an argument and what to send instead, in one line."""


def checked(given: Mapping[str, Any] | None, known: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments that say something; one nobody knows is an error, so that no filter is lost unnoticed."""
    said = {name: value for name, value in (given or {}).items() if value is not None and value != ""}
    unknown = sorted(set(said) - set(known))
    if unknown:
        raise ArgumentError(f"no argument {shown(unknown[0])}; there are {', '.join(known)}")
    return said


def text(given: Mapping[str, Any], name: str) -> str:
    value = given.get(name, "")
    if not isinstance(value, str):
        raise ArgumentError(f"{name} has to be a string")
    return value.encode("utf-8", "replace").decode()


def identifier(given: Mapping[str, Any], name: str) -> str:
    """16 hex characters, "" where absent."""
    value = text(given, name).strip().lower()
    if value and not _ID.fullmatch(value):
        raise ArgumentError(f"{name} has to be 16 hex characters, as a pointer or a search shows it")
    return value


def whole(given: Mapping[str, Any], name: str, default: int, least: int, most: int) -> int:
    value = given.get(name, default)
    if isinstance(value, str) and re.fullmatch(r"\s*-?\d{1,15}\s*", value):
        value = int(value)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ArgumentError(f"{name} has to be a whole number from {least} to {most}")
    return value


def filters(given: Mapping[str, Any], now: float) -> Filters:
    return Filters(
        roles=_roles(given.get("role")),
        in_context=_flag(given, "in_context"),
        since=_moment(given.get("since"), "since", now, timedelta()),
        until=_moment(given.get("until"), "until", now, timedelta(days=1)),
    )


def _roles(value: Any) -> tuple[str, ...]:
    """Empty for all of them."""
    if value is None:
        return DEFAULT_ROLES
    items = re.split(r"[,\s]+", value.strip()) if isinstance(value, str) else value
    if not isinstance(items, list) or not items or not all(isinstance(item, str) for item in items):
        raise ArgumentError(_ROLE_HELP)
    wanted = tuple(dict.fromkeys(item.strip().lower() for item in items))
    if "all" in wanted:
        return ()
    if not set(wanted) <= set(ROLES):
        raise ArgumentError(_ROLE_HELP)
    return wanted


_ROLE_HELP = f'role has to be {", ".join(ROLES)}, a list of these, or "all"'


def _flag(given: Mapping[str, Any], name: str) -> bool | None:
    value = given.get(name)
    if isinstance(value, str) and value.strip().lower() in ("true", "false"):
        value = value.strip().lower() == "true"
    if value is not None and not isinstance(value, bool):
        raise ArgumentError(f"{name} has to be true or false")
    return value


def _moment(value: Any, name: str, now: float, whole_day: timedelta) -> float | None:
    """Seconds since 1970 of a date (UTC), a time, a number of seconds, or a span like 2h before now."""
    if value is None:
        return None
    for read in (_seconds, _ago(now), _date(whole_day)):
        try:
            found = read(value)
        except (ValueError, OverflowError):
            continue
        if found is not None:
            return found
    raise ArgumentError(
        f"{name} has to be a time as 2026-01-31T12:00:00Z, a date, or a span back from now: 30m, 2h, 7d"
    )


def _seconds(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    found = float(value)
    return found if 0 <= found < 1e11 else None


def _ago(now: float) -> Callable[[Any], float | None]:
    def read(value: Any) -> float | None:
        found = _AGO.fullmatch(str(value).strip())
        return None if found is None else now - timedelta(**{_UNITS[found[2]]: int(found[1])}).total_seconds()

    return read


def _date(whole_day: timedelta) -> Callable[[Any], float | None]:
    def read(value: Any) -> float | None:
        said = str(value).strip()
        found = datetime.fromisoformat(said)
        found = found if found.tzinfo else found.replace(tzinfo=UTC)
        end = whole_day - timedelta(microseconds=1) if len(said) <= 10 and whole_day else timedelta()
        return (found + end).timestamp()

    return read


def shown(name: Any) -> str:
    return "".join(c if c.isprintable() else "?" for c in str(name)[:40])
