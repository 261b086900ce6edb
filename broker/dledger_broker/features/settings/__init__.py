"""Settings: values of live keys that operators set for a whole group while its nodes run (25), and read (26).

Settings are in the log, so that all nodes follow them, also a new leader or a restarted node. They take precedence over
a node's own configuration. `table.py` has the replicated settings, `requests.py` takes the requests, and
`properties.py` reads and writes settings in RocketMQ's format. `kernel/live_config.py` notifies the parts of a node of
changed values.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.settings.requests import SettingRequests
from dledger_broker.features.settings.table import NAME, SETTING_COMMANDS, SETTINGS
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> SettingRequests:
    return SettingRequests(context.machine, context.group, context.live, context.announcements, context.requests)


FEATURE: Final = Feature(name=NAME, commands=SETTING_COMMANDS, table=SETTINGS, activated=True, build=_build)
