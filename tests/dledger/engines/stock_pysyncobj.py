"""A stock `SyncObj` on a wire in memory, for tests of its interface and of its faults."""

from random import Random
from typing import Any

from pysyncobj.config import SyncObjConf
from pysyncobj.journal import MemoryJournal
from pysyncobj.node import Node
from pysyncobj.transport import Transport

from dledger.engines.pysyncobj.library import private_module

REGULAR = b"\x00"
NO_OP = b"\x01"


class _Wire(Transport):
    def __init__(self) -> None:
        super().__init__(None, None, [])
        self.sent: list[tuple[str, dict[str, Any]]] = []

    def send(self, node: Node, message: dict[str, Any]) -> bool:
        self.sent.append((node.id, message))
        return True


class _NoPoller:
    def poll(self, _timeout: float) -> None: ...


class Stock:
    """Replica `a` of a group. The test plays the other members."""

    def __init__(self, *others: str, batch_bytes: int = 1 << 16) -> None:
        self.now = 100.0
        self.journal = MemoryJournal()
        self.wire = _Wire()
        module = private_module()
        module.__dict__.update(
            monotonicTime=lambda: self.now,
            random=Random(1),
            createJournal=lambda _name: self.journal,
            createPoller=lambda _kind: _NoPoller(),
        )
        conf = SyncObjConf(
            autoTick=False, dynamicMembershipChange=False, appendEntriesBatchSizeBytes=batch_bytes, useFork=False
        )
        self.nodes = {name: Node(name) for name in others}
        self.object: Any = module.SyncObj(Node("a"), list(self.nodes.values()), conf=conf, transport=self.wire)
        for node in self.nodes.values():
            self.wire._onNodeConnected(node)

    def hear(self, sender: str, **fields: object) -> list[dict[str, Any]]:
        """Deliver a message, and return the immediate answers to its sender."""
        self.wire.sent.clear()
        self.wire._onMessageReceived(self.nodes[sender], fields)
        return [message for to, message in self.wire.sent if to == sender]

    def follow(self, leader: str, term: int, prev: tuple[int, int], *entries: tuple[int, int], commit: int = 1) -> Any:
        """Deliver entries (index, term) that follow the entry `prev`, and return the answer."""
        said = self.hear(
            leader,
            type="append_entries",
            term=term,
            prevLogIdx=prev[0],
            prevLogTerm=prev[1],
            entries=[(REGULAR, index, of) for index, of in entries],
            commit_index=commit,
        )
        return said[-1]

    def tick(self, after_s: float = 0.0) -> list[tuple[str, dict[str, Any]]]:
        """Let time pass, and return the messages that the replica sends."""
        self.now += after_s
        self.wire.sent.clear()
        self.object.doTick(0.0)
        return list(self.wire.sent)

    def lead(self) -> None:
        """Elect the replica."""
        self.tick(10.0)
        term = self.object.raftCurrentTerm
        for name in list(self.nodes)[: (len(self.nodes) + 1) // 2]:
            self.hear(name, type="response_vote", term=term)
        assert self.object._isLeader()

    def internal(self, name: str) -> Any:
        """Return the value of a private name of `SyncObj`."""
        return getattr(self.object, f"_SyncObj{name}" if name.startswith("__") else name)

    def set_internal(self, name: str, value: object) -> None:
        """Set the value of a private name of `SyncObj`."""
        setattr(self.object, f"_SyncObj{name}", value)

    @property
    def log(self) -> list[tuple[int, int]]:
        """Return (index, term) of all entries."""
        return [(index, term) for _, index, term in self.journal[:]]
