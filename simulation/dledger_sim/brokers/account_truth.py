"""Truth about accounts: the rights of each, as the administrators set them, and when the log recorded them.

An account may send with one secret, to the topics that it was given. A default decides about other topics. Each change
has a unique address in its white list, from which no client sends. The address identifies the change's log entry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import count
from typing import Final, NamedTuple

from dledger_base.access_keys import KEY_BYTES
from dledger_broker.features.accounts.sealing import KeyFile
from dledger_broker.features.accounts.table import ACCOUNTS as TABLE
from dledger_broker.features.accounts.table import DeleteAccount, PutAccount
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.accounts import ROOT
from dledger_remoting.signatures import Credentials
from dledger_sim.brokers.history import History
from dledger_sim.log.invariants import require

ACCOUNTS: Final = ("app-0", "app-1", "app-2")
_NONCES: Final = count(1)
KEYS: Final = KeyFile((b"k" * KEY_BYTES,), lambda: next(_NONCES).to_bytes(12))
ROOT_CREDENTIALS: Final = Credentials(ROOT, KEYS.root_secrets[0])
SECRETS: Final = ("a secret", "another secret")


class Grant(NamedTuple):
    """Rights of an account from a change on. `address` is the unique address of the change."""

    secret: str
    topics: Mapping[str, bool]
    others: bool
    address: str

    def lets_in(self, secret: str, topic: str) -> bool:
        """Return whether a client that signs with a secret may send to a topic."""
        return secret == self.secret and self.topics.get(topic, self.others)


class Send(NamedTuple):
    """Message that an account has sent."""

    name: str
    secret: str
    topic: str
    at: float


class AccountTruth:
    """Accounts with their history, and everything that was sent for them."""

    def __init__(self) -> None:
        self.grants: dict[str, Grant] = {}
        """All grants that were ever requested, by the address of the change."""
        self.accounts: Final[defaultdict[str, History[Grant | None]]] = defaultdict(lambda: History(None))
        self.sends: dict[int, Send] = {}
        """Sends by operation."""
        self._puts: dict[str, tuple[PutAccount, int]] = {}

    def see(self, command: PutAccount | DeleteAccount, index: int, moment: float) -> None:
        """Note a change in the log."""
        if isinstance(command, DeleteAccount):
            self._puts.pop(command.name, None)
            self.accounts[command.name].put(index, moment, None)
            return
        self._puts[command.name] = command, index
        self.accounts[command.name].put(index, moment, self.grants[command.white_list[0]])

    def puts(self) -> dict[str, tuple[PutAccount, int]]:
        """Return the accounts that every replica must have, each with the index of its entry."""
        return dict(self._puts)

    def check_stored(self, operation: int, moment: float) -> None:
        """Check a stored message: its account had the right at some moment since the send."""
        send = self.sends.get(operation)
        if send is None:
            return
        known = self.accounts[send.name].during(send.at, moment)
        lets_in = any(grant is not None and grant.lets_in(send.secret, send.topic) for grant in known)
        require(
            lets_in,
            "nothing is stored for an account that has lost its right",
            send=send,
            known=known,
            stored_at=moment,
        )

    def check_refused(self, operation: int, first_index: int, last_index: int) -> None:
        """Check a refused message: its account lacked the right in some state between the two entries."""
        send = self.sends[operation]
        known = self.accounts[send.name].within(first_index, last_index)
        lets_in = all(grant is not None and grant.lets_in(send.secret, send.topic) for grant in known)
        require(not lets_in, "an account with the right is not refused", send=send, known=known)


def change_of(command: PutAccount | DeleteAccount) -> tuple[object, ...]:
    """Return a change in the form in which the client that requests it names it."""
    if isinstance(command, DeleteAccount):
        return "account deleted", command.name
    return "account", command.name, command.white_list[0]


def accounts_of(state: BrokerState) -> dict[str, tuple[PutAccount, int]]:
    """Return the accounts that a replica has."""
    table = state.table(TABLE)
    return {name: (account.put, account.version) for name in table.names() if (account := table.get(name)) is not None}
