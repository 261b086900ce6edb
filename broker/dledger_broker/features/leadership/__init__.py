"""Leadership for operators: the leaders that a node has seen, with reasons, and handing over to another node."""

from __future__ import annotations

from typing import Final

from dledger_broker.features.leadership.requests import LeadershipRequests
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> LeadershipRequests:
    return LeadershipRequests(context.log, context.group)


FEATURE: Final = Feature(name="leadership", build=_build)
