"""Schedules of consumer offsets whose commits are delayed, passed on, overtaken, lost, or come back."""

from __future__ import annotations

from typing import Final, cast

from dledger_broker.features.offsets.requests import OffsetRequests
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_sim.brokers.clients import pull_fields
from dledger_sim.brokers.schedules.brokers import GROUP_NAME, TOPIC, Brokers, offset_fields
from dledger_sim.brokers.service import SimBroker
from dledger_sim.log.registers import leading

STANDSTILL_S: Final = 60.0


def commit_that_was_overtaken() -> None:
    """Check that a commit that a slow link delays does not undo a later commit of its client.

    1. A consumer commits 1 through a follower whose link to the leader is slow.
    2. It commits 2 at the leader.
    3. The first commit arrives.
    """
    brokers = Brokers()
    leader, follower = brokers.leader, brokers.follower
    at_leader, at_follower = brokers.connect(leader), brokers.connect(follower)
    brokers.found_group(at_leader)
    brokers.group.network.slow(follower, leader, 1.0)
    brokers.ask(at_follower, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(1))
    brokers.run(0.1)
    second = brokers.ask(at_leader, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2))
    brokers.run(4.0)
    assert second[0] is not None
    assert second[0].code == ResponseCode.SUCCESS
    assert brokers.workload.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def commit_that_missed_two_leaders() -> None:
    """Check that a commit that waited for a leader does not undo a commit that a previous leader took in between.

    1. A consumer commits 1 through a follower whose link to the leader is slow.
    2. It commits 2 at the leader, which then hands over.
    3. The first commit arrives at the new leader, which knows of 2 from the log only.
    """
    brokers = Brokers()
    leader = brokers.leader
    follower, heir = (name for name in brokers.group.nodes if name != leader)
    at_leader, at_follower = brokers.connect(leader), brokers.connect(follower)
    brokers.found_group(at_leader)
    brokers.group.network.slow(follower, leader, 0.8)
    brokers.ask(at_follower, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(1))
    brokers.ask(at_leader, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2))
    brokers.run(0.4)
    assert brokers.workload.truth.committed[GROUP_NAME, TOPIC, 0] == 2
    life = leading(brokers.group)
    life.replica.transfer(life.replica.engine.membership.find(heir))
    brokers.run(4.0)
    assert brokers.leader == heir
    assert brokers.workload.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def commit_in_a_node_that_stood_still() -> None:
    """Check that a commit that lay for a minute in a paused node does not undo a later commit, under any leader.

    1. A follower is stopped (SIGSTOP), and a consumer commits 1 there.
    2. It commits 2 at the leader, which soon hands over.
    3. The follower wakes after a minute, and passes the first commit on to the new leader, which knows of 2 from the
      log only.
    """
    brokers = Brokers()
    leader = brokers.leader
    follower, heir = (name for name in brokers.group.nodes if name != leader)
    at_leader, at_follower = brokers.connect(leader), brokers.connect(follower)
    brokers.found_group(at_leader)
    stopped = brokers.group.nodes[follower].life
    assert stopped is not None
    stopped.environment.pause(brokers.scheduler.now + STANDSTILL_S)
    counters = cast(SimBroker, stopped.service).counters
    forwarded = counters.forwarded
    brokers.ask(at_follower, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(1))
    brokers.ask(at_leader, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2))
    brokers.run(1.0)
    assert brokers.workload.truth.committed[GROUP_NAME, TOPIC, 0] == 2
    life = leading(brokers.group)
    life.replica.transfer(life.replica.engine.membership.find(heir))
    brokers.run(STANDSTILL_S + 4.0)
    assert brokers.leader == heir
    assert counters.forwarded > forwarded
    assert brokers.workload.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def commit_behind_a_refused_one() -> None:
    """Check that a request that was sent after a refused request does not overtake it.

    1. A leader begins to hand over to a node that it cannot reach.
    2. A consumer commits 1 through a follower whose link to the leader is slow, and then 2: both are under way.
    3. The first commit arrives and is refused; the handover is given up; the second commit arrives.
    """
    brokers = Brokers()
    leader, group = brokers.leader, brokers.group
    follower, target = (name for name in group.nodes if name != leader)
    brokers.found_group(brokers.connect(leader))
    at_follower = brokers.connect(follower)
    group.network.slow(follower, leader, 0.4)
    group.network.block(leader, target)
    life = leading(group)
    member = life.replica.engine.membership.find(target)
    assert member is not None
    assert life.replica.transfer(member)
    gives_up_s = life.node.config.election_max_ms / 1000
    brokers.run(gives_up_s - 0.5)
    first = brokers.ask(at_follower, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(1))
    brokers.run(0.3)
    second = brokers.ask(at_follower, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2))
    brokers.run(0.2)
    assert cast(SimBroker, life.service).counters.forward_refusals == 1
    assert life.replica.is_ready
    brokers.run(3.0)
    assert [answer.code for answer in (*first, *second) if answer] == [ResponseCode.SUCCESS, ResponseCode.SUCCESS]
    assert brokers.workload.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def commit_that_came_back() -> None:
    """Check that a commit that a deposed leader returns does not undo a later commit that the next leader itself took.

    1. A consumer commits 1 through a follower whose link to the leader is slow.
    2. The follower becomes leader, and the consumer commits 2 there, over another connection.
    3. The first commit arrives at the old leader, which refuses it: it comes back to the former follower.
    """
    brokers = Brokers()
    leader, follower = brokers.leader, brokers.follower
    brokers.found_group(brokers.connect(leader))
    brokers.group.network.slow(follower, leader, 0.8)
    brokers.ask(brokers.connect(follower), RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(1))
    brokers.run(0.1)
    life = leading(brokers.group)
    life.replica.transfer(life.replica.engine.membership.find(follower))
    brokers.run(0.4)
    assert brokers.leader == follower
    second = brokers.ask(brokers.connect(follower), RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2))
    brokers.run(4.0)
    assert second[0] is not None
    assert second[0].code == ResponseCode.SUCCESS
    assert brokers.workload.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def commit_behind_one_that_is_away() -> None:
    """Check that a new leader handles no request of a channel before an earlier request that another node still has.

    1. A consumer commits 1 through a follower whose link to the leader is slow.
    2. The follower becomes leader, and the consumer commits 2 over the same connection.
    3. The first commit arrives at the old leader, which refuses it: it comes back to the former follower.
    """
    brokers = Brokers()
    leader, follower = brokers.leader, brokers.follower
    brokers.found_group(brokers.connect(leader))
    brokers.group.network.slow(follower, leader, 0.8)
    connection = brokers.connect(follower)
    first = brokers.ask(connection, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(1))
    brokers.run(0.1)
    life = leading(brokers.group)
    life.replica.transfer(life.replica.engine.membership.find(follower))
    brokers.run(0.4)
    assert brokers.leader == follower
    second = brokers.ask(connection, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2))
    brokers.run(4.0)
    assert [answer.code for answer in (*first, *second) if answer] == [ResponseCode.SUCCESS, ResponseCode.SUCCESS]
    assert brokers.workload.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def pull_behind_a_later_commit() -> None:
    """Check that a pull that is passed on after a later commit of its connection does not undo that commit.

    1. The leader is stopped (SIGSTOP) and cut off; another node leads.
    2. The old leader wakes and still believes that it leads. A consumer pulls there, behind the end, and commits 1 by
      the pull. The answer waits until the others have confirmed the leader.
    3. The old leader begins to hand over. The consumer commits 2 over the same connection, which waits for a leader.
    4. The others are heard again. The second commit is passed on, and then the pull.
    """
    brokers = Brokers()
    group, old = brokers.group, leading(brokers.group)
    connection = brokers.connect(old.node.name)
    brokers.found_group(connection)
    links = [(a, b) for a in group.nodes for b in group.nodes if a != b and old.node.name in {a, b}]
    for link in links:
        group.network.block(*link)
    old.environment.pause(brokers.scheduler.now + 4.0)
    brokers.run(3.9)
    ext = {"consumerGroup": GROUP_NAME, "topic": TOPIC, "queueId": "0"} | pull_fields(99, 8, commits=True)
    brokers.ask(connection, RequestCode.PULL_MESSAGE, ext | {"commitOffset": "1"})
    brokers.run(0.11)
    assert old.replica.is_ready
    heir = next(name for name in group.nodes if name != old.node.name)
    assert old.replica.transfer(old.replica.engine.membership.find(heir))
    second = brokers.ask(connection, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2))
    brokers.run(0.01)
    for link in links:
        group.network.unblock(*link)
    brokers.run(4.0)
    assert brokers.leader != old.node.name
    assert [answer.code for answer in second if answer] == [ResponseCode.SUCCESS]
    assert brokers.workload.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def overtaken_commit_and_a_killed_leader() -> None:
    """Check that an overtaken commit is acknowledged only once the commit that overtook it is in the log.

    1. A consumer commits 1 through a follower whose link to the leader is slow.
    2. It commits 2 at the leader, which collects commits for a while.
    3. The first commit arrives in between. The leader is killed before it proposes the second on its own.
    """
    brokers = Brokers()
    leader, follower = brokers.leader, brokers.follower
    at_leader = brokers.connect(leader)
    brokers.found_group(at_leader)
    brokers.group.network.slow(follower, leader, 0.5)
    first = brokers.ask(brokers.connect(follower), RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(1))
    brokers.run(0.4)
    brokers.ask(at_leader, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2))
    brokers.run(0.15)
    brokers.group.kill(leader)
    brokers.run(3.0)
    assert brokers.leader != leader
    assert [answer.code for answer in first if answer] == [ResponseCode.SUCCESS]
    assert brokers.workload.truth.committed.get((GROUP_NAME, TOPIC, 0), -1) >= 1


def commit_whose_overtaker_was_lost() -> None:
    """Check that an overtaken commit is taken if the commit that overtook it was lost.

    No equal or higher offset is committed or on its way.

    1. A consumer commits 1 through a follower whose link to the leader is slow.
    2. It commits 2 at the leader, which collects commits, and asks for no answer.
    3. The disk is full when the leader proposes its collected commits: they are dropped.
    4. The disk has room again, and the first commit arrives.
    """
    brokers = Brokers()
    leader, follower = brokers.leader, brokers.follower
    at_leader = brokers.connect(leader)
    brokers.found_group(at_leader)
    brokers.group.network.slow(follower, leader, 1.3)
    first = brokers.ask(brokers.connect(follower), RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(1))
    brokers.run(0.05)
    brokers.ask(at_leader, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2), oneway=True)
    brokers.run(0.05)
    brokers.fill_disk_for(0.4)
    brokers.run(4.0)
    assert brokers.leader == leader
    assert [answer.code for answer in first if answer] == [ResponseCode.SUCCESS]
    assert brokers.workload.truth.committed[GROUP_NAME, TOPIC, 0] == 1


def commit_of_which_only_a_lower_one_is_left() -> None:
    """Check that a commit is taken if the commit that overtook it was lost, and only a lower commit is on its way.

    1. The disks of all followers are slow. A consumer commits 1 at the leader, which proposes it.
    2. It commits 2 through a follower, over a slow link, and 3 at the leader, which collects commits.
    3. The disk is full when the leader proposes 3, which is dropped. Commit 1 is still on its way.
    4. The disk has room again, and 2 arrives before 1 is applied.
    """
    brokers = Brokers()
    leader, follower = brokers.leader, brokers.follower
    at_leader = brokers.connect(leader)
    brokers.found_group(at_leader)
    for name in brokers.group.nodes:
        if name != leader:
            brokers.slow_down_disk(name)
    brokers.group.network.slow(follower, leader, 1.3)
    brokers.ask(at_leader, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(1))
    brokers.run(0.3)
    brokers.ask(brokers.connect(follower), RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2))
    brokers.run(0.05)
    brokers.ask(at_leader, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(3), oneway=True)
    brokers.run(0.05)
    brokers.fill_disk_for(0.4)
    brokers.run(20.0)
    assert brokers.leader == leader
    assert brokers.workload.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def commit_that_a_handover_takes_along() -> None:
    """Check that a handover does not lose a one-way commit that the leader still collects.

    Its consumer is not told of the handover.

    1. A consumer commits 2 at the leader, which collects commits, and asks for no answer.
    2. The leader hands over before it would have proposed the commit on its own.

    Seeds hardly meet this: the commit must come within the 0.2 s before a handover, and no later commit may replace it.
    """
    brokers = Brokers()
    leader, heir = brokers.leader, brokers.follower
    at_leader = brokers.connect(leader)
    brokers.found_group(at_leader)
    brokers.ask(at_leader, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2), oneway=True)
    brokers.run(0.05)
    brokers.hand_over(heir)
    brokers.run(3.0)
    assert brokers.leader == heir
    assert brokers.workload.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def commit_that_a_deposed_leader_had_taken() -> None:
    """Check that the commits that a leader collects end with its term.

    Proposed in a later term, they would undo newer commits of others.

    1. A consumer commits 2 at the leader, which collects commits for 6 s, and asks for no answer.
    2. The leader is cut off, and another node leads, at which the consumer commits 3.
    3. The first leader is back, and leads again before the 6 s are over.

    No seed meets this: leaders collect for 0.2 s, and another node does not win and lose the leadership within that.
    """
    brokers = Brokers()
    group, first = brokers.group, brokers.leader
    brokers.found_group(brokers.connect(first))
    commits = cast(SimBroker, leading(group).service).service.parts[OffsetRequests].commits
    commits.buffer._delay_s = 6.0  # noqa: SLF001 - longer than an election takes
    brokers.ask(brokers.connect(first), RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2), oneway=True)
    brokers.run(0.05)
    links = [link for name in group.nodes if name != first for link in ((first, name), (name, first))]
    for link in links:
        group.network.block(*link)
    brokers.run(2.0)
    brokers.ask(brokers.connect(brokers.leader), RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(3))
    brokers.run(1.0)
    for link in links:
        group.network.unblock(*link)
    brokers.run(1.0)
    brokers.hand_over(first)
    brokers.run(0.5)
    assert brokers.leader == first
    brokers.run(3.0)
    assert brokers.workload.truth.committed[GROUP_NAME, TOPIC, 0] == 3


def commit_in_a_leader_that_stops() -> None:
    """Check that a leader that is stopped at once does not lose a one-way commit that it still collects.

    1. A consumer commits 2 at the leader, which collects commits, and asks for no answer.
    2. The leader is stopped (SIGINT) without a handover.

    Seeds hardly meet this: the commit must come within the 0.2 s before a stop, and no later commit may replace it.
    """
    brokers = Brokers()
    leader = brokers.leader
    at_leader = brokers.connect(leader)
    brokers.found_group(at_leader)
    brokers.ask(at_leader, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2), oneway=True)
    brokers.run(0.05)
    brokers.group.stop(leader)
    brokers.run(4.0)
    assert brokers.leader != leader
    assert brokers.workload.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def commit_that_comes_to_a_stopping_leader() -> None:
    """Check that a one-way commit is not lost if it comes while a stopping leader waits for earlier commits.

    1. A consumer commits 1 at the leader, and asks for no answer.
    2. The leader is stopped (SIGINT). The disks of the others are slow, so it waits until they have that commit.
    3. The consumer commits 2 in between.
    """
    brokers = Brokers()
    leader = brokers.leader
    at_leader = brokers.connect(leader)
    brokers.found_group(at_leader)
    for name in brokers.group.nodes:
        if name != leader:
            brokers.slow_down_disk(name, 0.3)
    brokers.ask(at_leader, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(1), oneway=True)
    brokers.run(0.05)
    brokers.group.stop(leader)
    brokers.run(0.2)
    brokers.ask(at_leader, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2), oneway=True)
    brokers.run(4.0)
    assert brokers.group.nodes[leader].life is None
    assert brokers.workload.truth.committed[GROUP_NAME, TOPIC, 0] == 2


def commit_passed_on_to_a_leader_that_closes_files() -> None:
    """Check that a one-way commit that a follower passes on to an ending leader is not lost.

    It must reach this leader's log or the next leader: its consumer talks to the follower, and sees no connection end.

    1. The leader is stopped (SIGINT) and has written down everything that it collected. Its disk is slow, and it closes
      files.
    2. A consumer commits 2 at a follower, which passes the commit on.

    Seeds hardly meet this: the commit must arrive in the milliseconds between the last write and the end.
    """
    brokers = Brokers()
    leader = brokers.leader
    at_leader, at_follower = brokers.connect(leader), brokers.connect(brokers.follower)
    brokers.found_group(at_leader)
    buffer = cast(SimBroker, leading(brokers.group).service).service.parts[OffsetRequests].commits.buffer
    buffer._delay_s = 6.0  # noqa: SLF001 - longer than closing files takes
    brokers.slow_down_disk(leader, 0.1)
    brokers.group.stop(leader)
    brokers.run(0.03)
    brokers.ask(at_follower, RequestCode.UPDATE_CONSUMER_OFFSET, offset_fields(2), oneway=True)
    brokers.run(0.05)
    assert buffer.collected
    brokers.run(4.0)
    assert brokers.group.nodes[leader].life is None
    assert brokers.workload.truth.committed[GROUP_NAME, TOPIC, 0] == 2


COMMIT_SCHEDULES: Final = (
    commit_that_was_overtaken,
    commit_that_missed_two_leaders,
    commit_in_a_node_that_stood_still,
    commit_behind_a_refused_one,
    commit_that_came_back,
    commit_behind_one_that_is_away,
    pull_behind_a_later_commit,
    overtaken_commit_and_a_killed_leader,
    commit_whose_overtaker_was_lost,
    commit_of_which_only_a_lower_one_is_left,
    commit_that_a_handover_takes_along,
    commit_that_a_deposed_leader_had_taken,
    commit_in_a_leader_that_stops,
    commit_that_comes_to_a_stopping_leader,
    commit_passed_on_to_a_leader_that_closes_files,
)
