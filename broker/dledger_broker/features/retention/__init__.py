"""Retention: the part of the log that is dropped, on all replicas alike, by the leader's decision. `policy.py` chooses
that part, `trimming.py` drops it, and `job.py` checks every ten seconds.
"""

from __future__ import annotations

from functools import partial
from typing import Final

from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.pins.requests import PinRequests
from dledger_broker.features.retention.job import Retention
from dledger_broker.features.retention.policy import policy_of
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> Retention:
    pins = context.parts[PinRequests].proposed
    moves = context.parts[DueMessages].moves
    policy = partial(policy_of, context.live)
    return Retention(context.machine, context.log, context.env, pins, moves, policy, context.counters, context.parts)


FEATURE: Final = Feature(name="retention", build=_build)
