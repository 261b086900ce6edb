"""The replicated log alone, without a broker: a dictionary that three nodes agree on, and that outlives one of them.

Run it with `python examples/replicated_log.py`; it needs only the base install.
"""

import asyncio
import json
import logging
import socket
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from dledger import CommittedEntry, Leadership, Node, NodeConfig, SnapshotMeta
from dledger.errors import LogFullError


class Dictionary:
    """State machine of a node.

    Every node applies the same entries in the same order, so all have the same dictionary.
    """

    def __init__(self) -> None:
        self.items: dict[str, int] = {}

    def apply(self, entries: Sequence[CommittedEntry]) -> None:
        """Apply entries. Units of one turn of the event loop share an entry, so each unit is a line of JSON."""
        for entry in entries:
            for line in bytes(entry.records).splitlines():
                self.items.update(json.loads(line))

    def rebuild(self, entries: Sequence[CommittedEntry]) -> None:
        """Do nothing: there are no views beside the dictionary."""

    def dropped(self, contexts: Sequence[object], full: LogFullError | None) -> None:
        """Do nothing: only `Node.stage` has contexts. `Node.append` raises an error by itself."""

    def on_leadership(self, leadership: Leadership) -> None:
        """Do nothing: the dictionary is the same under every leader."""

    def snapshot(self) -> Iterator[bytes]:
        """Return a copy of the present state, so that the log before it can be trimmed."""
        return iter([json.dumps(self.items).encode()])

    def decode(self, meta: SnapshotMeta | None, chunks: Iterable[bytes]) -> Callable[[], int]:
        """Read a snapshot, or nothing, on a worker thread. The returned function is called to continue with it."""
        items = json.loads(b"".join(chunks) or b"{}")

        def restore() -> int:
            self.items = items
            return meta.position if meta is not None else 0

        return restore

    def digest(self) -> int:
        """Return a digest of the state. Nodes compare it now and then; a node that differs from a majority stops."""
        return sum(value for value in self.items.values())


def free_addresses(node_ids: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Return an address on this machine for each node."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in node_ids]
    addresses = {node_id: each.getsockname() for node_id, each in zip(node_ids, sockets, strict=True)}
    for each in sockets:
        each.close()
    return addresses


async def leader_of(nodes: Iterable[Node]) -> Node:
    """Return the node that takes appends, once there is one and all three nodes are voters."""
    while True:
        for node in nodes:
            if node.is_ready and len(node.membership.voters) == 3:
                return node
        await asyncio.sleep(0.01)


async def main() -> None:
    """Found a group, write, lose the leader, write again."""
    logging.basicConfig(level=logging.ERROR)  # links warn while their peers do not listen yet
    addresses = free_addresses(["a", "b", "c"])
    with tempfile.TemporaryDirectory() as directory:
        machines = {node_id: Dictionary() for node_id in addresses}
        nodes = {
            node_id: Node(
                NodeConfig(
                    cluster="example",
                    group="dictionary",
                    node_id=node_id,
                    data_dir=Path(directory, node_id),
                    secret=b"what the nodes know each other by",
                    bind=addresses[node_id],
                    peers={other: address for other, address in addresses.items() if other != node_id},
                    segment_bytes=1 << 20,
                    # One node founds the group; the others join as learners and become voters once they caught up.
                    bootstrap=node_id == "a",
                    bootstrap_alone=True,  # the others start later, so they cannot be asked whether there is a group
                ),
                machines[node_id],
            )
            for node_id in addresses
        }
        async with nodes["a"], nodes["b"], nodes["c"]:
            leader = await leader_of(nodes.values())
            print(f"{leader.config.node_id} leads {sorted(leader.status().voters)}")

            # An append returns once a majority has it on disk and this node has applied it.
            position = await leader.append(b'{"answer": 42}\n')
            print(f"at byte {position} of the log: {(await leader.read(position, 14)).decode()}")

            await leader.stop()
            rest = [node for node in nodes.values() if node is not leader]
            successor = await leader_of(rest)
            print(f"{leader.config.node_id} stopped, {successor.config.node_id} leads in term {successor.term}")

            await successor.append(b'{"question": 6}\n')
            # The state that this node has applied is not older than anything acknowledged before this call.
            await successor.read_barrier()
            print(machines[successor.config.node_id].items)


if __name__ == "__main__":
    asyncio.run(main())
