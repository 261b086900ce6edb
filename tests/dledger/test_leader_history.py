"""History of leaders: a node says since when somebody leads, and why there is another leader."""

from pathlib import Path

from node_group import Group, until

from dledger.replica.leader_history import MAX_CHANGES, LeaderHistory
from dledger.types import ReplicaId, Role

HERE, OTHER = ReplicaId("n0", "1"), ReplicaId("n1", "2")


class Clock:
    """Environment with a wall clock only."""

    ms = 1_000

    def wall_ms(self) -> int:
        return self.ms


def history() -> LeaderHistory:
    return LeaderHistory("n0", Clock())


def lines(leaders: LeaderHistory) -> list[tuple[int, str | None, str]]:
    return [(change.term, change.leader, change.reason) for change in leaders.changes()]


def elect(leaders: LeaderHistory, term: int, *, asked: bool = False) -> None:
    if not asked:
        leaders.note_role(Role.PRE_CANDIDATE, term - 1, None, asked=False)
    leaders.note_role(Role.CANDIDATE, term, None, asked=asked)
    leaders.note_role(Role.LEADER, term, HERE, asked=asked)


def test_a_leader_says_why_it_stood_for_election() -> None:
    leaders = history()
    elect(leaders, 1)
    leaders.note_role(Role.FOLLOWER, 2, OTHER, asked=False)
    elect(leaders, 3)
    leaders.note_role(Role.FOLLOWER, 4, OTHER, asked=False)
    elect(leaders, 5, asked=True)
    assert [reason for _, leader, reason in lines(leaders) if leader == "n0"] == [
        "elected by a majority: it has heard from no leader",
        "elected by a majority: it has not heard from n1 for an election timeout",
        "elected by a majority: n1 handed over to it",
    ]


def test_a_former_leader_says_why_it_stopped() -> None:
    leaders = history()
    for term, handed_over, next_term in ((1, True, 2), (3, False, 4), (5, False, 5)):
        elect(leaders, term)
        if handed_over:
            leaders.note_handover(OTHER, "it stops")
        leaders.note_role(Role.FOLLOWER, next_term, None, asked=False)
    ends = [reason for _, leader, reason in lines(leaders) if leader is None and "stands" not in reason]
    assert ends == [
        "n0 handed over to n1: it stops",
        "n0 was deposed: others began term 4",
        "n0 gave up: a majority did not answer it, or it could not write",
    ]


def test_elections_that_nobody_wins_are_one_line_for_each_term_and_the_history_is_bounded() -> None:
    leaders = history()
    for _ in range(5):
        leaders.note_role(Role.PRE_CANDIDATE, 7, None, asked=False)
        leaders.note_role(Role.FOLLOWER, 7, None, asked=False)
    assert lines(leaders) == [(7, None, "n0 stands for election: it has heard from no leader")]
    for term in range(8, 8 + 2 * MAX_CHANGES):
        leaders.note_role(Role.FOLLOWER, term, OTHER, asked=False)
    assert len(leaders.changes()) == MAX_CHANGES
    assert leaders.changes()[-1].term == 7 + 2 * MAX_CHANGES


async def test_nodes_tell_of_a_handover_and_of_a_leader_that_is_gone(tmp_path: Path) -> None:
    async with Group(tmp_path) as group:
        first = await group.leader()
        to = next(node_id for node_id in group.ids if node_id != first.config.node_id)
        assert await first.transfer_leadership(to)
        await until(lambda: group.nodes[to].is_ready)
        change = group.nodes[to].leader_changes()[-1]
        assert (change.leader, change.term) == (to, group.nodes[to].term)
        assert change.reason.endswith(f"{first.config.node_id} handed over to it")
        reasons = [one.reason for one in first.leader_changes() if one.leader != first.config.node_id]
        assert f"{first.config.node_id} handed over to {to}: it was asked to" in reasons
        await group.nodes.pop(to).stop()
        third = await group.leader()
        assert third.leader_changes()[-1].reason.endswith(f"it has not heard from {to} for an election timeout")
