"""The blocking classes: used from threads, served by an event loop of their own."""

from __future__ import annotations

import asyncio
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from unittest.mock import create_autospec

import pytest
from client_fakes import fake_cluster

import dledger_client
import dledger_client.consumer
from dledger_client import (
    AccountAdmin,
    Admin,
    ClientClosedError,
    InvalidArgumentError,
    OrderlyConsumer,
    Producer,
    PullConsumer,
    PushConsumer,
    SendError,
    SimpleConsumer,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    SyncPullConsumer,
    SyncSimpleConsumer,
    SyncTransactionProducer,
    TransactionProducer,
)
from dledger_client.blocking import Blocking, ClosedAfterUse
from dledger_client.sync import ConsumerOptions, ProducerOptions
from dledger_remoting.codes import RequestCode

FACES = {
    SyncProducer: (Producer, {"start"}, set()),
    SyncAdmin: (Admin, {"start"}, set()),
    SyncTransactionProducer: (TransactionProducer, {"start"}, set()),
    SyncSimpleConsumer: (SimpleConsumer, {"start"}, set()),
    SyncPullConsumer: (PullConsumer, {"start"}, set()),
    SyncConsumer: (
        PushConsumer,
        {"start", "run_forever", "client_id"},
        {"handler", "concurrency", "close_timeout"},
    ),
}
"""Each blocking class, the asynchronous one that it is the face of, and the calls and options that it leaves out:
making it starts it, and who iterates needs no handler.
"""
ASYNCHRONOUS_ONLY = {AccountAdmin, OrderlyConsumer}
"""`SyncConsumer` has `orderly=True`; accounts have a command line."""


@pytest.fixture
def cluster():
    """A fake cluster on an event loop in a thread, as the blocking client needs one beside itself."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    context = fake_cluster(topics={"T": 1})
    started = asyncio.run_coroutine_threadsafe(context.__aenter__(), loop).result()
    yield started
    asyncio.run_coroutine_threadsafe(context.__aexit__(None, None, None), loop).result()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_messages_go_through_without_an_event_loop_of_the_program(cluster):
    with SyncProducer(cluster.namesrv, group="PG") as producer:
        producer.send("T", b"one", key="k")
        producer.send_batch("T", [b"two", b"three"])
        producer.send_oneway("T", b"four")
    received = []
    with SyncConsumer(cluster.namesrv, "CG", "T") as consumer:
        for message in consumer:
            received.append(message.body)
            if len(received) == 4:
                message.ack()
                break
    assert received == [b"one", b"two", b"three", b"four"]
    with SyncAdmin(cluster.namesrv) as admin:
        assert [status.lag for status in admin.offsets("CG", "T")] == [0]


def test_messages_may_be_acknowledged_from_any_thread(cluster):
    with SyncProducer(cluster.namesrv) as producer:
        producer.send_batch("T", [b"x"] * 8)
    with SyncConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
        messages = []
        while len(messages) < 8:
            messages += consumer.receive(8, timeout=10)
        threads = [threading.Thread(target=message.ack) for message in messages]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        consumer.commit()
        assert cluster.group.offsets["CG", "T", 0] == 8


def test_a_message_that_was_given_back_is_not_acknowledged_by_asking_for_the_next_one(cluster, monkeypatch):
    monkeypatch.setattr(dledger_client.consumer, "pause_seconds", lambda _failures: 0.0)
    with SyncProducer(cluster.namesrv) as producer:
        producer.send_batch("T", [b"x"] * 3)
    with pytest.raises(ZeroDivisionError):
        give_one_back_and_fail_at_the_next(cluster)
    assert cluster.group.offsets.get(("CG", "T", 0), 0) == 0


def give_one_back_and_fail_at_the_next(cluster):
    with SyncConsumer(cluster.namesrv, "CG", "T", orderly=True) as consumer:
        for message in consumer:
            if message.reconsume_times == 1:
                raise ZeroDivisionError
            assert message.queue_offset == 0
            message.retry()
            while not consumer._consumer._running.offers:
                time.sleep(0.001)


def test_many_threads_may_send_at_the_same_time(cluster):
    with SyncProducer(cluster.namesrv) as producer:
        threads = [threading.Thread(target=lambda: [producer.send("T", b"x") for _ in range(20)]) for _ in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(cluster.group.bodies("T")) == 100


def test_errors_are_those_of_the_asynchronous_call(cluster):
    with SyncProducer(cluster.namesrv, timeout=1.0) as producer, pytest.raises(SendError) as failure:
        producer.send("nowhere", b"x")
    assert failure.value.outcome == "not_sent"


def test_a_closed_client_says_so(cluster):
    producer = SyncProducer(cluster.namesrv)
    producer.close()
    with pytest.raises(ClientClosedError):
        producer.send("T", b"x")


@pytest.mark.parametrize("kind", [SyncProducer, SyncAdmin, lambda address: SyncConsumer(address, "CG", "T")])
def test_closing_twice_is_closing_once(cluster, kind):
    with kind(cluster.namesrv) as client:
        client.close()


def test_a_client_that_cannot_start_leaves_no_thread(cluster, tmp_path):
    damaged = tmp_path / "offsets.json"
    damaged.write_text("{")
    before = set(threading.enumerate())
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        SyncConsumer(cluster.namesrv, "CG", "T", broadcast=True, offset_file=damaged)
    assert set(threading.enumerate()) <= before


def calls(kind):
    """The public calls of a class, each with its parameters, which have names, places and defaults."""
    return {
        name: list(inspect.signature(member).parameters.values())
        for name, member in vars(kind).items()
        if callable(member) and not name.startswith("_")
    }


def shapes(kind):
    """The same without types, which differ: a blocking call returns what the other one promises."""
    return {name: [(at.name, at.kind, at.default) for at in call] for name, call in calls(kind).items()}


def properties(kind):
    return {name for name, member in vars(kind).items() if isinstance(member, property) and not name.startswith("_")}


def options(kind):
    """What a constructor takes, with what it takes as the options of another class."""
    names = dict(inspect.signature(kind.__init__).parameters)
    unpacked = {SyncProducer: ProducerOptions, SyncConsumer: ConsumerOptions}.get(kind)
    if unpacked is not None:
        del names["options"]
        names |= unpacked.__annotations__
    return set(names)


@pytest.mark.parametrize("blocking", FACES)
def test_what_can_be_asked_asynchronously_can_be_asked_blocking(blocking):
    asynchronous, absent, _ = FACES[blocking]
    expected = {name: shape for name, shape in shapes(asynchronous).items() if name not in absent}
    assert shapes(blocking) == expected
    assert properties(blocking) == properties(asynchronous) - absent


@pytest.mark.parametrize("blocking", FACES)
def test_a_blocking_class_is_made_with_the_options_of_the_asynchronous_one(blocking):
    asynchronous, _, absent = FACES[blocking]
    assert options(blocking) == options(asynchronous) - absent


def test_every_blocking_class_has_its_asynchronous_one_and_every_client_but_two_a_blocking_one():
    exported = [kind for kind in map(vars(dledger_client).get, dledger_client.__all__) if inspect.isclass(kind)]
    assert {kind for kind in exported if issubclass(kind, ClosedAfterUse)} == set(FACES)
    asynchronous = {kind for kind in exported if inspect.iscoroutinefunction(getattr(kind, "start", None))}
    blocking_ones = {kind for kind, _, _ in FACES.values()}
    assert asynchronous - blocking_ones == ASYNCHRONOUS_ONLY


@pytest.mark.parametrize("blocking", FACES)
def test_a_blocking_call_hands_on_every_argument(blocking):
    """`SyncConsumer` finishes messages itself, from whichever thread: that has tests of its own."""
    asynchronous = FACES[blocking][0]
    face = object.__new__(blocking)
    face._blocking = Blocking("test", asyncio.sleep(0))
    asked = create_autospec(asynchronous, instance=True)
    face._producer = face._consumer = face._admin = asked
    own = {"close"} | ({"nack", "receive"} if blocking is SyncConsumer else set())
    try:
        for name, parameters in calls(blocking).items():
            given = {at.name: object() for at in parameters[1:]}
            if name not in own:
                inspect.unwrap(getattr(blocking, name))(face, **given)
                (call,) = getattr(asked, name).call_args_list
                signature = inspect.signature(getattr(asynchronous, name))
                assert signature.bind(face, *call.args, **call.kwargs).arguments == {"self": face, **given}, name
    finally:
        face._blocking.stop()


def test_a_call_under_way_ends_when_another_thread_stops_the_loop():
    blocking = Blocking("test", asyncio.sleep(0))
    begun = threading.Event()
    told: list[type[BaseException]] = []

    async def work():
        begun.set()
        await asyncio.Event().wait()

    def call():
        try:
            blocking.run(work())
        except ClientClosedError as error:
            told.append(type(error))

    caller = threading.Thread(target=call)
    caller.start()
    begun.wait()
    blocking.stop()
    caller.join(timeout=10)
    assert told == [ClientClosedError]


def test_closing_from_another_thread_ends_the_iteration(cluster):
    consumer = SyncConsumer(cluster.namesrv, "CG", "T")
    closing = threading.Timer(0.1, consumer.close)
    closing.start()
    assert list(consumer) == []
    closing.join()


def test_closing_from_another_thread_within_the_with_block_commits(cluster):
    node, committing, go_on = cluster.group.nodes[0], threading.Event(), threading.Event()

    async def slow(command):
        committing.set()
        await asyncio.to_thread(go_on.wait)
        return await node.handle(command, None)

    with SyncProducer(cluster.namesrv) as producer:
        producer.send_batch("T", [b"x"] * 4)
    with SyncConsumer(cluster.namesrv, "CG", "T") as consumer:
        node.on[RequestCode.UPDATE_CONSUMER_OFFSET] = slow
        messages = [next(consumer) for _ in range(4)]
        messages[-1].ack()
        closing = threading.Thread(target=consumer.close)
        closing.start()
        committing.wait()
        threading.Timer(0.1, go_on.set).start()
    closing.join()
    assert cluster.group.offsets["CG", "T", 0] == 4


def test_a_closed_consumer_hands_out_nothing_more(cluster):
    with SyncProducer(cluster.namesrv) as producer:
        producer.send_batch("T", [b"x"] * 4)
    with SyncConsumer(cluster.namesrv, "CG", "T") as consumer:
        next(consumer)
        consumer.close()
        assert list(consumer) == []


def test_a_call_that_is_cut_off_may_have_taken_effect():
    blocking = Blocking("test", asyncio.sleep(0))

    async def stop_meanwhile():
        stopping = threading.Thread(target=blocking.stop)
        stopping.start()
        await asyncio.Event().wait()

    with pytest.raises(ClientClosedError) as failure:
        blocking.run(stop_meanwhile())
    assert failure.value.outcome == "unknown"


def test_messages_that_an_interrupted_poll_had_found_are_read_again(cluster, monkeypatch):
    ready = Future.result

    def interrupted(future, timeout=None):
        monkeypatch.setattr(Future, "result", ready)
        assert ready(future, timeout)
        raise KeyboardInterrupt

    with SyncProducer(cluster.namesrv) as producer:
        sent = [producer.send("T", body) and body for body in (b"1", b"2", b"3")]
    with SyncPullConsumer(cluster.namesrv, "CG") as consumer:
        (queue,) = consumer.queues("T")
        consumer.assign([queue])
        monkeypatch.setattr(Future, "result", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(10, timeout=5.0)
        consumer.commit()
        assert consumer.committed(queue) == 0
        assert [message.body for message in consumer.poll(10, timeout=5.0)] == sent


def test_a_forked_process_is_told_to_make_its_own_client(cluster):
    with SyncProducer(cluster.namesrv) as producer:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            try:
                producer.send("T", b"x")
            except ClientClosedError as error:
                producer.close()
                os._exit(0 if "make one in each process" in str(error) else 2)
            os._exit(3)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert producer.send("T", b"x").queue_offset == 0


def test_a_forked_process_does_not_take_a_consumer_that_is_not_its_own_for_one_at_its_end(cluster):
    with SyncConsumer(cluster.namesrv, "CG", "T") as consumer:
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            try:
                next(consumer)
            except ClientClosedError as error:
                os._exit(0 if "make one in each process" in str(error) else 2)
            except StopIteration:
                os._exit(3)
            os._exit(4)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_signal_handler_may_close_the_client_that_it_has_interrupted():
    script = """
import asyncio, signal
from dledger_client.blocking import Blocking
from dledger_client import ClientClosedError

blocking = Blocking("test", asyncio.sleep(0))
signal.signal(signal.SIGUSR1, lambda *_: blocking.finish(asyncio.sleep(0)))
schedule = asyncio.run_coroutine_threadsafe

def interrupted(work, loop):
    asyncio.run_coroutine_threadsafe = schedule
    signal.raise_signal(signal.SIGUSR1)
    return schedule(work, loop)

asyncio.run_coroutine_threadsafe = interrupted
try:
    blocking.run(asyncio.sleep(0))
except ClientClosedError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=20, check=True)
    assert (done.stdout, done.stderr) == ("the client is closed\n", "")
