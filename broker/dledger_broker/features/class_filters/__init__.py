"""Class filters in the way of RocketMQ 3: code named by the node's configuration filters the messages of a consumer.

A consumer only names a listed filter. It can neither send code nor load any by a name. `worker.py` runs the process of
a filter, `judging.py` uses it for pulls and pops.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.class_filters.judging import ClassFilters
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> ClassFilters:
    return ClassFilters(context.config, context.env, context.counters)


FEATURE: Final = Feature(name="class_filters", build=_build)
