"""Group of brokers that schedules drive."""

from __future__ import annotations

from random import Random
from typing import Final

from dledger.errors import BusyError, LogError, LogFullError
from dledger.types import Fill
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import FLAG_ONEWAY, RemotingCommand
from dledger_remoting.hosts import HostAddress
from dledger_sim.brokers.clients import pull_fields
from dledger_sim.brokers.connection import TURN_S, Answer, SimConnection
from dledger_sim.brokers.message_bodies import encode_body
from dledger_sim.brokers.service import BrokerSettings
from dledger_sim.brokers.trial import BrokerTrial
from dledger_sim.brokers.workload import ClientSettings
from dledger_sim.log.group import GroupSettings, SimGroup
from dledger_sim.log.registers import leading
from dledger_sim.log.scheduler import Scheduler

TOPIC: Final = "lasting-0"
GROUP_NAME: Final = "group-0"
TIMEOUT_S: Final = 6.0
SLOW_SYNC_S: Final = 2.5
CLIENT: Final = HostAddress("127.0.0.1", 50_000)


class Brokers:
    """Whole group with one topic, and no clients except those of the schedule."""

    def __init__(self, settings: BrokerSettings | None = None) -> None:
        nobody = ClientSettings(producers=0, consumers=0, administrators=0, readers=0, topics=1, queues=1)
        trial = BrokerTrial(Random(1), nobody, settings or BrokerSettings(), None)
        self.workload = trial.workload
        self.scheduler = Scheduler()
        self.group = SimGroup(self.scheduler, Random(2), GroupSettings(clock_drift=0.0), trial.serve)
        for name in self.group.nodes:
            self.group.start(name)
        self.run(2.0)
        trial.start(self.group)
        self.run(2.0)
        self._connections = 0

    def run(self, seconds: float) -> None:
        self.scheduler.run_until(self.scheduler.now + seconds)

    def await_turn(self) -> None:
        """Wait until the next turn begins, so that everything sent now is read in one turn."""
        self.scheduler.run_until((self.scheduler.now // TURN_S + 1) * TURN_S)

    def connect(self, name: str) -> SimConnection:
        life = self.group.nodes[name].life
        assert life is not None
        self._connections += 1
        return SimConnection(self.group, life, Random(self._connections), CLIENT, self._connections)

    def ask(
        self, connection: SimConnection, code: int, ext: dict[str, str], body: bytes = b"", *, oneway: bool = False
    ) -> list[Answer | None]:
        """Send a request. Its answer will be in the returned list."""
        answers: list[Answer | None] = []
        flag = FLAG_ONEWAY if oneway else 0
        connection.call(RemotingCommand(code, flag=flag, ext=ext, body=body), TIMEOUT_S, answers.append)
        return answers

    def slow_down_disk(self, name: str, sync_s: float = SLOW_SYNC_S) -> None:
        """Slow down all disk operations of a node.

        By default a sync takes longer than a leader waits for its successor.
        """
        life = self.group.nodes[name].life
        assert life is not None
        life.environment.sync_delay_s = lambda _lane: sync_s
        life.environment.cached_share = 0.0

    def fill_disk_for(self, seconds: float, *, reserve_too: bool = True) -> None:
        """Let time pass while the leader's log refuses everything.

        Without `reserve_too` it takes small and rare commands.
        """
        self._refuse_for(seconds, LogFullError("the disk is full"), privileged_too=reserve_too)

    def busy_for(self, seconds: float) -> None:
        """Let time pass while the leader's log takes nothing."""
        self._refuse_for(seconds, BusyError("too much is in flight"))

    def _refuse_for(self, seconds: float, error: LogError, *, privileged_too: bool = True) -> None:
        log = leading(self.group).replica.leading
        stage = log.stage

        def refuse(
            size: int,
            fill: Fill | None,
            commands: bytes | bytearray,
            context: object,
            *,
            privileged: bool = False,
            own: bool = False,
        ) -> int:
            if privileged and not size and not privileged_too:
                return stage(size, fill, commands, context, privileged=True, own=own)
            raise error

        log.stage = refuse  # type: ignore[method-assign]
        self.run(seconds)
        log.stage = stage  # type: ignore[method-assign]

    def hand_over(self, name: str) -> None:
        """Make the leader begin to hand over."""
        replica = leading(self.group).replica
        member = replica.engine.membership.find(name)
        assert member is not None
        assert replica.transfer(member)

    def send(self, connection: SimConnection, topic: str, *, padding: int = 0) -> None:
        """Send a message, and check its answer."""
        operation = self.workload.next_operation()
        code, ext, _ = self.workload.make_send(topic, 0, [operation], batch=False)
        body = encode_body(operation, padding)
        connection.call(
            RemotingCommand(code, ext=ext, body=body),
            TIMEOUT_S,
            lambda answer: self.workload.sent([operation], 0, answer),
        )

    def found_group(self, connection: SimConnection) -> None:
        """Send some messages, and create a consumer group that has pulled them."""
        for _ in range(3):
            self.send(connection, TOPIC)
        pull = {"consumerGroup": GROUP_NAME, "topic": TOPIC, "queueId": "0", **pull_fields(0, 8)}
        self.ask(connection, RequestCode.PULL_MESSAGE, pull)
        self.run(1.0)

    @property
    def leader(self) -> str:
        return leading(self.group).node.name

    @property
    def follower(self) -> str:
        return next(name for name in self.group.nodes if name != self.leader)


def offset_fields(offset: int) -> dict[str, str]:
    """Return the fields of a commit of an offset."""
    return {"consumerGroup": GROUP_NAME, "topic": TOPIC, "queueId": "0", "commitOffset": str(offset)}
