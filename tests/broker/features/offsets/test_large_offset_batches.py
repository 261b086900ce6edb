"""Commits of more queues than one command takes."""

from collections.abc import Callable

import pytest

from dledger.errors import BusyError, LogError, LogFullError
from dledger.format import BLANK_BYTES, HEADER_BYTES
from dledger.replica.proposer import MARK_BYTES
from dledger_broker.config_keys.limits import MIB
from dledger_broker.features import COMMANDS
from dledger_broker.features.offsets.buffer import OffsetBuffer
from dledger_broker.features.offsets.recent_commits import MAX_CLIENTS_PER_CHANNEL, Committer
from dledger_broker.features.offsets.table import CommitOffsets
from dledger_broker.features.topics.configuration import MAX_QUEUES
from dledger_broker.kernel.commands import MAX_OFFSETS_PER_COMMAND, Command
from dledger_broker.kernel.contexts import Done
from dledger_broker.kernel.trims import TrimQueues
from dledger_broker.testing import FakeEnvironment
from dledger_remoting.topics import MAX_DERIVED_TOPIC_CHARS, MAX_GROUP_CHARS


class Log:
    """Refuses the first large command with `refusal`, then applies everything at once."""

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


@pytest.fixture
def commit_all() -> Callable[[Log, FakeEnvironment], list[LogError | None]]:
    def commit(log: Log, env: FakeEnvironment) -> list[LogError | None]:
        buffer = OffsetBuffer(env, log.propose, 200)
        outcomes: list[LogError | None] = []
        buffer.commit("g", "t", 0, 7, outcomes.append)
        for queue_id in range(1, MAX_OFFSETS_PER_COMMAND + 1):
            buffer.commit("g", "t", queue_id, 7)
        env.advance(0.2)
        return outcomes

    return commit


def test_a_commit_whose_command_is_refused_is_not_acknowledged(commit_all):
    log = Log(LogFullError("the disk is full"))
    (outcome,) = commit_all(log, FakeEnvironment())
    assert isinstance(outcome, LogFullError)
    assert log.stored == {}


def test_a_commit_that_finds_the_log_busy_is_proposed_again_with_the_rest(commit_all):
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
