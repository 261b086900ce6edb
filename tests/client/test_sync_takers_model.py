"""Random histories of a blocking consumer that threads share, with the property of `test_takers_model`."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from unittest.mock import patch

from hand_loop import HandLoop
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from test_takers_model import PLACES, QUEUES, SMALL, UNCOPYABLE, Brokers, Model, brokers_on, pick

from dledger_client import SyncConsumer


class Taker(threading.Thread):
    """Thread that asks for a message, and ends, when it is told to."""

    def __init__(self, life: BlockingLife) -> None:
        super().__init__(daemon=True)
        self.message = None
        self.answered = threading.Event()
        self.answered.set()
        self._life = life
        self._orders: queue.SimpleQueue = queue.SimpleQueue()
        self.start()

    def order(self, what: str) -> None:
        if what == "ask":
            self.answered.clear()
        self._orders.put(what)

    def run(self) -> None:
        while self._orders.get() == "ask":
            if self.message is not None and self._life.auto_ack:
                self._life.model.finish(self.message)
            self.message = None
            self.message = next(self._life.consumer, None)
            self.answered.set()


class BlockingLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.brokers: Brokers | None = None
        self.old = []

    @initialize(auto_ack=st.booleans())
    def begin(self, auto_ack=True):
        """Start another consumer with another loop, which continues with the brokers' state."""
        before = self.brokers
        self.auto_ack = auto_ack
        self.takers: list[Taker] = []
        self.received = []
        self.loop = HandLoop()

        self.brokers = self.loop.do(brokers_on(self.loop, self.model))
        if before is not None:
            self.brokers.cluster.group.queues = before.cluster.group.queues
            self.brokers.cluster.group.offsets = before.cluster.group.offsets
        with patch.object(asyncio, "new_event_loop", lambda: self.loop):
            address, options = self.brokers.cluster.namesrv, {"client_id": "member-1", "close_timeout": 0, **SMALL}
            self.consumer = SyncConsumer(address, "CG", "T", auto_ack=auto_ack, **options)
        self.on_loop(self.loop.advance(0.7))

    def on_loop(self, work):
        result = asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=10)
        self.steady()
        return result

    def steady(self) -> None:
        """Wait until every thread has its message or waits for one, and the loop is idle."""
        deadline = time.monotonic() + 10
        while True:
            asyncio.run_coroutine_threadsafe(self.loop.until_idle(), self.loop).result(timeout=10)
            asking = [taker for taker in self.takers if not taker.answered.is_set()]
            waiting = [one for one in self.consumer._client._running.offers._waiters if not one.done()]
            if not asking or waiting:
                break
            assert time.monotonic() < deadline
            time.sleep(0.0001)
        assert not self.brokers.faults, self.brokers.faults[0]

    @rule(queue_id=st.integers(0, QUEUES - 1), count=st.integers(1, 4), copyable=st.sampled_from([True, True, False]))
    def send(self, queue_id, count, copyable):
        async def store():
            for _ in range(count):
                self.brokers.cluster.group.store("T", queue_id, b"x", b"" if copyable else UNCOPYABLE)

        self.on_loop(store())

    @rule(new=st.booleans())
    def ask(self, new):
        idle = [taker for taker in self.takers if taker.answered.is_set() and taker.is_alive()]
        if not idle or (new and len(self.takers) < 4):
            self.takers.append(Taker(self))
            idle.append(self.takers[-1])
        idle[-1].order("ask")
        self.steady()

    @precondition(lambda self: any(taker.answered.is_set() for taker in self.takers))
    @rule(place=PLACES)
    def end_thread(self, place):
        """End a thread that still holds its message."""
        taker = pick(place, [taker for taker in self.takers if taker.answered.is_set()])
        taker.order("end")
        taker.join(timeout=10)
        self.takers.remove(taker)
        self.old += [taker.message] if taker.message is not None else []

    @rule(place=PLACES, back=st.booleans())
    def settle_by_hand(self, place, back):
        held = [taker.message for taker in self.takers if taker.message is not None] + self.received + self.old
        if held:
            message = pick(place, held)
            (self.model.give_back if back else self.model.finish)(message)
            (message.retry if back else message.ack)()
            self.steady()

    @rule(count=st.integers(1, 3))
    def receive(self, count):
        if self.consumer._client._running.offers:
            self.received += self.consumer.receive(count)
            self.steady()

    @rule(seconds=st.sampled_from([0.2, 0.45, 1.0, 5.5, 21.0]))
    def wait(self, seconds):
        self.on_loop(self.loop.advance(seconds))

    @rule(there=st.booleans())
    def other_member(self, there):
        """Let another member join and take half of the queues, or leave."""

        async def change():
            members = self.brokers.cluster.group.members["CG"]
            if there:
                members["other"] = next(iter(members.values()))
            else:
                members.pop("other", None)
            self.brokers.node._notify_members("CG")

        self.on_loop(change())

    @rule()
    def commit(self):
        self.consumer.commit()
        self.steady()

    @rule(auto_ack=st.booleans())
    def close_and_begin_again(self, auto_ack):
        self.close()
        self.begin(auto_ack)

    def close(self) -> None:
        self.consumer.close()
        for taker in self.takers:
            assert taker.answered.wait(timeout=10)
            taker.order("end")
            taker.join(timeout=10)
        self.old += [taker.message for taker in self.takers if taker.message is not None] + self.received
        assert not self.brokers.faults, self.brokers.faults[0]

    def teardown(self) -> None:
        if self.brokers is None:
            return
        self.close()
        self.begin(auto_ack=False)
        for _ in range(20):
            self.on_loop(self.loop.advance(5))
            while self.consumer._client._running.offers:
                for message in self.consumer.receive(32):
                    self.model.finish(message)
                    message.ack()
                self.steady()
        self.close()
        for (topic, queue_id), end in self.brokers.stored().items():
            assert self.brokers.committed(topic, queue_id) == end


def test_a_commit_covers_only_messages_finished_by_their_thread(caplog):
    caplog.set_level("CRITICAL")
    run_state_machine_as_test(
        BlockingLife, settings=settings(max_examples=40, stateful_step_count=30, derandomize=True, deadline=None)
    )
