"""Seen from outside, no success answer leaves the leader before two nodes have its bytes on disk."""

import os
import shutil
import uuid
from pathlib import Path

import pytest
from traced import STRACE, Proof, append, proofs

from dledger_chaos.subjects.group import SubjectGroup

VALUES = 300
IN_FLIGHT = 16

pytestmark = pytest.mark.skipif(
    shutil.which("strace") is None, reason="strace is not installed (Debian and Ubuntu: apt install strace)"
)

# This node counts written entries as durable, and syncs them a second later: busy cores delay answers too.
TELLS_BEFORE_IT_SYNCS = """
from functools import partial

from dledger.replica.storing.flusher import Flusher

written = Flusher.note_written


def tell_first(self):
    self._completions.add(self._report_written)
    self._environment.call_later(1.0, partial(written, self))


Flusher.note_written = tell_first
"""


async def traced(directory: Path, environment: dict[str, str]) -> dict[str, Proof]:
    """Run a group under load, and return the proof of every acknowledged value from its system calls."""
    traces = directory / "traces"
    traces.mkdir()
    values = [f"v{number:05}-{uuid.uuid4().hex[:8]}" for number in range(VALUES)]
    group = SubjectGroup("register_node", directory, environments=dict.fromkeys("abc", environment))
    try:
        for node_id in group.node_ids:
            group[node_id].start(*STRACE, "-o", str(traces / node_id))
        leader = await group.leader(voters=3)
        acknowledged = await append(group.client_addresses[leader], values, in_flight=IN_FLIGHT)
        await group.leader(voters=3)  # a node that answers has ended all earlier calls, and strace has noted them
    finally:
        group.stop()
    found = proofs(traces, group, leader)
    assert acknowledged == found.keys(), "every answer that the client got is in the leader's trace"
    assert len(acknowledged) > VALUES // 2
    return found


async def test_every_acknowledged_message_was_synced_by_two_nodes_before(tmp_path: Path) -> None:
    found = await traced(tmp_path, {})
    early = {value: proof for value, proof in found.items() if len(proof.synced_before) < 2}
    assert not early


async def test_a_node_that_acknowledges_before_its_sync_is_detected(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(TELLS_BEFORE_IT_SYNCS)
    path = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    found = await traced(tmp_path, {"PYTHONPATH": path})
    early = {value: proof for value, proof in found.items() if len(proof.synced_before) < 2}
    assert len(early) > VALUES // 2
