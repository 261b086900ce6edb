import dataclasses
from pathlib import Path

import pytest
from msgspec.structs import replace
from nothing_waits import NothingWaits

from dledger.environment import COLD
from dledger.errors import BusyError, LogError, LogFullError
from dledger.replica.status import PeerStatus
from dledger.statemachine import Leadership
from dledger.types import EntryKind
from dledger_broker.config import BrokerConfig
from dledger_broker.features import COMMANDS
from dledger_broker.features.group_settings.settings import GroupSettings
from dledger_broker.features.pins.job import PinLeases
from dledger_broker.features.pins.proposed import ProposedPins
from dledger_broker.features.pins.table import PINS, DeletePins, PutPin
from dledger_broker.features.retention.job import CHECK_PERIOD_S, FIRST_CHECK_S, Retention
from dledger_broker.features.retention.policy import RetentionPolicy
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.trims import TrimQueues
from dledger_broker.testing import START_MS, BrokerInMemory, FakeLog, Message
from dledger_broker.testing.node import NODE_ID

CONFIG = BrokerConfig(broker_group="g", node_id="n0", data_dir=Path("unused"), group_ordinal=7)


class Retaining:
    """The jobs of a node that say what it keeps."""

    def __init__(self, broker: BrokerInMemory, policy: RetentionPolicy) -> None:
        machine, node, env = broker.machine, broker.node, broker.env
        self.counters = BrokerCounters()
        self.policy = policy
        self.pins = ProposedPins(machine)
        self.leases = PinLeases(machine, self.pins, env)
        self.waits = NothingWaits()
        self.job = Retention(machine, node, env, self.pins, self.waits, self.current_policy, self.counters)
        self._jobs = machine.jobs
        self._jobs.open([self.leases, self.job], node, broker.writer)

    def current_policy(self) -> RetentionPolicy:
        return self.policy

    def check(self) -> None:
        """Have them look now, if they run."""
        for job in (self.leases, self.job):
            handle = self._jobs.handle_of(job.name)
            if handle is not None:
                job.check(handle)

    def trim(self, position: int) -> None:
        """Begin to trim, in the present run."""
        handle = self._jobs.handle_of(self.job.name)
        assert handle is not None
        self.job.trimming.trim(handle, position)

    @property
    def is_busy(self) -> bool:
        return self.job.trimming.is_busy


def trimmed_broker(policy: RetentionPolicy | None = None) -> tuple[BrokerInMemory, Retaining]:
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
    return broker, Retaining(broker, policy or RetentionPolicy(max_age_ms=1000))


def test_a_trim_raises_every_first_offset_before_the_log_goes():
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


def test_readers_of_old_data_hold_up_no_trim(monkeypatch):
    """A thousand pulls that wait for a slow disk fill their lane: a disk that gets full is trimmed all the same."""
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


def test_messages_are_as_old_on_a_node_whose_files_are_copies():
    broker, _ = trimmed_broker()
    broker.log.segment_times = [2 * START_MS for _ in broker.log.segment_times]
    broker.env.advance(CHECK_PERIOD_S + 1)
    assert broker.log.first_position == max(broker.log.snapshots)


def test_a_segment_with_one_young_message_stays_however_old_its_file_is():
    broker, _ = trimmed_broker()
    broker.send("orders", 0, Message(b"young"), at_ms=START_MS + int((FIRST_CHECK_S + CHECK_PERIOD_S) * 1000) - 500)
    broker.node.snapshot()
    before_young, behind_young = sorted(broker.log.snapshots)
    broker.log.segment_times = [0 for _ in broker.log.segment_times]
    broker.env.advance(CHECK_PERIOD_S + 1)
    assert broker.log.first_position == before_young
    broker.env.advance(CHECK_PERIOD_S)
    assert broker.log.first_position == behind_young


def test_nothing_goes_by_age_while_the_leaders_clock_is_alone():
    broker, _ = trimmed_broker()
    status = broker.node.status
    peers = [PeerStatus(name, True, 0, 0, 20, "replicate", 0, 100_000) for name in ("n1", "n2")]
    broker.node.status = lambda: replace(status(), peers=peers)
    broker.env.advance(CHECK_PERIOD_S * 3)
    assert broker.log.first_position == 0
    broker.node.status = status
    broker.env.advance(CHECK_PERIOD_S)
    assert broker.log.first_position == max(broker.log.snapshots)


def test_what_waits_is_moved_before_the_disk_is_too_full():
    broker, retention = trimmed_broker(RetentionPolicy())
    for disk_used in (690, 710, 760):
        broker.node.disk_used = disk_used
        retention.check()
        broker.env.advance(1.0)
    position = max(broker.log.snapshots)
    told = [wanted for n, wanted in enumerate(retention.waits.wanted) if wanted != retention.waits.wanted[n - 1]]
    assert told == [(0, False), (position, False), (position, True)]
    assert broker.log.first_position == position


def test_queue_offsets_go_on_after_a_trim_even_if_all_views_are_lost():
    broker, retention = trimmed_broker()
    retention.trim(max(broker.log.snapshots))
    broker.env.advance(1.0)
    broker.disk.rmtree("views")
    broker.disk.rmtree("consumequeue")
    again = broker.restart()
    assert again.machine.digest() == broker.machine.digest()
    assert (again.queue("orders", 0).first_offset, again.queue("orders", 0).next_offset) == (15, 25)
    assert again.queue("orders", 2).next_offset == 1
    assert again.bodies("orders", 0) == [b"%d" % number for number in range(30, 50, 2)]


def test_queue_files_below_the_first_offset_are_removed():
    broker, retention = trimmed_broker()
    for _ in range(40):
        broker.send("orders", 3, Message(b"x"))
    broker.node.snapshot()
    broker.flush_views()
    before = sorted(broker.disk.listdir("consumequeue/orders/3"))
    retention.trim(max(broker.log.snapshots))
    broker.env.advance(1.0)
    after = sorted(broker.disk.listdir("consumequeue/orders/3"))
    assert before[:2] == ["00000000000000000000", "00000000000000000320"]
    assert after == before[2:]


def test_nothing_is_trimmed_by_a_node_that_does_not_lead():
    broker, retention = trimmed_broker()
    broker.node.step_down()
    broker.env.advance(CHECK_PERIOD_S)
    retention.check()
    broker.env.run_ready()
    assert broker.log.first_position == 0


def test_a_topic_created_anew_during_a_trim_keeps_its_messages():
    broker, retention = trimmed_broker()
    retention.trim(max(broker.log.snapshots))
    broker.machine.proposals.delete_topic("orders", lambda _: None)
    broker.node.commit()
    broker.create_topic("orders")
    broker.send("orders", 0, Message(b"new"))
    assert broker.bodies("orders", 0) == [b"new"]


def pin(broker: BrokerInMemory, name: str, position: int, lease_ms: int) -> None:
    broker.machine.stage_command(PutPin(name, position, lease_ms, broker.env.wall_ms()), lambda _: None)
    broker.env.run_ready()


def test_a_pin_holds_a_trim_back_until_its_lease_ends():
    broker, _ = trimmed_broker()
    pin(broker, "job", 0, lease_ms=int(CHECK_PERIOD_S * 2500))
    broker.env.advance(CHECK_PERIOD_S * 2 + 1)
    assert broker.log.first_position == 0
    broker.env.advance(CHECK_PERIOD_S)
    assert broker.log.first_position == max(broker.log.snapshots)
    assert len(broker.machine.state.table(PINS)) == 0


def test_a_pin_holds_a_trim_back_from_its_proposal_on():
    broker, retention = trimmed_broker()
    outcomes = []
    retention.pins.put(PutPin("job", 0, 3_600_000, broker.env.wall_ms()), outcomes.append)
    assert outcomes == [], "applied already: this would show nothing"
    retention.check()
    broker.env.advance(1.0)
    assert (outcomes, broker.log.first_position) == ([None], 0)


def test_the_end_of_a_lease_does_not_undo_a_renewal_that_is_on_its_way():
    broker, retention = trimmed_broker()
    pin(broker, "job", 0, lease_ms=1000)
    broker.env.advance(2.0)
    outcomes = []
    retention.pins.put(PutPin("job", 0, 1000, broker.env.wall_ms()), outcomes.append)
    assert outcomes == [], "applied already: this would show nothing"
    retention.check()
    broker.env.run_ready()
    assert (outcomes, [pin.name for pin in broker.machine.state.table(PINS)]) == ([None], ["job"])


def test_a_pin_outlives_its_lease_while_a_member_may_not_understand_its_end():
    """A member that joined a moment ago."""
    broker, retention = trimmed_broker()
    pin(broker, "job", 0, lease_ms=1000)
    features = dict(broker.machine.state.members.kinds)
    broker.machine.state.members.kinds.clear()
    broker.env.advance(2.0)
    retention.check()
    broker.env.run_ready()
    assert len(broker.machine.state.table(PINS)) == 1
    broker.machine.state.members.kinds.update(features)
    retention.check()
    broker.env.run_ready()
    assert len(broker.machine.state.table(PINS)) == 0


def test_a_full_disk_overrides_a_pin_and_is_counted():
    broker, retention = trimmed_broker(RetentionPolicy())
    pin(broker, "job", 0, lease_ms=3_600_000)
    broker.node.disk_used = 900
    retention.check()
    broker.env.advance(1.0)
    assert broker.log.first_position == max(broker.log.snapshots)
    assert retention.counters.pins_overridden == 1


def test_a_pin_that_a_refused_trim_is_to_override_counts_once(monkeypatch):
    broker, retention = trimmed_broker(RetentionPolicy())
    pin(broker, "job", 0, lease_ms=3_600_000)
    broker.node.disk_used = 900
    monkeypatch.setattr(retention.job.trimming, "trim", lambda *_: None)
    for _ in range(3):
        retention.check()
        broker.env.advance(1.0)
    monkeypatch.undo()
    retention.check()
    broker.env.advance(1.0)
    assert broker.log.first_position == max(broker.log.snapshots)
    assert retention.counters.pins_overridden == 1


class Needing(Part):
    """A part that needs the log from a position on."""

    def __init__(self, position: int) -> None:
        self.position = position
        self.told: list[int] = []

    @property
    def needs_from(self) -> int | None:
        """See `Part.needs_from`."""
        return self.position

    def overridden(self, position: int) -> None:
        """See `Part.overridden`."""
        self.told.append(position)


@pytest.mark.parametrize("disk_is_full", [False, True])
def test_what_a_part_needs_goes_for_a_full_disk_only(disk_is_full: bool):
    broker, retaining = trimmed_broker()
    part = Needing(1)
    retaining.job._parts = [part]
    if disk_is_full:
        broker.node.disk_used = 900
    broker.env.advance(CHECK_PERIOD_S + 1)
    assert (broker.log.first_position > 0) == disk_is_full
    assert bool(part.told) == disk_is_full


def test_pins_and_the_ordinal_survive_snapshot_and_failover():
    broker, _ = trimmed_broker()
    GroupSettings(broker.machine, broker.env, CONFIG)
    broker.env.run_ready()
    pin(broker, "a", 500, lease_ms=1000)
    broker.env.advance(0.5)
    pin(broker, "a", 900, lease_ms=2000)
    expires_ms = broker.env.wall_ms() + 2000
    broker.node.snapshot()
    follower = BrokerInMemory(log=broker.log, lead=False)
    for state in (broker.machine.state, broker.restart().machine.state, follower.machine.state):
        found = state.table(PINS).get("a")
        assert found is not None
        assert (found.position, found.expires_ms) == (500, expires_ms)
        assert state.members.ordinal == 7
    assert follower.machine.digest() == broker.machine.digest()
    GroupSettings(follower.machine, follower.env, dataclasses.replace(CONFIG, group_ordinal=3))
    follower.node.lead()
    follower.env.run_ready()
    assert follower.machine.state.members.ordinal == 7


def test_a_trim_that_outlived_its_leadership_takes_nothing():
    """1. A leader searches what to trim; 2. another one leads for a while and takes a pin; 3. the search ends."""
    broker, retention = trimmed_broker()
    retention.trim(max(broker.log.snapshots))
    term = broker.node.term
    broker.node.step_down()
    pin = PutPin("job", 0, 60_000, START_MS)
    broker.log.append(EntryKind.GROUP, term + 1, b"", COMMANDS.encode(pin))
    broker.node.catch_up()
    broker.node.lead()
    broker.env.run_ready()
    assert (broker.log.first_position, broker.machine.kept_from, retention.is_busy) == (0, 0, False)


def be_ready(broker: BrokerInMemory, ready: bool) -> None:
    """The node leads the same term, and takes proposals or does not."""
    broker.node.is_ready = ready
    broker.machine.on_leadership(Leadership(broker.node.term, NODE_ID, is_leader=True, ready=ready))


def test_a_handover_that_fails_leaves_no_trim_under_way():
    broker, retention = trimmed_broker(RetentionPolicy())
    position = max(broker.log.snapshots)
    retention.trim(position)
    assert (broker.machine.kept_from, retention.is_busy) == (position, True)
    be_ready(broker, False)
    be_ready(broker, True)
    assert (broker.machine.kept_from, retention.is_busy) == (0, False)
    broker.env.run_ready()
    assert broker.log.first_position == 0
    retention.trim(position)
    broker.env.run_ready()
    assert broker.log.first_position == position


def test_a_trim_that_was_proposed_before_a_handover_failed_counts_until_it_is_applied_and_is_completed_then():
    broker, retention = trimmed_broker(RetentionPolicy())
    position = max(broker.log.snapshots)
    told = TrimQueues(position, ())
    handle = broker.machine.jobs.handle_of("retention")
    assert handle is not None
    broker.machine.trims_under_way.propose(handle, told, lambda _: None)
    be_ready(broker, False)
    be_ready(broker, True)
    retention.check()
    assert (broker.machine.kept_from, retention.is_busy, broker.log.first_position) == (position, True, 0)
    broker.env.run_ready()
    assert (broker.machine.kept_from, retention.is_busy) == (position, False)
    retention.check()
    broker.env.run_ready()
    assert broker.log.first_position == position


def test_the_end_of_a_lease_is_proposed_once_though_it_takes_long_to_be_applied(monkeypatch: pytest.MonkeyPatch):
    broker, retention = trimmed_broker(RetentionPolicy())
    pin(broker, "job", 0, lease_ms=1000)
    broker.env.advance(2.0)
    staged, stage = [], broker.machine.overlay.stage_command

    def staging(command, done, *, privileged):
        staged.append(command)
        stage(command, done, privileged=privileged)

    monkeypatch.setattr(broker.machine.overlay, "stage_command", staging)
    retention.check()
    retention.check()
    broker.env.run_ready()
    assert staged == [DeletePins(("job",))]
    assert len(broker.machine.state.table(PINS)) == 0


@pytest.mark.parametrize("how", ["another leader", "the log refused"])
@pytest.mark.parametrize("pinned", [False, True])
def test_a_trim_of_which_only_queues_were_told_is_completed(how, pinned):
    """Else they end before the log does until something else is too old; and not all of them may have been told."""
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
        assert [queue.first_offset for queue in broker.machine.state.topic_table.queues()] == [15, 15, 1]


def test_a_leader_that_keeps_more_than_the_others_knows_what_they_have_trimmed():
    broker, retention = trimmed_broker()
    position = max(broker.log.snapshots)
    retention.trim(position)
    broker.env.run_ready()
    broker.log.first_position = 0
    assert broker.machine.kept_from == position
    broker.node.snapshot()
    assert broker.restart().machine.kept_from == position


@pytest.mark.parametrize("error", [LogFullError("no space"), BusyError("64 MiB wait")])
def test_a_trim_of_which_one_command_is_refused_takes_nothing(monkeypatch: pytest.MonkeyPatch, error: LogError):
    """A small last command may find the space that a large one before it did not."""
    broker, retention = trimmed_broker()
    monkeypatch.setattr("dledger_broker.features.retention.trimming.MAX_OFFSETS_PER_COMMAND", 2)
    stage, refusals = broker.node.stage, [error]

    def refuse_the_first(*arguments, **keywords):
        if refusals:
            raise refusals.pop()
        return stage(*arguments, **keywords)

    monkeypatch.setattr(broker.node, "stage", refuse_the_first)
    retention.trim(max(broker.log.snapshots))
    broker.env.run_ready()
    assert (broker.log.first_position, retention.is_busy) == (0, False)
    assert [queue.first_offset for queue in broker.machine.state.topic_table.queues()] == [0, 0, 0]
