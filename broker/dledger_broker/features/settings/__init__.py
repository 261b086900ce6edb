"""Settings: values of live keys that operators set for a whole group while its nodes run (25), and tell (26).

They are in the log, so that all nodes follow them, whoever leads or starts anew; what is set counts before what a
node's own configuration says. `table.py` has what is replicated, `requests.py` takes the requests, `properties.py`
reads and writes them in RocketMQ's words. How parts of a node learn of a value: `kernel/live_config.py`.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.settings.requests import SettingRequests
from dledger_broker.features.settings.table import NAME, SETTING_COMMANDS, SETTINGS
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> SettingRequests:
    return SettingRequests(context.machine, context.group, context.live, context.announcements, context.requests)


FEATURE: Final = Feature(name=NAME, commands=SETTING_COMMANDS, table=SETTINGS, activated=True, build=_build)
