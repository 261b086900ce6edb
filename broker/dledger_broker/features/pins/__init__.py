"""Pins: positions from which readers need the log kept, each with a lease that the leader ends.

`table.py` has those that are replicated, `proposed.py` what this leader is about to change of them, `requests.py` their
request codes.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.pins.table import PIN_COMMANDS, PINS
from dledger_broker.kernel.feature import Feature

FEATURE: Final = Feature("pins", PIN_COMMANDS, PINS)
