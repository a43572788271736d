"""What usage reports taught about models: tokens a character, per tenant and model, kept in the catalog."""

from __future__ import annotations

from openmem_hook import tokens
from openmem_hook.bounded_map import BoundedMap
from openmem_hook.store import catalog
from openmem_hook.store.pool import Pool
from openmem_hook.tokens import Calibration

RATES_KEPT = 512
"""Calibrations remembered; others are read from their catalogs again."""


class Rates:
    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._rates = BoundedMap[tuple[str, str], Calibration](RATES_KEPT)

    def in_memory(self, tenant: str, model: str) -> Calibration:
        """The rate that memory knows, else the family's: no file is touched."""
        return self._rates.get((tenant, model)) or tokens.starting(model)

    def of_model(self, tenant: str, model: str, chars_per_token: float | None) -> Calibration:
        """What this tenant's reports taught about a model, else the setting, else what its family starts with."""
        calibration = self._rates.get((tenant, model))
        if calibration is None:
            calibration = _read(self._pool.try_catalog(tenant, lambda db: catalog.read_rate(db, model), None))
            if calibration is not None:
                self._rates.put((tenant, model), calibration)
        return calibration or tokens.starting(model, chars_per_token)

    def remember(self, tenant: str, model: str, calibration: Calibration) -> None:
        self._rates.put((tenant, model), calibration)


def _read(data: str | None) -> Calibration | None:
    """None also for what no version of this package can have written."""
    try:
        return None if data is None else Calibration.from_json(data)
    except ValueError:
        return None
