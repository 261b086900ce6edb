"""Leaders with damaged consume queues mend them, or hand over if that takes long. No reader gets wrong messages."""

from typing import cast

import pytest

from dledger_broker.views.mending import QueueMender
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_sim.brokers.clients import pull_fields
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.schedules.brokers import TOPIC, Brokers
from dledger_sim.brokers.schedules.pops import codes
from dledger_sim.brokers.service import SimBroker

MESSAGES = 6


class Damaged:
    """Group of three nodes. The queue in the leader's files has rotted."""

    def __init__(self) -> None:
        self.brokers = Brokers()
        self.old = self.brokers.leader
        connection = self.brokers.connect(self.old)
        for _ in range(MESSAGES):
            self.brokers.send(connection, TOPIC)
            self.brokers.run(0.3)
        self.brokers.run(2.0)  # the units are in files, and no longer in memory
        disk = self.brokers.group.nodes[self.old].disk
        (path,) = [path for path in disk.paths() if path.startswith(f"consumequeue/{TOPIC}/0/")]
        disk.flip_bit(path, 8 * 20 * (MESSAGES // 2) + 40)

    def pull(self) -> list[Answer | None]:
        """Pull the damaged row at the node that led at first, and return the list that receives the answer."""
        fields = {"consumerGroup": "g", "topic": TOPIC, "queueId": "0", **pull_fields(MESSAGES // 2, 1)}
        return self.brokers.ask(self.brokers.connect(self.old), RequestCode.PULL_MESSAGE, fields)


def test_a_pull_of_a_damaged_queue_waits_until_the_leader_has_mended_the_queue() -> None:
    damaged = Damaged()
    answers = damaged.pull()
    damaged.brokers.run(1.0)
    (answer,) = answers
    assert answer is not None
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.SUCCESS, str(MESSAGES // 2 + 1))
    life = damaged.brokers.group.nodes[damaged.old].life
    assert life is not None
    assert cast(SimBroker, life.service).broker.mender.mended == 1
    assert damaged.brokers.leader == damaged.old


def test_a_leader_that_cannot_mend_a_queue_hands_over_and_pulls_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(_mender: QueueMender) -> None:
        raise OSError("the log cannot be read now")

    monkeypatch.setattr(QueueMender, "mend", never)
    damaged = Damaged()
    damaged.pull()
    damaged.brokers.run(12.0)
    assert damaged.brokers.leader != damaged.old
    answers = damaged.pull()  # at the old leader, which forwards it
    damaged.brokers.run(1.0)
    assert codes(answers) == [ResponseCode.SUCCESS]
