"""Reminders: a message that a client hands in now is stored in its topic some seconds later, exactly once.

This folder is a whole feature, and no list of the broker names it. `table.py` has the replicated part, `requests.py`
the request codes, and `job.py` the leader's job. `broker/README.md` goes through it.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.kernel.parts import Context, Feature
from tests.broker.toy.requests import Reminders
from tests.broker.toy.table import REMINDER_COMMANDS, REMINDERS


def _build(context: Context) -> Reminders:
    return Reminders(context.machine, context.env, context.requests)


FEATURE: Final = Feature(name="reminders", commands=REMINDER_COMMANDS, table=REMINDERS, activated=True, build=_build)
