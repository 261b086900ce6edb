"""Commits that gather before they are proposed, also in more queues than one command takes."""

import pytest

from dledger.errors import BusyError, LogError, LogFullError, NotLeaderError
from dledger.format import BLANK_BYTES, HEADER_BYTES
from dledger.replica.writing.proposer import MARK_BYTES
from dledger_broker.config_keys.limits import MIB
from dledger_broker.features import COMMANDS
from dledger_broker.features.offsets.buffer import OffsetBuffer
from dledger_broker.features.offsets.commits import FLUSH_AT_STOP_S, OffsetCommits
from dledger_broker.features.offsets.recent_commits import MAX_CLIENTS_PER_CHANNEL, Committer
from dledger_broker.features.offsets.table import OFFSETS, CommitOffsets
from dledger_broker.features.topics.configuration import MAX_QUEUES
from dledger_broker.kernel.commands import MAX_OFFSETS_PER_COMMAND, Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.trims import TrimQueues
from dledger_broker.testing import BrokerInMemory, FakeEnvironment
from dledger_remoting.topics import MAX_DERIVED_TOPIC_CHARS, MAX_GROUP_CHARS

KEY = ("g", "orders", 0)
OTHER = ("g", "orders", 1)


class Committing(BrokerInMemory):
    """Broker with a buffer of commits. `outcomes` has what commits of the first queue were told."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: list[Exception | None] = []

    def commit(self, offset: int) -> None:
        self.offsets.commit(*KEY, offset, self.outcomes.append)

    def applied(self, group: str = "g", topic: str = "orders", queue_id: int = 0) -> int | None:
        return self.machine.state.table(OFFSETS).get(group, topic, queue_id)


@pytest.fixture
def broker() -> Committing:
    return Committing()


def test_commits_of_all_groups_go_into_one_entry_after_the_delay(broker: Committing) -> None:
    entries = len(broker.log.entries)
    for offset in (1, 2, 3):
        broker.commit(offset)
        broker.offsets.commit("h", "orders", 1, offset * 10)
    broker.env.advance(0.19)
    assert len(broker.log.entries) == entries
    assert broker.offsets.pending(*KEY) == 3
    broker.env.advance(0.02)
    assert len(broker.log.entries) == entries + 1
    assert (broker.applied(), broker.applied("h", "orders", 1)) == (3, 30)
    assert broker.outcomes == [None, None, None]
    assert broker.offsets.pending(*KEY) is None


def test_a_query_waits_for_the_commits_of_its_queue_only(broker: Committing) -> None:
    order: list[str] = []
    broker.commit(5)
    broker.offsets.flush(lambda error: order.append("other"), OTHER)
    assert order == ["other"]
    broker.offsets.flush(lambda error: order.append("own"), KEY)
    broker.offsets.flush(lambda error: order.append("in flight"), KEY)
    broker.offsets.flush(lambda error: order.append("all"))
    assert order == ["other"]
    broker.env.run_ready()
    assert order == ["other", "own", "in flight", "all"]
    assert broker.applied() == 5


def test_a_commit_in_flight_before_a_fence_does_not_make_later_commits_late(broker: Committing) -> None:
    """It is older than the reset that follows. Later commits may be lower, and are not late because of it."""
    broker.commit(100)
    broker.offsets.commit(*OTHER, 7)
    broker.offsets.flush(lambda _: None)
    assert [taken.offset for taken in broker.offsets.under_way(KEY)] == [100]
    broker.offsets.fence([KEY])
    assert broker.offsets.under_way(KEY) == ()
    assert [taken.offset for taken in broker.offsets.under_way(OTHER)] == [7]
    broker.env.run_ready()
    assert broker.applied() == 100


def test_a_busy_log_delays_commits_and_a_full_log_takes_commits_from_half_the_reserve(broker: Committing) -> None:
    broker.commit(5)
    broker.node.stage_error = BusyError("64 MiB wait")
    broker.env.advance(0.5)
    assert broker.outcomes == []
    broker.node.stage_error = None
    broker.env.advance(0.2)
    assert broker.outcomes == [None]
    broker.node.stage_error = LogFullError("no space")
    for offset, reserve_left in ((6, 1.0), (7, 0.5)):
        broker.node.reserve_left = reserve_left
        broker.commit(offset)
        broker.env.advance(0.2)
    assert broker.outcomes[:2] == [None, None]
    assert isinstance(broker.outcomes[2], LogFullError)
    assert broker.applied() == 6


def test_commits_that_are_buffered_when_the_log_fails_are_refused(
    broker: Committing, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(_node: object) -> float:
        raise NotLeaderError(None, 0, "node n0 is not running")

    broker.commit(5)
    monkeypatch.setattr(type(broker.node), "reserve_left", property(stopped), raising=False)
    broker.env.advance(0.5)
    assert [type(outcome) for outcome in broker.outcomes] == [NotLeaderError]


def test_a_leader_that_hands_over_proposes_its_buffered_commits(broker: Committing) -> None:
    broker.commit(5)
    broker.machine.hand_over()
    broker.env.run_ready()
    assert broker.applied() == 5


def test_a_buffered_commit_does_not_survive_the_deletion_of_its_topic(broker: Committing) -> None:
    """Behind the deletion, the offset would belong to the next topic of that name."""
    broker.create_topic("orders")
    broker.commit(5)
    broker.delete_topic("orders")
    broker.env.advance(1)
    assert broker.applied() is None


def test_a_leader_that_stops_waits_a_second_for_a_log_that_takes_no_commits(broker: Committing) -> None:
    commits = OffsetCommits(broker.machine, broker.env, 200)
    commits.buffer.commit(*KEY, 5, broker.outcomes.append)
    broker.node.stage_error = BusyError("64 MiB wait")
    began = broker.env.now()
    broker.run(commits.flush())
    assert broker.env.now() - began == pytest.approx(FLUSH_AT_STOP_S)
    assert broker.outcomes == []


class Log:
    """Log that refuses the first large command with `refusal`, and then applies everything at once."""

    def __init__(self, refusal: LogError) -> None:
        self.refusal: LogError | None = refusal
        self.stored: dict[int, int] = {}

    def propose(self, command: Command, done: Done) -> None:
        assert isinstance(command, CommitOffsets)
        if self.refusal is not None and len(command.offsets) == MAX_OFFSETS_PER_COMMAND:
            refusal, self.refusal = self.refusal, None
            done(refusal)
            return
        self.stored.update({queue_id: offset for _, _, queue_id, offset in command.offsets})
        done(None)


def commit_all(log: Log, env: FakeEnvironment) -> list[LogError | None]:
    """Commit in more queues than a command takes, and return what the first commit is told."""
    buffer = OffsetBuffer(env, log.propose, 200)
    outcomes: list[LogError | None] = []
    buffer.commit("g", "t", 0, 7, outcomes.append)
    for queue_id in range(1, MAX_OFFSETS_PER_COMMAND + 1):
        buffer.commit("g", "t", queue_id, 7)
    env.advance(0.2)
    return outcomes


def test_a_commit_whose_command_is_refused_is_not_acknowledged():
    log = Log(LogFullError("the disk is full"))
    (outcome,) = commit_all(log, FakeEnvironment())
    assert isinstance(outcome, LogFullError)
    assert log.stored == {}


def test_a_commit_that_finds_the_log_busy_is_proposed_again_with_the_rest():
    log, env = Log(BusyError("busy")), FakeEnvironment()
    outcomes = commit_all(log, env)
    assert outcomes == []
    env.advance(0.2)
    assert outcomes == [None]
    assert log.stored == dict.fromkeys(range(MAX_OFFSETS_PER_COMMAND + 1), 7)


def test_a_command_of_the_longest_names_fits_the_smallest_segment():
    group, topic = "g" * MAX_GROUP_CHARS, "t" * MAX_DERIVED_TOPIC_CHARS
    largest = (1 << 63) - 1
    committer = Committer(largest, (largest,) * MAX_CLIENTS_PER_CHANNEL, largest)
    commits = CommitOffsets(
        ((group, topic, MAX_QUEUES - 1, largest),) * MAX_OFFSETS_PER_COMMAND,
        (committer,) * MAX_OFFSETS_PER_COMMAND,
        tuple(range(MAX_OFFSETS_PER_COMMAND)),
    )
    trims = TrimQueues(largest, ((topic, largest, MAX_QUEUES - 1, largest),) * MAX_OFFSETS_PER_COMMAND)
    for command in (commits, trims):
        unit = len(COMMANDS.encode(command)) + MARK_BYTES
        assert HEADER_BYTES + unit + BLANK_BYTES <= MIB
