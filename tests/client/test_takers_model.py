"""Random histories of a consumer group with one property: a message is finished by its taker, or not acknowledged.

The model knows which deliveries their takers have finished and which copies are in the retry topic. Takers ask, are cut
off, fail, give back or end. Members join, leave and die. Brokers hold up commits and copies. A broker never gets an
offset behind a message that nobody has finished. At the end everything is finished and committed, since a client that
acknowledges nothing would keep the property too.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial

from client_fakes import FakeCluster
from hand_loop import HandLoop
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from dledger_client import PushConsumer
from dledger_remoting import properties as names
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.command import make_response
from dledger_remoting.headers import SendMessageHeader, UpdateConsumerOffsetHeader, decode_ext
from dledger_remoting.properties import parse_properties

QUEUES = 2
UNCOPYABLE = b"a\x01b\x01c"
"""Properties that contain their separators. Such a message cannot be copied."""

SMALL = {"max_outstanding": 8, "pull_batch_size": 4}
"""Options of consumers that meet their limits within a few messages."""

Key = tuple[str, int, int]
"""Topic, queue id, offset."""


def key_of(message) -> Key:
    return message.queue.topic, message.queue_id, message.queue_offset


class Model:
    """Offsets that may be committed, and the check of each commit."""

    def __init__(self) -> None:
        self.done: set[Key] = set()
        self._settled: set[int] = set()
        self._kept = []  # keeps messages alive, so that no later delivery gets the same id
        self._given_back = []

    def finish(self, message) -> None:
        if self._settle(message):
            self.done.add(key_of(message))

    def give_back(self, message) -> None:
        if self._settle(message):
            self._given_back.append(message)

    def _settle(self, message) -> bool:
        """Note the first decision about a delivery, and return whether this is it."""
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
    """Fake cluster of one node. The model sees its commits and copies, and the rules may hold them up."""

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


async def brokers_on(loop: HandLoop, model: Model) -> Brokers:
    """Return brokers to which the connections of a loop lead."""
    brokers = Brokers(model)
    for server in brokers.cluster.servers():
        loop.serve(server)
    return brokers


class Taker:
    """Task that takes messages of one consumer, and does what the rules tell it."""

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
            return await asyncio.wait_for(anext(consumer), 0.3)  # noqa: TID251 - applications use it
        if how == "in a task":
            return await asyncio.create_task(anext(consumer))
        return await anext(consumer)


class Member:
    """Consumer of the group with its takers, or the messages that its handler works on."""

    def __init__(self, model: Model, address: str, number: int, handles: bool, by_hand: bool, orderly: bool):
        self.model = model
        self.handles = handles
        self.auto_ack = not by_hand
        self.takers: list[Taker] = []
        self.received = []
        self.working: list[tuple[object, asyncio.Future]] = []
        self.closing: asyncio.Task | None = None
        options = {"auto_ack": self.auto_ack, "orderly": orderly, "client_id": f"member-{number}"}
        self.consumer = PushConsumer(
            address, "CG", "T", self._handle if handles else None, concurrency=3, **SMALL, **options
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
        if how in ("acknowledges", "acknowledges and fails"):
            self.model.finish(message)
            message.ack()
        elif how in ("gives back", "fails"):
            self.model.give_back(message)
        if how == "gives back":
            message.retry()
        if how in ("fails", "acknowledges and fails"):
            end.set_exception(ValueError("cannot process this"))
        else:
            end.set_result(None)

    def held(self):
        """Return the messages that were taken by hand and must be finished by hand."""
        return [taker.message for taker in self.takers if taker.message is not None] + self.received


def pick(place: int, choices):
    return choices[place % len(choices)]


PLACES = st.integers(0, 11)
ACTIONS = [
    *("ask", "ask", "ask", "end a handler", "end a handler", "settle", "settle", "receive", "cut off"),
    *("wait", "wait", "wait", "join", "close", "hold up", "send"),
]
HOWS = ["plainly", "plainly", "for a time", "in a task", "until cut off"]
ENDS = ["returns", "returns", "fails", "acknowledges and fails", "gives back", "acknowledges"]


class GroupLife(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.loop = HandLoop()
        asyncio.set_event_loop(self.loop)
        self.model = Model()
        self.members: list[Member] = []
        self.count = 0
        self.old = []  # deliveries of members that are gone

    @initialize(handles=st.booleans(), by_hand=st.booleans(), orderly=st.booleans())
    def begin(self, handles, by_hand, orderly) -> None:
        self.brokers = self.loop.do(brokers_on(self.loop, self.model))
        self.send(copyable=True)
        self.join(handles, by_hand, orderly)

    def settle(self) -> None:
        """Commit after every step, so that the step that causes a wrong commit is the one that fails."""
        for member in self.alive():
            self.loop.create_task(_quietly(member.consumer.commit()))
        self.loop.do()
        assert not self.brokers.faults, self.brokers.faults[0]

    def alive(self) -> list[Member]:
        return [member for member in self.members if member.closing is None]

    def iterated(self) -> list[Member]:
        return [member for member in self.alive() if not member.handles]

    def takers(self) -> list[Taker]:
        return [taker for member in self.members for taker in member.takers if not taker.task.done()]

    @rule(
        action=st.sampled_from(ACTIONS),
        place=st.integers(0, 11),
        how=st.integers(0, 59),
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    )
    def step(self, action, place, how, flags):
        """Do one step of any kind. With a rule per kind, Hypothesis would leave whole rules out of most histories."""
        if action == "ask" and self.iterated():
            self.ask(pick(place, self.iterated()), pick(how, HOWS), flags)
        elif action in ("ask", "end a handler"):
            self.end_handler(place, pick(how, ENDS))
        elif action == "settle":
            self.settle_by_hand(place, back=flags[0])
        elif action == "receive" and self.iterated():
            self.receive(pick(place, self.iterated()), how % 3 + 1)
        elif action == "cut off" and self.takers():
            self.cut_off(pick(place, self.takers()))
        elif action == "wait":
            self.wait(pick(how, [0.2, 0.45, 0.45, 1.0, 5.5, 21.0]))
        elif action == "join" and len(self.alive()) < 2:
            self.join(*flags)
        elif action == "close" and len(self.alive()) > flags[0]:
            self.close(pick(place, self.alive()), pick(how, [0.0, 0.1, 30.0]), gives_up=flags[1])
            if not self.alive():
                self.join(*flags)
        elif action == "hold up":
            self.hold_up(commits=flags[0], copies=flags[1])
        else:
            self.send(copyable=flags[0])

    def send(self, *, copyable):
        async def send():
            for queue_id in (*range(QUEUES), 0):
                self.brokers.cluster.group.store("T", queue_id, b"x", b"" if copyable else UNCOPYABLE)

        self.loop.do(send())

    def join(self, handles, by_hand, orderly):
        self.count += 1
        member = Member(self.model, self.brokers.cluster.namesrv, self.count, handles, by_hand, orderly)
        self.members.append(member)
        self.loop.do(member.consumer.start())
        self.loop.do(self.loop.advance(0.7))
        self.settle()

    def ask(self, member, how, asks):
        """Let idle takers ask, or new ones."""

        async def order(new):
            idle = [taker for taker in member.takers if not (taker.asking or taker.task.done())]
            if not idle or (new and len(member.takers) < 4):
                member.takers.append(Taker(member))
                idle.append(member.takers[-1])
            idle[-1].order(how)

        for new in asks:
            self.loop.do(order(new))
        self.settle()
        if not member.consumer._running.offers:
            self.send(copyable=True)

    def cut_off(self, taker):
        """Cancel a task. A taker that asks `until cut off` goes on, and any other ends with its message."""
        self.loop.do(_call(taker.task.cancel))
        self.settle()

    def receive(self, member, count):
        receiving = self.loop.create_task(member.consumer.receive(count, timeout=0.2))
        self.loop.do(self.loop.advance(0.2))
        if receiving.done():
            member.received += receiving.result()
        self.settle()

    def settle_by_hand(self, place, *, back):
        """Finish any message by `ack` or `retry`, also long after its queue has moved, and more than once."""
        held = [message for member in self.members for message in member.held()] + self.old
        held += [message for member in self.members for message, _ in member.working]
        if held:
            message = pick(place, held)
            (self.model.give_back if back else self.model.finish)(message)
            self.loop.do(_call(message.retry if back else message.ack))
            self.settle()

    def end_handler(self, place, how):
        working = [member for member in self.members if member.working]
        if not working:
            self.send(copyable=True)
        else:
            self.loop.do(_call(partial(pick(place, working).end_handler, place, how)))
            self.settle()
            self.send(copyable=True)

    def wait(self, seconds):
        self.loop.do(self.loop.advance(seconds))
        self.settle()

    def close(self, member, seconds, *, gives_up):
        """Let a member leave, by a close with enough time, or by one that is cut off, as good as a kill."""
        member.closing = self.loop.create_task(member.consumer.close())
        self.loop.do(self.loop.advance(seconds))
        if gives_up:
            self.loop.do(_call(member.closing.cancel))
        self.old += member.held() + [message for message, _ in member.working]
        self.settle()

    def hold_up(self, *, commits, copies):
        async def change():
            for event, go in ((self.brokers.commits_go, commits), (self.brokers.copies_go, copies)):
                event.set() if go else event.clear()

        self.loop.do(change())
        self.settle()

    def teardown(self) -> None:
        try:
            if hasattr(self, "brokers"):
                self.hold_up(commits=True, copies=True)
                for member in self.alive():
                    member.closing = self.loop.create_task(member.consumer.close())
                self.loop.do(self.loop.advance(30.0))
                self.read_the_rest()
        finally:
            self.loop.end()
            asyncio.set_event_loop(None)

    def read_the_rest(self) -> None:
        """Check that the next member gets all unfinished messages, and commits them once they are finished."""
        self.count += 1
        last = Member(self.model, self.brokers.cluster.namesrv, self.count, False, False, False)
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


def test_a_commit_covers_only_messages_finished_by_their_taker(caplog):
    caplog.set_level("CRITICAL")
    run_state_machine_as_test(
        GroupLife, settings=settings(max_examples=150, stateful_step_count=40, derandomize=True, deadline=None)
    )
