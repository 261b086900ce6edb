"""Settings that every leader records for its broker group: its ordinal, limits of other features, and system topics."""

from __future__ import annotations

from typing import Final

from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> GroupSettings:
    return GroupSettings(context.machine, context.env, context.config)


FEATURE: Final = Feature(name="group settings", build=_build)
