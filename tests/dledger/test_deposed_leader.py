"""Messages of a leader that stood still while another one was elected."""

from pathlib import Path

from node_group import SECRET, SEGMENT_BYTES, Journal, until

from dledger import Node, NodeConfig
from dledger.core.messages import Append
from dledger.format import HEADER_BYTES, seal
from dledger.types import EntryKind, ReplicaId


async def test_its_entries_may_lie_far_behind_what_this_log_holds(tmp_path: Path):
    """They follow an index that is committed here, with another entry: their place is none of this log's."""
    config = NodeConfig("c", "g", "n0", tmp_path, SECRET, segment_bytes=SEGMENT_BYTES, bootstrap=True)
    async with Node(config, Journal()) as node:
        await until(lambda: node.is_ready)
        await node.append(b"committed")
        engine = node.replica.engine
        entry = bytearray(HEADER_BYTES) + b"lost"
        term, index = engine.term - 1, engine.commit_index
        seal(entry, EntryKind.GROUP, index + 1, term, 10 * SEGMENT_BYTES + 4096, 0, 0)
        node.replica.on_message(ReplicaId("n1", "x"), Append(term, index, term, 0, count=1), bytes(entry))
        assert node.status().failure is None
        await node.append(b"after")
