"""Accounts: who may do what, where access control is on.

`table.py` has what is replicated: accounts with their secrets, sealed (`sealing.py`), and their rules. `rules.py` says
what rules mean, `addresses.py` patterns of addresses, `judge.py` judges requests for the whole node: start reading
there. `requests.py` has the request codes, in RocketMQ's form (`policies.py`), `plain_requests.py` those of RocketMQ 4
(`plain.py`); what they propose is in `changes.py`.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.accounts.changes import AccountChanges
from dledger_broker.features.accounts.judge import Accounts
from dledger_broker.features.accounts.keyless import Keyless
from dledger_broker.features.accounts.plain_requests import PlainAccountRequests
from dledger_broker.features.accounts.requests import AccountRequests
from dledger_broker.features.accounts.sealing import read_key_file
from dledger_broker.features.accounts.table import ACCOUNT_COMMANDS, ACCOUNTS, NAME
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> AccountRequests:
    path, machine, access = context.config.access_key_file, context.machine, context.access
    keys = None if path is None else read_key_file(path)
    judge = Keyless() if keys is None else Accounts(keys, context.config.cluster)
    machine.on_state(judge.keep_table)
    access.guard(judge)
    changes = AccountChanges(machine, context.requests, keys)
    plain = PlainAccountRequests(context.requests, changes, context.config)
    return AccountRequests(context.requests, changes, plain, lambda: access.refused)


FEATURE: Final = Feature(name=NAME, commands=ACCOUNT_COMMANDS, table=ACCOUNTS, activated=True, build=_build)
