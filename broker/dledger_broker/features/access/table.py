"""Table that records whether access control and TLS are on for the whole broker group, whatever a node's file says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dledger.statemachine import CommittedEntry
from dledger_broker.kernel.commands import Command, Kinds
from dledger_broker.kernel.digest import MASK, item_hash
from dledger_broker.kernel.tables import Changes, Frame, Table, TableKey

NAME: Final = "access"


class TurnAccessOn(msgspec.Struct, frozen=True):
    """Command after which every node judges requests. A node without a key file refuses all requests.

    A member advertises this kind while it has a key file and its configuration turns access control on.
    """


class TurnAccessOff(msgspec.Struct, frozen=True):
    """Command after which the configuration of each node decides again.

    A member advertises this kind while its configuration says `access_control = "off"`.
    """


class TurnTlsOn(msgspec.Struct, frozen=True):
    """Command after which a node starts only if its ports for clients speak TLS.

    A member advertises this kind while its configuration says `tls = "enforcing"`.
    """


class TurnPeerTlsOn(msgspec.Struct, frozen=True):
    """Command after which a node starts only if it speaks TLS to the other nodes.

    A member advertises this kind while it advertises `TurnTlsOn` and its configuration has `tls_peer_ca_file`.
    """


class TurnTlsOff(msgspec.Struct, frozen=True):
    """Command after which the nodes' configuration counts again, for clients' ports and between nodes.

    A member advertises this kind while its configuration file says `tls = "off"`, and has no `tls_peer_ca_file`.
    """


TURN_ON: Final = 66
TURN_OFF: Final = 67
TURN_TLS_ON: Final = 68
TURN_PEER_TLS_ON: Final = 69
TURN_TLS_OFF: Final = 70
ACCESS_COMMANDS: Final[Kinds] = {
    TURN_ON: TurnAccessOn,
    TURN_OFF: TurnAccessOff,
    TURN_TLS_ON: TurnTlsOn,
    TURN_PEER_TLS_ON: TurnPeerTlsOn,
    TURN_TLS_OFF: TurnTlsOff,
}


class AccessFrame(msgspec.Struct, frozen=True, tag="access"):
    """Frame with the end position of the entry that turned access control on."""

    since: int


class TlsFrame(msgspec.Struct, frozen=True, tag="tls"):
    """The ends of the entries that turned TLS on: at the ports for clients, and between nodes."""

    since: int
    peers_since: int


class AccessTable(Table):
    """Table with the state of access control and TLS.

    `since` is the end position of the entry that turned access control on, 0 while access control is off.

    `tls_since` and `peer_tls_since` are the same for TLS at the ports for clients, and between nodes.
    """

    __slots__ = ("peer_tls_since", "since", "tls_since")

    frames = (AccessFrame, TlsFrame)

    def __init__(self) -> None:
        self.since = 0
        self.tls_since = 0
        self.peer_tls_since = 0

    @property
    def digest(self) -> int:
        facts = (("access", self.since), ("tls", self.tls_since), ("peer tls", self.peer_tls_since))
        return sum(item_hash(name, since) for name, since in facts if since) & MASK

    def apply(self, command: Command, entry: CommittedEntry, changes: Changes) -> None:
        match command:
            case TurnAccessOn():
                self.since = self.since or entry.end
            case TurnAccessOff():
                self.since = 0
            case TurnTlsOn():
                self.tls_since = self.tls_since or entry.end
            case TurnPeerTlsOn():
                self.peer_tls_since = self.peer_tls_since or entry.end
            case TurnTlsOff():
                self.tls_since = self.peer_tls_since = 0
        if isinstance(command, (TurnTlsOn, TurnPeerTlsOn, TurnTlsOff)):
            changes.members_changed = True

    def capture_frames(self, now: float) -> Mapping[str, Iterable[Frame]]:
        _ = now
        access = (AccessFrame(self.since),) if self.since else ()
        tls = (TlsFrame(self.tls_since, self.peer_tls_since),) if self.tls_since or self.peer_tls_since else ()
        return {name: frames for name, frames in (("access", access), ("tls", tls)) if frames}

    def restore_frame(self, frame: Frame, now: float) -> None:
        _ = now
        match frame:
            case AccessFrame(since=since):
                self.since = since
            case TlsFrame(since=since, peers_since=peers_since):
                self.tls_since, self.peer_tls_since = since, peers_since


ACCESS: Final = TableKey(NAME, AccessTable)
