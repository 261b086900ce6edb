"""Self-description of a node, for any client."""

from __future__ import annotations

from typing import Final

from dledger_broker.features.runtime.description import RuntimeInfo
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> RuntimeInfo:
    return RuntimeInfo(
        context.machine, context.log, context.env, context.group, context.config, context.counters, context.parts
    )


FEATURE: Final = Feature(name="runtime", build=_build)
