"""Settings of the whole broker group that its leader records, and the topics that are always there."""

from __future__ import annotations

from typing import Final

from dledger_broker.features.group_settings.settings import Founding
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> Founding:
    return Founding(context.machine, context.env, context.config)


FEATURE: Final = Feature(name="group settings", build=_build)
