"""Views: the pages and changes of each noun, answered by the operations of `dledger_admin`."""

from __future__ import annotations

from typing import Final

from ..pages import AnyChange, AnyLook
from . import (
    accounts,
    audit,
    broker_groups,
    clients,
    configuration,
    consumer_groups,
    dead_letters,
    logs,
    messages,
    overview,
    quotas,
    topics,
    waiting,
)

_MODULES: Final = (
    overview,
    broker_groups,
    topics,
    consumer_groups,
    messages,
    dead_letters,
    waiting,
    clients,
    accounts,
    quotas,
    configuration,
    logs,
    audit,
)

LOOKS: Final[list[AnyLook]] = [look for module in _MODULES for look in module.LOOKS]
CHANGES: Final[list[AnyChange]] = [change for module in _MODULES for change in module.CHANGES]
