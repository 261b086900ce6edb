"""The resets at the end of a run wait for messages that were delivered after them, and not for earlier ones."""

from __future__ import annotations

from dledger_chaos.workloads.resets import ResetsWorkload
from dledger_client import MessageQueue

QUEUES = [MessageQueue("t", "broker-a", number) for number in range(2)]


async def test_messages_delivered_before_the_reset_of_their_queue_are_expected_again(monkeypatch):
    workload = ResetsWorkload()
    workload._delivered = {(queue, 0) for queue in QUEUES}

    async def reset(_ctx, _process, queue, offset, _node):
        for other in QUEUES:  # a member reads on: of the other queue before that queue's reset, or after it
            workload._delivered.add((other, 10 + queue.queue_id))
        return {queue: offset}

    async def first(_queue):
        return 0

    monkeypatch.setattr(workload, "_reset_queue", reset)
    monkeypatch.setattr(workload, "_read_first_offset", first)
    assert await workload._reset_until_answered(None, dict.fromkeys(QUEUES, 5)) == dict.fromkeys(QUEUES, 5)
    assert workload._delivered == {(QUEUES[0], 10), (QUEUES[0], 11), (QUEUES[1], 11)}
