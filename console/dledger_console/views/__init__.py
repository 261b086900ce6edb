"""Views: the pages and changes of each noun, answered by the operations of `dledger_admin`."""

from __future__ import annotations

from typing import Final

from ..pages import AnyChange, AnyLook
from . import broker_groups, consumer_groups, dead_letters, messages, overview, topics

_MODULES: Final = (overview, broker_groups, topics, consumer_groups, messages, dead_letters)

LOOKS: Final[list[AnyLook]] = [look for module in _MODULES for look in module.LOOKS]
CHANGES: Final[list[AnyChange]] = [change for module in _MODULES for change in module.CHANGES]
