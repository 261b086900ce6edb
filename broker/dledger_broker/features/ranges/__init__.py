"""Range reads: the log itself, read entry by entry by readers that do not use queues.

`requests.py` has the request codes, and `pace.py` limits how much is read while clients send.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.pins.requests import PinRequests
from dledger_broker.features.ranges.pace import RangePace
from dledger_broker.features.ranges.requests import RangeRequests
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> RangeRequests:
    machine, env, config = context.machine, context.env, context.config
    return RangeRequests(
        machine,
        context.log,
        env,
        context.group,
        config.broker_group,
        context.counters,
        context.requests,
        context.parts[PinRequests],
        context.roles,
        RangePace(env, lambda: machine.applied_position, config.busy_range_bytes_per_s),
    )


FEATURE: Final = Feature(name="ranges", build=_build)
