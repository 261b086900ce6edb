import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace
from nothing_waits import NothingWaits

from dledger.environment import COLD
from dledger.errors import BusyError, CorruptionError, LogError, LogFullError
from dledger.replica.status import PeerStatus
from dledger.statemachine import Leadership
from dledger.types import EntryKind
from dledger_broker.config import BrokerConfig
from dledger_broker.features import COMMANDS
from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.features.pins.proposed import ProposedPins
from dledger_broker.features.pins.requests import PinLeases
from dledger_broker.features.pins.table import PINS, DeletePins, PutPin
from dledger_broker.features.retention.job import CHECK_PERIOD_S, FIRST_CHECK_S, NOTHING_GOES, Retention
from dledger_broker.features.retention.policy import DELETE_OLDEST, HOUR_MS, RetentionPolicy, TrimPart
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.trims import TrimQueues
from dledger_broker.testing import START_MS, BrokerInMemory, FakeLog, Message
from dledger_broker.testing.node import NODE_ID

CONFIG = BrokerConfig(broker_group="g", node_id="n0", data_dir=Path("unused"), group_ordinal=7)


EXPIRED = RetentionPolicy(max_age_ms=1000)
DELETES = RetentionPolicy(when_full=DELETE_OLDEST)


class Retaining:
    """Jobs of a node that decide what to keep."""

    def __init__(self, broker: BrokerInMemory, policy: RetentionPolicy) -> None:
        machine, node, env = broker.machine, broker.node, broker.env
        self._broker = broker
        self.counters = BrokerCounters()
        self.policy = policy
        self.pins = ProposedPins(machine)
        self.leases = PinLeases(machine, self.pins, env)
        self.waits = NothingWaits()
        self.job = Retention(machine, node, env, self.pins, self.waits, lambda: self.policy, self.counters)
        self._jobs = machine.jobs
        self._jobs.open([self.leases, self.job], node, broker.writer)

    def check(self, disk_used: int | None = None) -> None:
        """Have the jobs look now, if they run, at a disk that is this full. No trim that begins ends here."""
        if disk_used is not None:
            self._broker.node.disk_used = disk_used
        for job in (self.leases, self.job):
            handle = self._jobs.handle_of(job.name)
            if handle is not None:
                job.check(handle)

    def look(self, disk_used: int | None = None) -> None:
        """Have the jobs look now, and end what they begin."""
        self.check(disk_used)
        self._broker.env.advance(1.0)

    def pin(self, lease_ms: int, name: str = "job", position: int = 0) -> None:
        broker = self._broker
        broker.machine.stage_command(PutPin(name, position, lease_ms, broker.env.wall_ms()), lambda _: None)
        broker.env.run_ready()

    @property
    def pinned(self) -> list[str]:
        """Names of the pins."""
        return [pin.name for pin in self._broker.machine.state.table(PINS)]

    def trim(self, position: int | None = None, parts: Sequence[TrimPart] = ()) -> None:
        """Begin to trim, in the current run, to the last snapshot unless a position is given."""
        handle = self._jobs.handle_of(self.job.name)
        assert handle is not None
        self.job.trimming.trim(handle, max(self._broker.log.snapshots) if position is None else position, parts)

    @property
    def is_busy(self) -> bool:
        return self.job.trimming.is_busy


def trimmed_broker(policy: RetentionPolicy = EXPIRED) -> tuple[BrokerInMemory, Retaining]:
    broker = BrokerInMemory(log=FakeLog(segment_bytes=1 << 16))
    broker.node.on_trimmed(broker.machine._trimmed)
    broker.create_topic("orders")
    for number in range(30):
        broker.send("orders", number % 2, Message(b"%d" % number, keys="k"))
    broker.send("orders", 2, Message(b"only an old one"))
    broker.flush_views()
    broker.node.snapshot()
    for number in range(30, 50):
        broker.send("orders", number % 2, Message(b"%d" % number, keys="k"))
    return broker, Retaining(broker, policy)


def first_offsets(broker: BrokerInMemory) -> list[int]:
    return [queue.first_offset for queue in broker.machine.state.topic_table.queues()]


def test_a_trim_raises_every_first_offset_on_all_replicas():
    broker, _ = trimmed_broker()
    position = max(broker.log.snapshots)
    follower = BrokerInMemory(log=broker.log, lead=False)
    broker.env.advance(CHECK_PERIOD_S + 1)
    assert broker.log.first_position == position
    queue = broker.queue("orders", 0)
    assert (queue.first_offset, queue.next_offset) == (15, 25)
    assert broker.bodies("orders", 0) == [b"%d" % number for number in range(30, 50, 2)]
    emptied = broker.queue("orders", 2)
    assert (emptied.min_offset, emptied.max_offset) == (1, 1)
    broker.send("orders", 2, Message(b"next"))
    assert (emptied.next_offset, broker.bodies("orders", 2)) == (2, [b"next"])
    follower.node.catch_up()
    assert follower.machine.digest() == broker.machine.digest()


def test_a_trim_that_cannot_read_a_record_has_the_log_repaired(monkeypatch):
    broker, retaining = trimmed_broker()
    places: list[int] = []

    def unreadable(at: int, size: int) -> bytes:
        places.append(at)
        raise CorruptionError(f"{size} bytes at {at} cannot be read")

    monkeypatch.setattr(broker.node, "read_blocking", unreadable)
    retaining.trim()
    broker.env.run_ready()
    assert not retaining.is_busy
    assert broker.node.failed_reads == places
    assert broker.log.first_position < max(broker.log.snapshots)


def test_readers_of_old_data_hold_up_no_trim(monkeypatch):
    """A thousand pulls that wait for a slow disk fill their lane."""
    broker, _ = trimmed_broker()
    run_blocking = broker.env.run_blocking

    def full(lane, work, done):
        if lane == COLD:
            done(BusyError("too many reads wait"))
        else:
            run_blocking(lane, work, done)

    monkeypatch.setattr(broker.env, "run_blocking", full)
    broker.env.advance(CHECK_PERIOD_S + 1)
    assert broker.log.first_position == max(broker.log.snapshots)


def test_the_age_of_messages_does_not_depend_on_file_times():
    broker, _ = trimmed_broker()
    broker.log.segment_times = [2 * START_MS for _ in broker.log.segment_times]
    broker.env.advance(CHECK_PERIOD_S + 1)
    assert broker.log.first_position == max(broker.log.snapshots)


def test_a_segment_with_a_young_message_stays_despite_an_old_file():
    broker, _ = trimmed_broker()
    broker.send("orders", 0, Message(b"young"), at_ms=START_MS + int((FIRST_CHECK_S + CHECK_PERIOD_S) * 1000) - 500)
    broker.node.snapshot()
    before_young, behind_young = sorted(broker.log.snapshots)
    broker.log.segment_times = [0 for _ in broker.log.segment_times]
    broker.env.advance(CHECK_PERIOD_S + 1)
    assert broker.log.first_position == before_young
    broker.env.advance(CHECK_PERIOD_S)
    assert broker.log.first_position == behind_young


def test_no_message_expires_while_the_clock_of_the_leader_differs_from_the_majority():
    broker, _ = trimmed_broker()
    status = broker.node.status
    peers = [PeerStatus(name, True, 0, 0, 20, "replicate", 0, 100_000) for name in ("n1", "n2")]
    broker.node.status = lambda: replace(status(), peers=peers)
    broker.env.advance(CHECK_PERIOD_S * 3)
    assert broker.log.first_position == 0
    broker.node.status = status
    broker.env.advance(CHECK_PERIOD_S)
    assert broker.log.first_position == max(broker.log.snapshots)


def test_delayed_messages_are_moved_before_the_disk_is_too_full():
    broker, retention = trimmed_broker(DELETES)
    for disk_used in (790, 810, 860):
        retention.look(disk_used)
    position, wanted = max(broker.log.snapshots), retention.waits.wanted
    assert [one for n, one in enumerate(wanted) if one != wanted[n - 1]] == [(0, True), (position, True)]
    assert retention.waits.gives_up
    assert broker.log.first_position == position


def test_a_full_disk_removes_no_unexpired_message_without_delete_oldest():
    broker, retention = trimmed_broker(RetentionPolicy())
    for disk_used in (760, 950, 1000):
        retention.look(disk_used)
    assert broker.log.first_position == 0
    assert {wanted for wanted, _ in retention.waits.wanted} == {0}
    assert not retention.waits.gives_up
    assert retention.counters.trimmed_messages == {}


def test_queue_offsets_go_on_after_a_trim_even_if_all_views_are_lost():
    broker, retention = trimmed_broker()
    retention.trim()
    broker.env.advance(1.0)
    broker.disk.rmtree("views")
    broker.disk.rmtree("consumequeue")
    again = broker.restart()
    assert again.machine.digest() == broker.machine.digest()
    assert (again.queue("orders", 0).first_offset, again.queue("orders", 0).next_offset) == (15, 25)
    assert again.queue("orders", 2).next_offset == 1
    assert again.bodies("orders", 0) == [b"%d" % number for number in range(30, 50, 2)]


def test_a_pin_holds_a_trim_back_until_its_lease_ends():
    broker, retention = trimmed_broker()
    retention.pin(lease_ms=int(CHECK_PERIOD_S * 2500))
    broker.env.advance(CHECK_PERIOD_S * 2 + 1)
    assert broker.log.first_position == 0
    broker.env.advance(CHECK_PERIOD_S)
    assert (broker.log.first_position, retention.pinned) == (max(broker.log.snapshots), [])


def test_a_pin_holds_a_trim_back_from_its_proposal_on():
    broker, retention = trimmed_broker()
    outcomes = []
    retention.pins.put(PutPin("job", 0, 3_600_000, broker.env.wall_ms()), outcomes.append)
    assert outcomes == [], "applied already: this would show nothing"
    retention.look()
    assert (outcomes, broker.log.first_position) == ([None], 0)


def test_the_end_of_a_lease_does_not_undo_a_renewal_in_flight():
    broker, retention = trimmed_broker()
    retention.pin(lease_ms=1000)
    broker.env.advance(2.0)
    outcomes = []
    retention.pins.put(PutPin("job", 0, 1000, broker.env.wall_ms()), outcomes.append)
    assert outcomes == [], "applied already: this would show nothing"
    retention.check()
    broker.env.run_ready()
    assert (outcomes, retention.pinned) == ([None], ["job"])


def test_a_pin_outlives_its_lease_while_a_member_may_not_understand_its_end():
    """Such a member has just joined."""
    broker, retention = trimmed_broker()
    retention.pin(lease_ms=1000)
    kinds = broker.machine.state.members.kinds
    understood = dict(kinds)
    kinds.clear()
    broker.env.advance(2.0)
    for kinds_now, pinned in (({}, ["job"]), (understood, [])):
        kinds.update(kinds_now)
        retention.check()
        broker.env.run_ready()
        assert retention.pinned == pinned


def test_a_full_disk_overrides_a_pin_of_expired_messages_which_counts_once_for_a_repeated_trim(monkeypatch):
    broker, retention = trimmed_broker(EXPIRED)
    retention.pin(lease_ms=3_600_000)
    with monkeypatch.context() as patch:
        patch.setattr(retention.job.trimming, "trim", lambda *_: None)
        for _ in range(3):
            retention.look(900)
    retention.look()
    assert broker.log.first_position == max(broker.log.snapshots)
    assert retention.counters.pins_overridden == 1


class Needing(Part):
    """Part that needs the log from a position on."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.told: list[int] = []

    @property
    def needs_from(self) -> int | None:
        return self.position

    def trims_below(self, position: int) -> None:
        self.told.append(position)


@pytest.mark.parametrize("policy", [RetentionPolicy(), DELETES])
def test_pinned_messages_that_have_not_expired_stay_on_a_full_disk(policy: RetentionPolicy):
    broker, retention = trimmed_broker(policy)
    retention.pin(lease_ms=3_600_000)
    retention.look(1000)
    assert (broker.log.first_position, retention.counters.pins_overridden) == (0, 0)


@pytest.mark.parametrize(
    ("policy", "reason"),
    [(EXPIRED, "retention_hours"), (RetentionPolicy(max_log_bytes=1), "retention_bytes"), (DELETES, "when_full")],
)
def test_a_trim_logs_its_reason_and_counts_messages_and_bytes(policy, reason, caplog):
    caplog.set_level(logging.INFO, logger="dledger_broker")
    broker, retention = trimmed_broker(policy)
    broker.node.disk_used = 900
    broker.env.advance(CHECK_PERIOD_S + 1)
    position, counters = max(broker.log.snapshots), retention.counters
    assert broker.log.first_position == position
    assert (counters.trimmed_messages, counters.trimmed_bytes) == ({reason: 31}, {reason: position})
    said = [message for message in caplog.messages if message.startswith("event=trim ")]
    assert said == [f"event=trim position={position} reason={reason} messages=31 bytes={position}"]


def test_a_trim_for_two_reasons_counts_each_message_once():
    broker, retention = trimmed_broker(RetentionPolicy())
    position, middle = max(broker.log.snapshots), 1000
    retention.trim(position, (TrimPart("retention_hours", middle), TrimPart("retention_bytes", position)))
    broker.env.advance(1.0)
    counted = retention.counters.trimmed_messages
    assert sorted(counted) == ["retention_bytes", "retention_hours"]
    assert (all(counted.values()), counted.total()) == (True, 31)
    assert dict(retention.counters.trimmed_bytes) == {"retention_hours": middle, "retention_bytes": position - middle}


def test_the_retention_forecast_shows_the_next_trim_and_its_time():
    broker, retention = trimmed_broker(RetentionPolicy(max_age_ms=HOUR_MS, max_log_bytes=1 << 20))
    retention.look()
    newest = broker.node.segments()[-1]
    forecast = retention.job.forecast()
    assert forecast.size == broker.node.segments()[0].end_position == broker.node.segment_bytes
    assert forecast.due_ms >= START_MS + HOUR_MS
    assert forecast.growth_bytes == (1 << 20) - newest.end_position
    assert not forecast.is_held
    retention.pin(lease_ms=3_600_000)
    assert retention.job.forecast().is_held
    broker.node.step_down()
    assert retention.job.forecast() == NOTHING_GOES


@pytest.mark.parametrize("deletes", [False, True])
def test_a_full_disk_trims_needed_records_only_if_the_policy_deletes_the_oldest(deletes: bool):
    broker, retaining = trimmed_broker(DELETES if deletes else EXPIRED)
    part = Needing(1)
    retaining.job._parts = [part]
    broker.node.disk_used = 900
    broker.env.advance(CHECK_PERIOD_S + 1)
    assert (broker.log.first_position > 0, bool(part.told)) == (deletes, deletes)


def test_pins_and_the_ordinal_survive_snapshot_and_failover():
    broker, retention = trimmed_broker()
    broker.machine.events.add(GroupSettings(broker.machine, broker.env, CONFIG))
    broker.env.run_ready()
    retention.pin(1000, position=500)
    broker.env.advance(0.5)
    retention.pin(2000, position=900)
    expires_ms = broker.env.wall_ms() + 2000
    broker.node.snapshot()
    follower = BrokerInMemory(log=broker.log, lead=False)
    for state in (broker.machine.state, broker.restart().machine.state, follower.machine.state):
        found = state.table(PINS).get("job")
        assert found is not None
        assert (found.position, found.expires_ms, state.members.ordinal) == (500, expires_ms, 7)
    assert follower.machine.digest() == broker.machine.digest()
    follower.machine.events.add(
        GroupSettings(follower.machine, follower.env, dataclasses.replace(CONFIG, group_ordinal=3))
    )
    follower.node.lead()
    follower.env.run_ready()
    assert follower.machine.state.members.ordinal == 7


def test_a_trim_that_outlived_its_leadership_removes_nothing():
    """While the leader searches what to trim, another node leads for a while and takes a pin."""
    broker, retention = trimmed_broker()
    retention.trim()
    term = broker.node.term
    broker.node.step_down()
    pin = PutPin("job", 0, 60_000, START_MS)
    broker.log.append(EntryKind.GROUP, term + 1, b"", COMMANDS.encode(pin))
    broker.node.catch_up()
    broker.node.lead()
    broker.env.run_ready()
    assert (broker.log.first_position, broker.machine.kept_from, retention.is_busy) == (0, 0, False)


def fail_to_hand_over(broker: BrokerInMemory) -> None:
    """Take no proposals, and then take them again, in the same term."""
    for ready in (False, True):
        broker.node.is_ready = ready
        broker.machine.on_leadership(Leadership(broker.node.term, NODE_ID, is_leader=True, ready=ready))


def test_a_handover_that_fails_leaves_no_trim_under_way():
    broker, retention = trimmed_broker(RetentionPolicy())
    position = max(broker.log.snapshots)
    retention.trim(position)
    assert (broker.machine.kept_from, retention.is_busy) == (position, True)
    fail_to_hand_over(broker)
    assert (broker.machine.kept_from, retention.is_busy) == (0, False)
    broker.env.run_ready()
    assert broker.log.first_position == 0
    retention.trim(position)
    broker.env.run_ready()
    assert broker.log.first_position == position


def test_a_trim_proposed_before_a_failed_handover_counts_and_is_completed_once_applied():
    broker, retention = trimmed_broker(RetentionPolicy())
    position = max(broker.log.snapshots)
    told = TrimQueues(position, ())
    handle = broker.machine.jobs.handle_of("retention")
    assert handle is not None
    broker.machine.trims_under_way.propose(handle, told, lambda _: None)
    fail_to_hand_over(broker)
    retention.check()
    assert (broker.machine.kept_from, retention.is_busy, broker.log.first_position) == (position, True, 0)
    broker.env.run_ready()
    assert (broker.machine.kept_from, retention.is_busy) == (position, False)
    retention.check()
    broker.env.run_ready()
    assert broker.log.first_position == position


def test_the_end_of_a_lease_is_proposed_only_once(monkeypatch: pytest.MonkeyPatch):
    broker, retention = trimmed_broker(RetentionPolicy())
    retention.pin(lease_ms=1000)
    broker.env.advance(2.0)
    staged, stage = [], broker.machine.overlay.stage_command

    def staging(command, done, *, privileged):
        staged.append(command)
        stage(command, done, privileged=privileged)

    monkeypatch.setattr(broker.machine.overlay, "stage_command", staging)
    retention.check()
    retention.check()
    broker.env.run_ready()
    assert (staged, retention.pinned) == ([DeletePins(("job",))], [])


@pytest.mark.parametrize("how", ["another leader", "the log refused"])
@pytest.mark.parametrize("pinned", [False, True])
def test_a_trim_interrupted_after_its_queue_commands_is_completed(how, pinned):
    """Otherwise the queues end before the log until something else is too old. Maybe not all queues were told."""
    broker, retention = trimmed_broker()
    retention.policy = RetentionPolicy()
    position = max(broker.log.snapshots)
    told = TrimQueues(position, (("orders", broker.machine.state.topics["orders"].created_position, 0, 15),))
    if pinned:
        retention.pins.put(PutPin("job", 0, 60_000, START_MS), lambda _: None)
        broker.env.run_ready()
    if how == "another leader":
        broker.node.step_down()
        broker.log.append(EntryKind.GROUP, broker.node.term + 1, b"", COMMANDS.encode(told))
        broker.node.catch_up()
        broker.node.lead()
    else:
        broker.machine.stage_command(told, lambda _: None)
        broker.env.run_ready()
        retention.check()
    broker.env.run_ready()
    assert broker.log.first_position == (0 if pinned else position)
    if not pinned:
        assert first_offsets(broker) == [15, 15, 1]


def test_a_leader_that_keeps_more_log_knows_the_trimmed_position_of_the_group():
    broker, retention = trimmed_broker()
    position = max(broker.log.snapshots)
    retention.trim(position)
    broker.env.run_ready()
    broker.log.first_position = 0
    assert broker.machine.kept_from == position
    broker.node.snapshot()
    assert broker.restart().machine.kept_from == position


@pytest.mark.parametrize("error", [LogFullError("no space"), BusyError("64 MiB wait")])
def test_a_trim_with_a_refused_command_removes_nothing(monkeypatch: pytest.MonkeyPatch, error: LogError):
    """A small last command may find the space that a large earlier command did not find."""
    broker, retention = trimmed_broker()
    monkeypatch.setattr("dledger_broker.features.retention.trimming.MAX_OFFSETS_PER_COMMAND", 2)
    stage, refusals = broker.node.stage, [error]

    def refuse_the_first(*arguments, **keywords):
        if refusals:
            raise refusals.pop()
        return stage(*arguments, **keywords)

    monkeypatch.setattr(broker.node, "stage", refuse_the_first)
    retention.trim()
    broker.env.run_ready()
    assert (broker.log.first_position, retention.is_busy, first_offsets(broker)) == (0, False, [0, 0, 0])


def test_a_trim_needs_no_more_space_than_the_log_keeps_back(monkeypatch: pytest.MonkeyPatch):
    """On a full disk the log refuses all units that are not privileged. A trim that is refused brings no space back."""
    broker, retention = trimmed_broker()
    stage = broker.node.stage

    def refuse_others(*arguments, privileged=False, **keywords):
        if not privileged:
            raise LogFullError("no space")
        return stage(*arguments, privileged=privileged, **keywords)

    monkeypatch.setattr(broker.node, "stage", refuse_others)
    retention.trim()
    broker.env.run_ready()
    assert broker.log.first_position == max(broker.log.snapshots), "the log is trimmed"
    assert first_offsets(broker) == [15, 15, 1]
