"""Schedules of full disks, and of the messages that retention may delete because of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, cast

from dledger_broker.features.delay.table import TIMERS
from dledger_remoting.command import RemotingCommand
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.crowds import CAPACITY_BYTES
from dledger_sim.brokers.message_bodies import encode_body
from dledger_sim.brokers.schedules.brokers import TIMEOUT_S, TOPIC, Brokers
from dledger_sim.brokers.schedules.timers import send_delayed
from dledger_sim.brokers.service import BrokerSettings, SimBroker
from dledger_sim.brokers.trim_judge import judge_trims
from dledger_sim.log.registers import leading

FOR_EVER_MS: Final = 1 << 40


def both_limits_at_once() -> None:
    """Check that one trim deletes messages by age and by size: `retention_bytes` of the unexpired messages stay.

    Seeds rarely have both limits meet in a way that shows a segment too many.
    """
    settings = BrokerSettings(retention_ms=6_000, retention_bytes=220_000)
    brokers = Brokers(settings)
    life = leading(brokers.group)
    broker = cast(SimBroker, life.service)
    judge_trims(
        broker.broker,
        broker.retention.trimming,
        life,
        brokers.workload.truth,
        broker.retention.policy(),
        lambda _: False,
        clocks_ms=0,
    )
    _fill(brokers, 80)
    brokers.run(12.0)
    assert brokers.workload.truth.trimmed_to > 0


def others_fill_all_disks() -> None:
    """Check a disk that others fill.

    It deletes no message. Sends succeed above the watermark, and fail without any space.
    """
    brokers = Brokers(BrokerSettings(retention_ms=FOR_EVER_MS))
    _fill(brokers, 40)
    _crowd(brokers, 0.9)
    brokers.run(25.0)
    assert _code_of_a_send(brokers) == 0
    _crowd(brokers, 1.0)
    brokers.run(25.0)
    assert _code_of_a_send(brokers) not in (None, 0)
    assert brokers.workload.truth.trimmed_to == 0
    _crowd(brokers, 0.0)
    brokers.run(3.0)
    assert _code_of_a_send(brokers) == 0


def a_log_without_room_for_what_waits() -> None:
    """Check a pending message in a log that must be trimmed and has no room to move it.

    It stays pending, and the trim waits.

    1. A delayed message lies in a segment that has expired.
    2. Others fill the disks, and the log takes no records.
    3. There is room again: the message is moved, and the segment goes.
    """
    brokers = Brokers(BrokerSettings(retention_ms=FOR_EVER_MS, retention_bytes=1))
    _crowd(brokers, 0.9)
    send_delayed(brokers, 3_600_000)
    _fill(brokers, 40)
    brokers.fill_disk_for(90.0, reserve_too=False)
    assert brokers.workload.truth.happened["delayed message given up"] == 0
    before = brokers.workload.truth.trimmed_to
    _crowd(brokers, 0.0)
    brokers.run(40.0)
    truth = brokers.workload.truth
    assert not truth.due.lost
    assert truth.trimmed_to > before
    state = cast(SimBroker, leading(brokers.group).service).broker.state
    assert state.table(TIMERS).total.rows == 1


def _fill(brokers: Brokers, count: int) -> None:
    connection = brokers.connect(brokers.leader)
    for _ in range(count):
        brokers.send(connection, TOPIC, padding=4000)
        brokers.run(0.1)


def _crowd(brokers: Brokers, used_ratio: float) -> None:
    """Let other programs take a share of each disk."""
    brokers.group.disks_crowded = True
    for node in brokers.group.nodes.values():
        node.disk.crowd(used_ratio, CAPACITY_BYTES)


def _code_of_a_send(brokers: Brokers) -> int | None:
    workload, answers = brokers.workload, list[Answer | None]()
    operation = workload.next_operation()
    code, ext, _ = workload.make_send(TOPIC, 0, [operation], batch=False)
    command = RemotingCommand(code, ext=ext, body=encode_body(operation, 0))

    def answered(answer: Answer | None) -> None:
        workload.sent([operation], 0, answer)
        answers.append(answer)

    brokers.connect(brokers.leader).call(command, TIMEOUT_S, answered)
    brokers.run(1.0)
    return next((answer.code for answer in answers if answer is not None), None)


FULL_DISK_SCHEDULES: Final[tuple[Callable[[], None], ...]] = (
    both_limits_at_once,
    others_fill_all_disks,
    a_log_without_room_for_what_waits,
)
