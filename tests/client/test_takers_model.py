"""Random lives of a consumer group against one sentence: a message is finished by its taker, or not acknowledged.

The model knows which deliveries their takers have finished and which copies are stored in the retry topic. Whatever
happens (takers that ask, are cut off, fail, give back or end; handlers; members that join, leave and die; brokers that
hold up commits and copies), a broker is never told an offset that lies behind a message which nobody has finished. At
the end everything is finished, and committed: a rule that acknowledges nothing would keep the sentence too.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from client_fakes import FakeCluster
from hand_loop import HandLoop
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from dledger_client import PushConsumer
from dledger_remoting import properties as names
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import make_response
from dledger_remoting.headers import SendMessageHeader, UpdateConsumerOffsetHeader, decode_ext
from dledger_remoting.properties import parse_properties

QUEUES = 2
UNCOPYABLE = b"a\x01b\x01c"
"""Properties that hold what separates them: of such a message there can be no copy."""

Key = tuple[str, int, int]
"""Topic, queue id, offset."""


def key_of(message) -> Key:
    return message.queue.topic, message.queue_id, message.queue_offset


class Model:
    """What may be committed, and the judge of what is."""

    def __init__(self) -> None:
        self.done: set[Key] = set()
        self._settled: set[int] = set()
        self._kept = []  # or an id would be another delivery's later
        self._given_back = []

    def finish(self, message) -> None:
        if self._settle(message):
            self.done.add(key_of(message))

    def give_back(self, message) -> None:
        if self._settle(message):
            self._given_back.append(message)

    def _settle(self, message) -> bool:
        """The first word about a delivery counts."""
        first = id(message) not in self._settled
        self._settled.add(id(message))
        self._kept.append(message)
        return first

    def copied(self, origin: str, deliveries: int) -> None:
        [message, *_] = [
            one
            for one in self._given_back
            if one.reconsume_times + 1 == deliveries
            and one.properties.get(names.ORIGIN_MESSAGE_ID, one.offset_message_id) == origin
        ]
        self.done.add(key_of(message))

    def judge(self, topic: str, queue_id: int, offset: int) -> None:
        lost = [n for n in range(offset) if (topic, queue_id, n) not in self.done]
        assert not lost, f"{topic}/{queue_id}: {offset} is committed, and nobody has finished {lost}"


class Brokers:
    """A fake cluster of one node whose commits and copies the model sees, and the rules may hold up."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.faults: list[AssertionError] = []
        self.commits_go = asyncio.Event()
        self.copies_go = asyncio.Event()
        self.commits_go.set()
        self.copies_go.set()
        self.cluster = FakeCluster(1, 1)
        self.cluster.name_server.topics["T"] = QUEUES
        self.node = self.cluster.group.nodes[0]
        self.node.on[RequestCode.UPDATE_CONSUMER_OFFSET] = self._commit
        self.node.on[RequestCode.SEND_MESSAGE_V2] = self._copy

    async def _commit(self, command):
        header = decode_ext(UpdateConsumerOffsetHeader, command.ext)
        try:
            self.model.judge(header.topic, header.queue_id, header.commit_offset)
        except AssertionError as fault:
            self.faults.append(fault)
        if not self.commits_go.is_set():
            return make_response(command, ResponseCode.SYSTEM_BUSY, "busy")
        return await self.node.handle(command, None)

    async def _copy(self, command):
        await self.copies_go.wait()
        header = SendMessageHeader.decode(command.ext)
        properties = parse_properties((header.properties or "").encode())
        self.model.copied(properties[names.ORIGIN_MESSAGE_ID], header.reconsume_times)
        return await self.node.handle(command, None)

    def committed(self, topic: str, queue_id: int) -> int:
        return self.cluster.group.offsets.get(("CG", topic, queue_id), 0)

    def stored(self) -> dict[tuple[str, int], int]:
        return {key: len(records) for key, records in self.cluster.group.queues.items() if records}


class Taker:
    """A task that takes messages of one consumer, and does what the rules tell it."""

    def __init__(self, member: Member) -> None:
        self.member = member
        self.message = None
        self.asking = False
        self._orders: asyncio.Queue = asyncio.Queue()
        self.task = asyncio.create_task(self._run())

    def order(self, how: str) -> None:
        self._orders.put_nowait(how)

    async def _run(self) -> None:
        while True:
            how = await self._orders.get()
            self.asking = True
            try:
                if self.message is not None and self.member.auto_ack:
                    self.member.model.finish(self.message)
                self.message = None
                self.message = await self._ask(how)
            except (StopAsyncIteration, TimeoutError):
                pass
            except asyncio.CancelledError:
                if how == "until cut off":
                    asyncio.current_task().uncancel()
                else:
                    raise
            finally:
                self.asking = False

    async def _ask(self, how: str):
        consumer = self.member.consumer
        if how == "for a time":
            return await asyncio.wait_for(anext(consumer), 0.3)  # noqa: TID251 - programs do so
        if how == "in a task":
            return await asyncio.create_task(anext(consumer))
        return await anext(consumer)


class Member:
    """A consumer of the group with its takers, or its handler's messages in work."""

    def __init__(self, model: Model, address: str, number: int, *, handles: bool, auto_ack: bool, orderly: bool):
        self.model = model
        self.handles = handles
        self.auto_ack = auto_ack
        self.takers: list[Taker] = []
        self.received = []
        self.working: list[tuple[object, asyncio.Future]] = []
        self.closing: asyncio.Task | None = None
        self.consumer = PushConsumer(
            address,
            "CG",
            "T",
            self._handle if handles else None,
            concurrency=3,
            auto_ack=auto_ack,
            orderly=orderly,
            max_outstanding=8,
            pull_batch_size=4,
            client_id=f"member-{number}",
        )

    async def _handle(self, message) -> None:
        end = asyncio.get_running_loop().create_future()
        self.working.append((message, end))
        await end
        if self.auto_ack:
            self.model.finish(message)

    def end_handler(self, place: int, how: str) -> None:
        message, end = self.working.pop(place % len(self.working))
        if end.done():
            return
        if how == "fails":
            self.model.give_back(message)
            end.set_exception(ValueError("cannot process this"))
            return
        if how == "acknowledges and fails":
            self.model.finish(message)
            message.ack()
            end.set_exception(ValueError("failed afterwards"))
            return
        if how == "gives back":
            self.model.give_back(message)
            message.retry()
        elif how == "acknowledges":
            self.model.finish(message)
            message.ack()
        end.set_result(None)

    def held(self):
        """What was taken by hand, to be finished by hand."""
        return [taker.message for taker in self.takers if taker.message is not None] + self.received


def pick(place: int, choices):
    return choices[place % len(choices)]


PLACES = st.integers(0, 11)


class GroupLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = HandLoop()
        asyncio.set_event_loop(self.loop)
        self.model = Model()
        self.members: list[Member] = []
        self.count = 0
        self.old = []  # deliveries of members that are gone

    @initialize()
    def begin(self) -> None:
        async def begin():
            self.brokers = Brokers(self.model)
            for server in self.brokers.cluster.servers():
                self.loop.serve(server)

        self.loop.do(begin())

    def settle(self) -> None:
        self.loop.do()
        assert not self.brokers.faults, self.brokers.faults[0]

    def alive(self) -> list[Member]:
        return [member for member in self.members if member.closing is None]

    def iterated(self) -> list[Member]:
        return [member for member in self.alive() if not member.handles]

    def takers(self) -> list[Taker]:
        return [taker for member in self.members for taker in member.takers if not taker.task.done()]

    @rule(queue_id=st.integers(0, QUEUES - 1), count=st.integers(1, 4), copyable=st.sampled_from([True, True, False]))
    def send(self, queue_id, count, copyable):
        async def send():
            for _ in range(count):
                self.brokers.cluster.group.store("T", queue_id, b"x", b"" if copyable else UNCOPYABLE)

        self.loop.do(send())
        self.settle()

    @precondition(lambda self: len(self.alive()) < 2)
    @rule(handles=st.booleans(), auto_ack=st.sampled_from([True, True, False]), orderly=st.booleans())
    def join(self, handles, auto_ack, orderly):
        self.count += 1
        member = Member(
            self.model,
            self.brokers.cluster.namesrv,
            self.count,
            handles=handles,
            auto_ack=auto_ack,
            orderly=orderly,
        )
        self.members.append(member)
        self.loop.do(member.consumer.start())
        self.loop.do(self.loop.advance(0.7))
        self.settle()

    @precondition(lambda self: self.iterated())
    @rule(place=PLACES, how=st.sampled_from(["plainly", "for a time", "in a task", "until cut off"]), new=st.booleans())
    def ask(self, place, how, new):
        member = pick(place, self.iterated())
        idle = [taker for taker in member.takers if not (taker.asking or taker.task.done())]

        async def order():
            if not idle or (new and len(member.takers) < 4):
                member.takers.append(Taker(member))
                idle.append(member.takers[-1])
            idle[-1].order(how)

        self.loop.do(order())
        self.settle()

    @precondition(lambda self: self.takers())
    @rule(place=PLACES)
    def cut_off(self, place):
        """Cancels a task: one that asks `until cut off` goes on, another ends with what it has."""
        self.loop.do(_call(pick(place, self.takers()).task.cancel))
        self.settle()

    @precondition(lambda self: self.iterated())
    @rule(place=PLACES, count=st.integers(1, 3))
    def receive(self, place, count):
        member = pick(place, self.iterated())
        receiving = self.loop.create_task(member.consumer.receive(count, timeout=0.2))
        self.loop.do(self.loop.advance(0.2))
        if receiving.done():
            member.received += receiving.result()
        self.settle()

    @rule(place=PLACES, back=st.booleans())
    def settle_by_hand(self, place, back):
        """Anybody finishes a message by `ack` or `retry`, also long after its queue has moved, and more than once."""
        held = [message for member in self.members for message in member.held()] + self.old
        held += [message for member in self.members for message, _ in member.working]
        if held:
            message = pick(place, held)
            (self.model.give_back if back else self.model.finish)(message)
            self.loop.do(_call(message.retry if back else message.ack))
            self.settle()

    @rule(
        place=PLACES,
        how=st.sampled_from(["returns", "returns", "fails", "acknowledges and fails", "gives back", "acknowledges"]),
    )
    def end_handler(self, place, how):
        working = [member for member in self.members if member.working]
        if working:
            self.loop.do(_call(partial(pick(place, working).end_handler, place, how)))
            self.settle()

    @rule(seconds=st.sampled_from([0.2, 0.45, 1.0, 5.5, 21.0]))
    def wait(self, seconds):
        self.loop.do(self.loop.advance(seconds))
        self.settle()

    @precondition(lambda self: self.alive())
    @rule(place=PLACES)
    def commit(self, place):
        self.loop.create_task(_quietly(pick(place, self.alive()).consumer.commit()))
        self.settle()

    @precondition(lambda self: self.alive())
    @rule(place=PLACES, seconds=st.sampled_from([0.0, 0.1, 30.0]), gives_up=st.booleans())
    def close(self, place, seconds, gives_up):
        """Leaves the group: by a close that has its time, or, as good as killed, by one that is cut off."""
        member = pick(place, self.alive())
        member.closing = self.loop.create_task(member.consumer.close())
        self.loop.do(self.loop.advance(seconds))
        if gives_up:
            self.loop.do(_call(member.closing.cancel))
        self.old += member.held() + [message for message, _ in member.working]
        self.settle()

    @rule(commits=st.booleans(), copies=st.booleans())
    def hold_up(self, commits, copies):
        async def change():
            for event, go in ((self.brokers.commits_go, commits), (self.brokers.copies_go, copies)):
                event.set() if go else event.clear()

        self.loop.do(change())
        self.settle()

    def teardown(self) -> None:
        try:
            if hasattr(self, "brokers"):
                self.hold_up(commits=True, copies=True)
                while self.alive():
                    self.close(0, 30.0, gives_up=False)
                self.read_the_rest()
        finally:
            self.loop.end()
            asyncio.set_event_loop(None)

    def read_the_rest(self) -> None:
        """What nobody has finished comes to the next member, and once that has finished it, all is committed."""
        self.count += 1
        arguments = {"handles": False, "auto_ack": True, "orderly": False}
        last = Member(self.model, self.brokers.cluster.namesrv, self.count, **arguments)
        self.loop.do(last.consumer.start())
        came = []

        async def read():
            async for message in last.consumer:
                self.model.finish(message)
                message.ack()
                came.append(key_of(message))

        before = {
            (topic, queue_id): self.brokers.committed(topic, queue_id) for topic, queue_id in self.brokers.stored()
        }
        reading = self.loop.create_task(read())
        self.loop.do(self.loop.advance(30))
        self.loop.do(last.consumer.close())
        self.loop.run_until_complete(reading)
        self.settle()
        for (topic, queue_id), end in self.brokers.stored().items():
            assert self.brokers.committed(topic, queue_id) == end
            mine = [offset for one, number, offset in came if (one, number) == (topic, queue_id)]
            assert mine == list(range(before[topic, queue_id], end))


async def _call(function) -> None:
    function()


async def _quietly(work) -> None:
    with suppress(Exception):
        await work


def test_only_what_its_taker_has_finished_is_ever_committed(caplog):
    caplog.set_level("CRITICAL")
    run_state_machine_as_test(
        GroupLife, settings=settings(max_examples=120, stateful_step_count=40, derandomize=True, deadline=None)
    )
