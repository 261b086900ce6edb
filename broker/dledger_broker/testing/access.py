"""Access control for a broker whose configuration names no key file."""

from __future__ import annotations

from dledger_broker.features.accounts.judge import Accounts
from dledger_broker.features.accounts.requests import AccountRequests
from dledger_broker.features.accounts.sealing import KeyFile
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.service import BrokerService


def guard(service: BrokerService, machine: BrokerMachine, keys: KeyFile, cluster: str = "DefaultCluster") -> None:
    """Have requests judged from now on, as on a node with these keys."""
    judge = Accounts(keys, cluster)
    machine.on_state(judge.keep_table)
    service.parts[AccountRequests].changes.keys = keys
    service.access.guard(judge)
