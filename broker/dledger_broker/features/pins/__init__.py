"""Pins: positions from which readers need the log kept, each with a lease that the leader ends.

`table.py` has the replicated pins, and `proposed.py` the changes that this leader has proposed. `requests.py` has the
request codes, and `job.py` ends leases.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.pins.proposed import ProposedPins
from dledger_broker.features.pins.requests import PinRequests
from dledger_broker.features.pins.table import PIN_COMMANDS, PINS
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> PinRequests:
    proposed = ProposedPins(context.machine)
    return PinRequests(context.machine, proposed, context.env, context.group, context.requests)


FEATURE: Final = Feature(name="pins", commands=PIN_COMMANDS, table=PINS, build=_build)
