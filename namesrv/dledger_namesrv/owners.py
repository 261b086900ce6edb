"""Owners of broker groups' names: if two groups of one name register, only one of them owns the name.

A broker of another cluster may register by mistake. With a later term it would take all clients of the registered
group. With an equal term the two groups would alternate. A group therefore keeps its name while one of its nodes is
registered, and for `RETURN_MS` after its last node went without unregistering. An operator can give the name to the
other group (`DLEDGER_FORGET_GROUP`).

A rescue makes a later incarnation of the same group. It takes the name from nodes of an earlier incarnation, whatever
the terms. Nodes of the earlier incarnation are refused from then on.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import msgspec

from dledger_base.group_identity import GroupIdentity
from dledger_remoting.headers import RegisterBrokerHeader
from dledger_remoting.route import MASTER_ID, RefusedGroup

from .records import KnownGroup

RETURN_MS: Final = 10_000
"""Time in ms for which a name is kept for a group whose connections broke.

A name that was known before this server started is kept as long, from its first check on.
"""
GIVEN_MS: Final = 60_000
"""Time in ms within which a group must register after an operator gave it a name."""
RIVAL_MS: Final = 60_000
"""Time in ms for which a rival is reported after its last attempt."""


class Owner(NamedTuple):
    """A group as its registrations describe it. `identity` is empty if they name none, as with stock brokers."""

    cluster: str
    identity: str

    @classmethod
    def of(cls, header: RegisterBrokerHeader) -> Owner:
        """Return the group that a registration describes."""
        return cls(header.cluster_name, header.group_identity or "")

    def is_of(self, other: Owner) -> bool:
        """Return whether both are the same group.

        Their identities then have the same founding. If one of them has no identity, the names of their clusters
        decide.
        """
        if self.identity and other.identity:
            return GroupIdentity.parse(self.identity).founding == GroupIdentity.parse(other.identity).founding
        return self.cluster == other.cluster

    def precedes(self, other: Owner) -> bool:
        """Return whether `other` is a later incarnation of this group, made by a rescue."""
        if not self.identity or not other.identity:
            return False
        return GroupIdentity.parse(self.identity).precedes(GroupIdentity.parse(other.identity))

    def __str__(self) -> str:
        identity = f" with identity {self.identity}" if self.identity else ""
        return f"cluster {self.cluster}{identity}"


class _Reservation(msgspec.Struct):
    """A name that is kept for a group without registered nodes.

    `addresses` are the addresses from which the group may come back under another identity. `until_ms` is the time
    until which the name is kept. It is None until the first check of a name that was known before this server started.
    """

    owner: Owner
    addresses: frozenset[str]
    until_ms: int | None


class _Rival(NamedTuple):
    owner: Owner
    address: str
    seen_ms: int


class GroupNames:
    """Owners of broker groups' names, and rivals: other groups that tried to register under an owned name.

    Time is an argument, as in `RouteTable`.
    """

    def __init__(self, absent: Mapping[str, KnownGroup]) -> None:
        self._owners: dict[str, Owner] = {}
        """Owners with registered nodes, by name."""
        self._reservations = {
            name: _Reservation(Owner(group.cluster, group.identity), frozenset(), None)
            for name, group in absent.items()
        }
        self._rivals: dict[str, _Rival] = {}

    def identity(self, name: str) -> str:
        """Return the identity of the group whose registered nodes own a name, empty if they named none."""
        owner = self._owners.get(name)
        return "" if owner is None else owner.identity

    def refusal(self, header: RegisterBrokerHeader, addresses: Collection[str], now_ms: int) -> str:
        """Return why a registration must not have its name, empty if it may.

        `addresses` are the addresses of the registered nodes.
        """
        name, registering = header.broker_name, Owner.of(header)
        owner = self._owners.get(name)
        if owner is None:
            reservation = self._find_reservation(name, now_ms)
            if reservation is None:
                return ""
            owner, addresses = reservation.owner, reservation.addresses
        if registering.precedes(owner):
            return (
                f"the group {name} was rescued without this node: {owner.identity} has the name, and this node is of "
                f"{registering.identity}. Empty its directory to have it join again"
            )
        if owner.is_of(registering) or _is_same_place(header, owner, addresses):
            return ""
        self._rivals[name] = _Rival(registering, header.broker_addr, now_ms)
        return (
            f"the name {name} belongs to a broker group of {owner}, and this one is of {registering}: give it another "
            f"broker_group, or have `dledger cluster forget {name}` give it the name"
        )

    def is_rescued(self, header: RegisterBrokerHeader) -> bool:
        """Return whether a registration comes from a later incarnation of the group whose nodes have its name now."""
        owner = self._owners.get(header.broker_name)
        return owner is not None and owner.precedes(Owner.of(header))

    def _find_reservation(self, name: str, now_ms: int) -> _Reservation | None:
        reservation = self._reservations.get(name)
        if reservation is None:
            return None
        if reservation.until_ms is None:
            reservation.until_ms = now_ms + RETURN_MS
        if now_ms >= reservation.until_ms:
            del self._reservations[name]
            return None
        return reservation

    def register(self, header: RegisterBrokerHeader) -> None:
        """Record the owner that a registration describes, once it takes effect.

        The cluster is the one that the leader names. An identity that the node leaves out stays as another node set it.
        """
        name, new = header.broker_name, Owner.of(header)
        former = self._owners.get(name, new)
        cluster = new.cluster if header.broker_id == MASTER_ID else former.cluster
        owner = self._owners[name] = Owner(cluster, new.identity or former.identity)
        self._reservations.pop(name, None)
        if (rival := self._rivals.get(name)) is not None and rival.owner.is_of(owner):
            del self._rivals[name]

    def let_go(self, name: str, addresses: Collection[str], now_ms: int, *, said_goodbye: bool) -> None:
        """Record that the last node of a group has gone. `addresses` are the addresses that its nodes had until now."""
        owner = self._owners.pop(name)
        if not said_goodbye:
            self._reservations[name] = _Reservation(owner, frozenset(addresses), now_ms + RETURN_MS)

    def has_rival(self, name: str) -> bool:
        """Return whether another group has tried to register under a name within `RIVAL_MS`."""
        return name in self._rivals

    def give_to_rival(self, name: str, now_ms: int) -> None:
        """Keep a name for its rival, for `GIVEN_MS`. The nodes of the former owner must be gone."""
        rival = self._rivals.pop(name)
        self._reservations[name] = _Reservation(rival.owner, frozenset((rival.address,)), now_ms + GIVEN_MS)

    def forget(self, name: str) -> None:
        """Stop keeping a name, so that any group can take it."""
        self._reservations.pop(name, None)

    def expire(self, now_ms: int) -> None:
        """Forget rivals, and stop keeping names, once their time has passed."""
        for name in [name for name, rival in self._rivals.items() if now_ms - rival.seen_ms > RIVAL_MS]:
            del self._rivals[name]
        for name in list(self._reservations):
            self._find_reservation(name, now_ms)

    def refused(self) -> dict[str, RefusedGroup]:
        """Return the rivals by the name that they tried to register under."""
        return {
            name: RefusedGroup(rival.owner.cluster, rival.address, rival.owner.identity)
            for name, rival in self._rivals.items()
        }


def _is_same_place(header: RegisterBrokerHeader, owner: Owner, addresses: Collection[str]) -> bool:
    """Return whether a registration comes from an address of the owner, which may then describe itself anew.

    If the owner has only this address, its node may have been founded anew. If it has more, only the name of its
    cluster may have changed: owner or registration must be without an identity.
    """
    if header.broker_addr not in addresses:
        return False
    return len(addresses) == 1 or not (owner.identity and header.group_identity)
