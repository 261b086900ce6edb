"""The simulator's judges name a broken promise, also if other things are wrong at that time."""

from __future__ import annotations

import errno
import logging
from collections import Counter
from contextlib import suppress
from itertools import count
from random import Random

import pytest

from dledger.core.messages import AppendReply
from dledger.errors import StorageError
from dledger.net.requests import RequestChannel
from dledger.types import Lane, ReplicaId
from dledger_base.invariants import InvariantError
from dledger_broker.features import COMMANDS
from dledger_broker.features.sending.dedup.idempotent import IdempotentSends
from dledger_broker.features.sending.dedup.identities import UnitRows
from dledger_remoting.codes import ResponseCode
from dledger_remoting.hosts import HostAddress
from dledger_remoting.record import MessageRecord, encode_record
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.expected import Incarnation, Stored
from dledger_sim.brokers.message_bodies import encode_body
from dledger_sim.brokers.pulls import PullJudge
from dledger_sim.brokers.truth import Truth
from dledger_sim.log.campaign import judge
from dledger_sim.log.cases import Case
from dledger_sim.log.group import GroupSettings, SimGroup, SimNode
from dledger_sim.log.invariants import Violation, require
from dledger_sim.log.mutants import MUTANTS
from dledger_sim.log.network import REDIAL_S
from dledger_sim.log.registers import serve_registers
from dledger_sim.log.run import _errors_judged
from dledger_sim.log.scheduler import Scheduler
from dledger_sim.log.workload import Workload, WorkloadSettings

HOST = HostAddress("127.0.0.1", 10911)


def test_a_node_must_hold_entries_acknowledged_after_a_disk_damage(group: SimGroup) -> None:
    for name in group.nodes:
        group.witness.amnesia(name)
    for node in group.nodes.values():
        node.sync_delay_s = 0.05
    Workload(group, Random(2), WorkloadSettings()).start()
    with MUTANTS["ack-before-sync"].applied(), pytest.raises(Violation, match="platter"):
        group.scheduler.run_until(10.0)


def test_acknowledging_an_entry_beyond_the_own_log_is_a_violation(group: SimGroup, leader: SimNode) -> None:
    follower = next(node.life for node in group.nodes.values() if node is not leader)
    term, beyond = follower.replica.engine.term, follower.replica.store.last_index + 1
    with pytest.raises(Violation, match="is in the sender's log"):
        group.witness.sending(follower, leader.name, AppendReply(term, beyond, beyond))


def test_an_error_of_a_disk_explains_no_other_failure(group: SimGroup) -> None:
    node = group.nodes["n0"]
    node.failing_disk = True
    with pytest.raises(Violation, match="a replica fails only if its disk fails"):
        group._replica_failed(node.life, InvariantError("something else"))
    group._replica_failed(node.life, StorageError("a write failed"))
    assert node.life is None


def test_a_violation_inside_a_request_handler_is_not_swallowed(group: SimGroup) -> None:
    life = group.nodes["n0"].life
    channel = RequestChannel(life.transport, 77, lambda *_: require(False, "a promise"), life.environment)
    with pytest.raises(Violation, match="a promise"):
        channel._run_handler(ReplicaId("n1", "x"), 1, b"")


def test_a_message_sent_just_before_a_kill_may_arrive_after_it(group: SimGroup) -> None:
    arrived: Counter[bool] = Counter()
    for _ in range(20):
        sender = group.nodes["n1"].life
        got: list[float] = []
        group.network.send(
            sender.replica_id, "n2", Lane.CONTROL, 10, lambda _, got=got: got.append(group.scheduler.now)
        )
        at = group.scheduler.now
        group.kill("n1")
        group.scheduler.run_until(at + 1.0)
        assert all(moment < at + REDIAL_S[0] for moment in got)
        arrived[bool(got)] += 1
        group.start("n1")
        group.scheduler.run_until(at + 4.0)
    assert arrived[True]
    assert arrived[False]


def test_a_power_loss_during_a_sync_may_keep_or_lose_the_write(group: SimGroup) -> None:
    node = group.nodes["n0"]
    left: Counter[bool] = Counter()
    for number in range(40):
        path = f"file-{number}"
        file = node.disk.open(path, create=True)
        node.disk.sync_dir(".")
        file.pwrite(b"x" * 512, 0)
        node.disk.fail(lambda operation, _: operation == "datasync", errno.ENODEV)
        with pytest.raises(OSError, match=path):
            file.datasync()
        node.disk.crash(group.random, "random")
        left[node.disk.durable_bytes(path, 0, 512) == b"x" * 512] += 1
    assert left[True]
    assert left[False]


def test_an_idempotent_send_that_is_not_remembered_is_no_excuse_for_its_repetition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remember, numbers = IdempotentSends.command, count()

    def forget_some(self: IdempotentSends, rows: UnitRows) -> bytearray:
        return remember(self, rows) if next(numbers) % 3 else bytearray()

    monkeypatch.setattr(IdempotentSends, "command", forget_some)
    outcome = judge(Case("repeats", 2, 20.0), "dledger_sim.brokers.lab")
    assert outcome.violation is not None
    assert outcome.violation.promise == "an idempotent send is remembered"


def test_a_pull_may_skip_only_trimmed_messages() -> None:
    truth = Truth(Counter(), COMMANDS)
    topic = truth.topics["lasting-0"] = Incarnation("lasting-0", 0)
    topic.first_offsets[0] = 3
    truth.begin(SimGroup(Scheduler(), Random(1), GroupSettings(), serve_registers))
    truth.expected.incarnations[topic.name, 0] = topic
    topic.queues[0] = [Stored(offset, topic.name, 0, 0, offset, offset, 1, 0, 0) for offset in range(5)]
    truth.by_position.update((stored.position, stored) for stored in topic.queues[0])
    judge_of_pulls = PullJudge(truth)
    assert judge_of_pulls.pulled(topic.name, 0, 1, _found(3)) == 4
    with pytest.raises(Violation, match="a pull skips nothing that is kept"):
        judge_of_pulls.pulled(topic.name, 0, 1, _found(4))


def _found(offset: int) -> Answer:
    record = MessageRecord(
        topic="lasting-0", queue_id=0, queue_offset=offset, physical_offset=offset, body=encode_body(offset, 0),
        born_timestamp=0, born_host=HOST, store_timestamp=0, store_host=HOST,
    )  # fmt: skip
    return Answer(ResponseCode.SUCCESS, {"nextBeginOffset": str(offset + 1)}, encode_record(record), "")


def test_an_error_that_a_node_logs_is_judged_though_its_exception_ends_only_a_task(group: SimGroup) -> None:
    """Nobody awaits a task of a node: garbage was collected in time, or what the task left undone was judged."""

    def run() -> None:
        with _errors_judged(group):
            with suppress(Violation):
                logging.getLogger("dledger_broker.views").error("event=it_differs")
            raise Violation("every request is answered", "one is not")

    with pytest.raises(Violation, match="event=it_differs"):
        run()
