"""Class filters, as RocketMQ 3 had them: code that the node's configuration names chooses what a consumer gets.

A consumer says the name of one; it sends no code, and its name loads none that is not listed. `worker.py` has the
process of a filter, `judging.py` asks it for pulls and pops.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.class_filters.judging import ClassFilters
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> ClassFilters:
    return ClassFilters(context.config, context.env, context.counters)


FEATURE: Final = Feature(name="class_filters", build=_build)
