"""Accounts: the users of access control, their secrets and their rules.

Start reading at `judge.py`, which judges the requests of the whole node.

- `table.py` has the replicated accounts with their sealed secrets (`sealing.py`) and their rules.
- `rules.py` evaluates rules, `addresses.py` matches address patterns.
- `requests.py` handles the request codes in the form of RocketMQ 5.3 (`policies.py`).
- `plain_requests.py` handles the request codes in the form of RocketMQ 4 (`plain.py`).
- `changes.py` proposes the changes that both ask for.
- `signed_dates.py` judges what the clients of proxies sign. The accounts of proxies are a feature of their own
  (`speakers`).
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.accounts.changes import AccountChanges
from dledger_broker.features.accounts.judge import Accounts
from dledger_broker.features.accounts.keyless import Keyless
from dledger_broker.features.accounts.plain_requests import PlainAccountRequests
from dledger_broker.features.accounts.requests import AccountRequests
from dledger_broker.features.accounts.sealing import read_key_file
from dledger_broker.features.accounts.signed_dates import SignedDates
from dledger_broker.features.accounts.table import ACCOUNT_COMMANDS, ACCOUNTS, NAME
from dledger_broker.kernel.parts import Context, Feature


def _build(context: Context) -> AccountRequests:
    config, machine, access = context.config, context.machine, context.access
    keys = None if config.access_key_file is None else read_key_file(config.access_key_file)
    if keys is None:
        judge: Keyless | Accounts = Keyless(is_said_off=config.access_control == "off")
    else:
        judge = Accounts(keys, config.cluster, SignedDates(context.env, context.live), config.access_mode)
    machine.on_state(judge.keep_table)
    access.guard(judge)
    changes = AccountChanges(machine, context.requests, access, keys)
    plain = PlainAccountRequests(context.requests, changes, context.config)
    return AccountRequests(context.requests, changes, plain, access)


FEATURE: Final = Feature(name=NAME, commands=ACCOUNT_COMMANDS, table=ACCOUNTS, activated=True, build=_build)
