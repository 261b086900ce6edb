"""A leader whose log begins later than another voter's hands over to that voter, or leads if that voter is gone."""

from pathlib import Path

import pytest
from node_group import Group, until

from dledger.replica.upkeep import members


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand over soon, and retry soon if a busy machine let the first handover fail."""
    monkeypatch.setattr(members, "MIN_ADVANTAGE_S", 0.2)
    monkeypatch.setattr(members, "RETRY_INTERVAL_S", 1.0)


async def test_a_leader_with_a_shorter_log_hands_over_to_a_node_with_more(tmp_path: Path):
    async with Group(tmp_path) as group:
        await group.append(200)
        await group.settled()
        leader = await group.leader()
        later = [node_id for node_id in group.ids if node_id != leader.config.node_id]
        for node_id in later:
            node = group.nodes[node_id]
            await until(lambda node=node: node.trim_candidates(), "a snapshot")
            node.replica._taker.trim(node.trim_candidates()[0])
            first_segment = group.home(node_id) / "commitlog" / f"{0:020d}"
            await until(lambda path=first_segment: not path.exists(), "a log that begins later, also after a restart")
            await group.stop(node_id)
            await group.start(node_id)
        first, earliest, term = group.nodes[later[0]], leader.config.node_id, leader.term

        def handed_over() -> bool:
            """Start a handover if none runs, and return whether it succeeded.

            The target has just started. If it is not ready, the handover ends by its time limit.
            """
            if leader.is_ready and leader.replica.engine.transfer_to is None:
                leader.replica.transfer(first.replica.me)
            return first.term > term

        await until(handed_over, "a handover to the one that has less")
        await until(lambda: leader.is_ready, "the one that has more leads again")
        await group.stop(earliest)
        successor = await group.leader()
        await group.append(5)
        assert successor.is_ready
        assert successor.config.node_id in later
