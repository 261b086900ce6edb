"""Schedules written by hand for whole replicas on simulated disks, links and clocks."""

from collections.abc import Callable
from functools import partial
from itertools import permutations
from random import Random

from dledger.environment import BACKGROUND
from dledger.store.verify import verify
from dledger.types import Membership
from dledger_sim.log.faults import LoseFiles, LoseSegment
from dledger_sim.log.group import GroupSettings, SimGroup, SimNode
from dledger_sim.log.registers import serve_registers
from dledger_sim.log.run import compare
from dledger_sim.log.scheduler import Scheduler
from dledger_sim.log.workload import Workload, WorkloadSettings


def running_group(seed: int = 5, clients: int = 3) -> tuple[SimGroup, Workload]:
    """Return three nodes that have run for three seconds, the last second with clients."""
    scheduler = Scheduler()
    group = SimGroup(scheduler, Random(seed), GroupSettings(), serve_registers)
    workload = Workload(group, Random(seed + 1), WorkloadSettings(clients=clients))
    for name in group.nodes:
        group.start(name)
    scheduler.run_until(2.0)
    workload.start()
    scheduler.run_until(3.0)
    assert group.leader is not None
    return group, workload


def until(group: SimGroup, holds: Callable[[], bool], seconds: float) -> None:
    """Let time pass until a condition holds, for at most a number of seconds."""
    deadline = group.scheduler.now + seconds
    while not holds():
        assert group.scheduler.now < deadline, "it happens in time"
        group.scheduler.run_until(group.scheduler.now + 0.05)


def wiped_node() -> None:
    """Check that a node without its directory is a new incarnation.

    It votes only after it is caught up and promoted.
    """
    group, workload = running_group()
    leader = group.leader
    assert leader is not None
    victim = next(node for node in group.nodes.values() if node is not leader)
    assert victim.life is not None
    old = victim.life.replica_id
    group.wipe(victim.name)
    group.start(victim.name)
    life = victim.life
    assert life is not None
    assert life.replica_id.incarnation != old.incarnation
    assert not life.replica.engine.is_voter
    group.scheduler.run_until(group.scheduler.now + 5.0)
    assert not life.replica.engine.is_voter, "the old incarnation is replaced only after ten silent seconds"
    until(group, lambda: life.replica_id in _membership(group).learners, 10.0)
    until(group, lambda: life.replica_id in _membership(group).voters, 10.0)
    assert old not in _membership(group).members
    workload.stop()
    until(group, group.healthy, 5.0)


def lost_files() -> None:
    """Check that a directory that lost its log and votes, but not its name, does not pass for the same member."""
    group, workload = running_group()
    victim = next(node for node in group.nodes.values() if node is not group.leader)
    assert victim.life is not None
    old = victim.life.replica_id
    fault = LoseFiles(victim.name, 0.1)
    workload.stop()
    until(group, lambda: fault.inject(group), 5.0)
    fault.heal(group)
    assert victim.life is not None
    assert victim.life.replica_id != old
    assert victim.disk.exists("aside-0")
    until(group, group.healthy, 20.0)


def lost_segment() -> None:
    """Check that a node that lost its oldest segment gets it back from the others while they keep it."""
    group, workload = running_group(clients=6)
    victim = next(node for node in group.nodes.values() if node is not group.leader)
    assert victim.replica is not None
    store = victim.replica.store
    until(group, lambda: store.end_position > 2 * store.segment_bytes, 20.0)
    workload.stop()
    fault = LoseSegment(victim.name, 0.0, cut=False, duration_s=0.1)
    until(group, lambda: fault.inject(group), 5.0)
    fault.heal(group)
    until(group, group.healthy, 20.0)
    compare(group)


def _membership(group: SimGroup) -> Membership:
    leader = group.leader
    if leader is None or leader.replica is None:
        return Membership()
    return leader.replica.engine.membership


def slow_sync_hands_over() -> None:
    """Check that a leader whose fdatasync takes longer than a second hands over, and that the group continues."""
    group, workload = running_group()
    leader = group.leader
    assert leader is not None
    leader.sync_delay_s = 4.0
    until(group, lambda: group.leader is not None and group.leader is not leader, 6.0)
    acknowledged = workload.counts["ok"]
    group.scheduler.run_until(group.scheduler.now + 3.0)
    assert workload.counts["ok"] > acknowledged


def stopped_process_comes_back() -> None:
    """Check a SIGSTOP of the leader that exceeds all time-outs.

    Another node leads, and the old leader follows when it wakes.
    """
    group, workload = running_group()
    leader = group.leader
    assert leader is not None
    assert leader.life is not None
    leader.life.environment.pause(group.scheduler.now + 10.0)
    until(group, lambda: group.leader is not None and group.leader is not leader, 8.0)
    acknowledged = workload.counts["ok"]
    group.scheduler.run_until(group.scheduler.now + 10.0)
    assert workload.counts["ok"] > acknowledged
    workload.stop()
    until(group, group.healthy, 5.0)


def transfer_between_replicas() -> None:
    """Check ten transfers under load: each ends within a second, and the group is whole at the end."""
    group, workload = running_group(clients=6)
    for _ in range(10):
        leader = group.leader
        assert leader is not None
        assert leader.replica is not None
        term = leader.replica.engine.term
        leader.replica.transfer(None)
        until(group, lambda term=term: _term(group) > term, 1.0)  # type: ignore[misc]
        group.scheduler.run_until(group.scheduler.now + 0.3)
    workload.stop()
    until(group, group.healthy, 5.0)


def power_loss_on_a_slow_disk() -> None:
    """Check a power loss on a slow disk: committed entries that a follower has not synced are a torn end, no damage."""
    group, _ = running_group(clients=6)
    follower = next(node for node in group.nodes.values() if node is not group.leader)
    follower.sync_delay_s = 0.6
    for _ in range(4):
        group.scheduler.run_until(group.scheduler.now + 3.1)
        group.crash(follower.name, "random")
        problems = verify(follower.name, disk=follower.disk).problems
        assert not problems, problems
        group.start(follower.name)


def doubt_lasts() -> None:
    """Check that a node whose host went down with `flush = "async"` stays in doubt through kills and stops.

    After an accepted loss the next loss puts it in doubt again. Seeds catch a bug here only if that node comes to vote
    before a leader has made the loss good.
    """
    group = SimGroup(Scheduler(), Random(1), GroupSettings(flush="async"), serve_registers)
    for name in group.nodes:
        group.start(name)
    group.scheduler.run_until(3.0)
    for name in group.nodes:
        group.crash(name, "none")
    node = group.nodes["n0"]
    for end in (group.kill, group.stop, group.kill):
        group.start(node.name)
        assert not _may_vote(node)
        group.scheduler.run_until(group.scheduler.now + 1.5)
        end(node.name)
        group.scheduler.run_until(group.scheduler.now + 0.5)
    group.accept_loss(node.name)
    assert _may_vote(node)
    group.scheduler.run_until(group.scheduler.now + 1.5)
    group.crash(node.name, "all")
    group.start(node.name)
    assert not _may_vote(node), "one loss was accepted, and not the next one"


def reboot_behind_a_stop() -> None:
    """Check that a node that stopped in an orderly way lacks nothing, although its host goes down afterwards.

    This holds with `flush = "async"` too. A node that is in doubt without reason is made good by a leader. So seeds
    notice a bug only where no node can lead.
    """
    group = SimGroup(Scheduler(), Random(1), GroupSettings(flush="async"), serve_registers)
    for name in group.nodes:
        group.start(name)
    group.scheduler.run_until(3.0)
    for name in group.nodes:
        group.stop(name)
    group.scheduler.run_until(4.0)
    for node in group.nodes.values():
        assert node.life is None, "it has stopped"
        group.crash(node.name, "none")
        group.start(node.name)
        assert _may_vote(node)
    until(group, group.healthy, 5.0)


def _may_vote(node: SimNode) -> bool:
    assert node.replica is not None
    return node.replica.engine.may_vote


def _term(group: SimGroup) -> int:
    leader = group.leader
    return 0 if leader is None or leader.replica is None else leader.replica.engine.term


def truncation_beside_a_sync() -> None:
    """Check that the log of a deposed leader is cut off only after its running sync of entries that no other node has.

    In seeds that start the cut meanwhile, the sync rarely ends before the cut does.
    """
    group, workload = running_group(clients=6)
    old = group.leader
    assert old is not None
    assert old.life is not None
    environment = old.life.environment
    run_blocking = environment.run_blocking

    def slowly(lane: str, work: Callable[[], object], done: Callable[[object], None]) -> None:
        def later(result: object) -> None:
            environment.call_later(8.0, partial(done, result))

        run_blocking(lane, work, later if lane == BACKGROUND else done)

    setattr(environment, "run_blocking", slowly)  # noqa: B010 - a method is replaced
    old.sync_delay_s = 5.0
    group.scheduler.run_until(group.scheduler.now + 0.3)
    links = [link for link in permutations(group.settings.names, 2) if old.name in link]
    for link in links:
        group.network.block(*link)
    until(group, lambda: group.leader not in (None, old), 4.0)
    for link in links:
        group.network.unblock(*link)
    old.sync_delay_s = 0.001
    workload.stop()
    until(group, group.healthy, 20.0)
    assert old.replica is not None
    assert old.replica.store.generation, "something was cut off"


GROUP_SCHEDULES = (
    truncation_beside_a_sync,
    wiped_node,
    lost_files,
    lost_segment,
    slow_sync_hands_over,
    stopped_process_comes_back,
    transfer_between_replicas,
    power_loss_on_a_slow_disk,
    doubt_lasts,
    reboot_behind_a_stop,
)
