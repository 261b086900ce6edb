"""Handover of a leader whose consume queues are damaged, while they are mended (`views/mending.py`)."""

from __future__ import annotations

from typing import Final

from dledger_broker.clients.gossip import Gossip
from dledger_broker.features.mending.job import Mending
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> Mending:
    return Mending(context.machine, context.log, context.env, context.parts[Gossip])


FEATURE: Final = Feature(name="mending", build=_build)
