"""Reminders: a message that a client hands in now is stored in its topic some seconds later, exactly once.

A whole feature in a folder, which stands in no list of the broker: `table.py` has what is replicated, `requests.py` the
request codes, `job.py` what the leader does by itself. `broker/README.md` goes through it.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.kernel.parts import Context, Feature
from tests.broker.toy.requests import Reminders
from tests.broker.toy.table import REMINDER_COMMANDS, REMINDERS


def _build(context: Context) -> Reminders:
    return Reminders(context.machine, context.env, context.requests)


FEATURE: Final = Feature(name="reminders", commands=REMINDER_COMMANDS, table=REMINDERS, activated=True, build=_build)
