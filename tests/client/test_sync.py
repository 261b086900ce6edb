"""The blocking classes are used from threads, and an event loop of their own serves them."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from functools import partial
from unittest.mock import create_autospec

import pytest
from consuming import ack, fill

import dledger_client
import dledger_client.consumer
from dledger_client import (
    AccountAdmin,
    Admin,
    ClientClosedError,
    ConcurrentUseError,
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
from dledger_client.blocking import Blocking, ClosedAfterUse, evaluate
from dledger_client.cluster import connection
from dledger_remoting.codes import RequestCode
from tests.waiting import wait_until

FACES = {
    SyncProducer: Producer,
    SyncAdmin: Admin,
    SyncTransactionProducer: TransactionProducer,
    SyncSimpleConsumer: SimpleConsumer,
    SyncPullConsumer: PullConsumer,
    SyncConsumer: PushConsumer,
}
"""Each blocking class, and the asynchronous class that `.ci/facade.py` writes its calls from."""
ASYNCHRONOUS_ONLY = {AccountAdmin, OrderlyConsumer}
"""Asynchronous classes without a blocking one: `SyncConsumer` has `orderly=True`, and accounts have a command line."""


async def nothing():
    """Do nothing, as the close of a client that was never started."""


@pytest.fixture
def cluster(threaded_cluster):
    return threaded_cluster


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


def in_threads(*calls):
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_messages_may_be_acknowledged_from_any_thread(cluster):
    fill(cluster, 8)
    with SyncConsumer(cluster.namesrv, "CG", "T", auto_ack=False) as consumer:
        messages = []
        while len(messages) < 8:
            messages += consumer.receive(8, timeout=10)
        in_threads(*(message.ack for message in messages))
        consumer.commit()
        assert cluster.group.offsets["CG", "T", 0] == 8


def test_many_threads_may_send_at_the_same_time(cluster):
    with SyncProducer(cluster.namesrv) as producer:
        in_threads(*[lambda: [producer.send("T", b"x") for _ in range(20)]] * 5)
    assert len(cluster.group.bodies("T")) == 100


def test_errors_are_those_of_the_asynchronous_call(cluster):
    with SyncProducer(cluster.namesrv, timeout=1.0) as producer, pytest.raises(SendError) as failure:
        producer.send("nowhere", b"x")
    assert failure.value.outcome == "not_sent"


CALLS = {
    SyncProducer: lambda client: client.send("T", b"x"),
    SyncAdmin: lambda client: client.topics(),
    partial(SyncConsumer, group="CG", subscriptions="T"): lambda client: client.receive(1),
}


@pytest.mark.parametrize(("make", "call"), CALLS.items())
def test_a_client_that_is_closed_twice_refuses_calls(cluster, make, call):
    with make(cluster.namesrv) as client:
        client.close()
    with pytest.raises(ClientClosedError):
        call(client)


def test_a_client_that_cannot_start_leaves_no_thread(cluster, tmp_path):
    damaged = tmp_path / "offsets.json"
    damaged.write_text("{")
    before = set(threading.enumerate())
    with pytest.raises(InvalidArgumentError, match="cannot be read"):
        SyncConsumer(cluster.namesrv, "CG", "T", broadcast=True, offset_file=damaged)
    assert set(threading.enumerate()) <= before


def calls(kind):
    """Return the public calls of a blocking class, each with its parameters."""
    names = {name for part in kind.__mro__ if issubclass(part, ClosedAfterUse) for name in vars(part)}
    found = {name: inspect.getattr_static(kind, name) for name in names if not name.startswith("_")}
    return {name: list(inspect.signature(call).parameters.values()) for name, call in found.items() if callable(call)}


def test_every_exported_name_exists():
    assert [name for name in dledger_client.__all__ if not hasattr(dledger_client, name)] == []


def test_every_client_class_has_a_blocking_counterpart_except_two():
    exported = [kind for kind in map(vars(dledger_client).get, dledger_client.__all__) if inspect.isclass(kind)]
    assert {kind for kind in exported if issubclass(kind, ClosedAfterUse)} == set(FACES)
    asynchronous = {kind for kind in exported if inspect.iscoroutinefunction(getattr(kind, "start", None))}
    assert asynchronous - set(FACES.values()) == ASYNCHRONOUS_ONLY


@pytest.mark.parametrize("blocking", FACES)
def test_a_blocking_call_hands_on_every_argument(blocking):
    """`SyncConsumer` finishes messages itself, from any thread, and has tests of its own for that."""
    asynchronous = FACES[blocking]
    face = object.__new__(blocking)
    face._blocking = Blocking("test", asyncio.sleep(0), nothing)
    asked = create_autospec(asynchronous, instance=True)
    face._client = asked
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

    fill(cluster, 4)
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


@pytest.mark.parametrize("close_timeout", [60, 0])
def test_closing_waits_only_for_living_threads_that_hold_a_message(cluster, close_timeout):
    taken, finish = threading.Event(), threading.Event()

    def work():
        next(consumer)
        taken.set()
        finish.wait()
        next(consumer, None)

    fill(cluster, 3)
    consumer = SyncConsumer(cluster.namesrv, "CG", "T", close_timeout=close_timeout)
    worker, ended, closing = (threading.Thread(target=act) for act in (work, lambda: next(consumer), consumer.close))
    worker.start()
    taken.wait()
    ended.start()
    ended.join()
    next(consumer).ack()
    closing.start()
    closing.join(timeout=0.1 if close_timeout else None)
    assert closing.is_alive() == (close_timeout > 0)
    finish.set()
    closing.join()
    worker.join()
    assert (cluster.group.offsets.get(("CG", "T", 0)) == 1) == (close_timeout > 0)


def test_a_closed_consumer_hands_out_nothing_more(cluster):
    fill(cluster, 4)
    with SyncConsumer(cluster.namesrv, "CG", "T") as consumer:
        next(consumer)
        consumer.close()
        assert list(consumer) == []


def test_a_call_that_is_cut_off_may_have_taken_effect():
    blocking = Blocking("test", asyncio.sleep(0), nothing)

    async def stop_meanwhile():
        stopping = threading.Thread(target=blocking.stop)
        stopping.start()
        await asyncio.Event().wait()

    with pytest.raises(ClientClosedError) as failure:
        blocking.run(stop_meanwhile())
    assert failure.value.outcome == "unknown"


@pytest.fixture
def interrupt(monkeypatch):
    """Make a signal's handler raise in the next blocking call, just when its result is there."""
    ready = Future.result

    def interrupted(future, timeout=None):
        monkeypatch.setattr(Future, "result", ready)
        assert ready(future, timeout)
        raise KeyboardInterrupt

    return lambda: monkeypatch.setattr(Future, "result", interrupted)


def test_messages_that_an_interrupted_poll_had_found_are_read_again(cluster, interrupt):
    with SyncProducer(cluster.namesrv) as producer:
        sent = [producer.send("T", body) and body for body in (b"1", b"2", b"3")]
    with SyncPullConsumer(cluster.namesrv, "CG") as consumer:
        (queue,) = consumer.queues("T")
        consumer.assign([queue])
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            consumer.poll(10, timeout=5.0)
        consumer.commit()
        assert consumer.committed(queue) == 0
        assert [message.body for message in consumer.poll(10, timeout=5.0)] == sent


def refused_after_a_fork(client, call, words):
    """Check that a forked process is refused a call with these words, and can close its copy of the client."""
    child = os.fork()
    if child == 0:
        signal.alarm(10)
        try:
            call()
        except ClientClosedError as error:
            logging.basicConfig(format="%(message)s", force=True)
            client.close()
            os._exit(0 if words in str(error) else 2)
        except StopIteration:
            os._exit(3)
        os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_forked_process_is_told_to_make_its_own_client(cluster):
    with SyncProducer(cluster.namesrv) as producer:
        refused_after_a_fork(producer, lambda: producer.send("T", b"x"), "make one in each process")
        assert producer.send("T", b"x").queue_offset == 0


def test_a_forked_process_cannot_iterate_the_consumer_of_its_parent(cluster):
    with SyncConsumer(cluster.namesrv, "CG", "T") as consumer:
        refused_after_a_fork(consumer, lambda: next(consumer), "make one in each process")


def test_a_forked_process_has_no_connection_of_its_parent(cluster):
    def sockets():
        names = [os.readlink(f"/proc/self/fd/{number}") for number in connected]
        return [name for name in names if name.startswith("socket:")]

    def known():
        owned = [transport.get_extra_info("socket") for transport in list(connection._transports.values())]
        return {one.fileno() for one in owned if one is not None}

    before = set(os.listdir("/proc/self/fd"))
    with SyncProducer(cluster.namesrv) as producer:
        producer.send("T", b"x")
        addresses = {cluster.namesrv, *(node.address for node in cluster.group.nodes)}
        connected = [
            number for number in set(os.listdir("/proc/self/fd")) - before if peer_of(int(number)) in addresses
        ]
        assert len(sockets()) >= 2, "a name server and a broker"
        wait_until(lambda: set(map(int, connected)) <= known())  # one may be connected and not told to its protocol yet
        child = os.fork()
        if child == 0:
            os._exit(len(sockets()))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert producer.send("T", b"y").queue_offset == 1, "the parent's own is as it was"


def peer_of(number):
    """Return the address of a socket's other end, None for any other file."""
    try:
        with socket.socket(fileno=os.dup(number)) as copy:
            return "{}:{}".format(*copy.getpeername()[:2])
    except (OSError, IndexError):
        return None


def test_a_signal_handler_may_close_the_client_that_it_has_interrupted():
    script = """
import asyncio, signal
from dledger_client.blocking import Blocking
from dledger_client import ClientClosedError

blocking = Blocking("test", asyncio.sleep(0), lambda: asyncio.sleep(0))
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


def test_messages_that_an_interrupted_receive_had_taken_come_with_the_next_one(cluster, interrupt):
    with SyncProducer(cluster.namesrv) as producer, SyncConsumer(cluster.namesrv, "CG", "T") as consumer:
        producer.send_batch("T", [b"1", b"2", b"3"])
        interrupt()
        with pytest.raises(KeyboardInterrupt):
            consumer.receive(3, timeout=5.0)
        received = []
        while len(received) < 3:
            received += consumer.receive(2, timeout=5.0)
        assert [message.body for message in received] == [b"1", b"2", b"3"]
        ack(received)
        consumer.commit()
        assert cluster.group.offsets["CG", "T", 0] == 3


def test_messages_that_were_there_before_the_call_was_interrupted_come_with_the_next_one(cluster, monkeypatch):
    """1. A receive is handed to the loop. 2. It ends there. 3. A signal's handler raises before its future is known."""
    hand_over = asyncio.run_coroutine_threadsafe

    def interrupted(work, loop):
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", hand_over)
        assert hand_over(work, loop).result(10.0)
        raise KeyboardInterrupt

    with SyncProducer(cluster.namesrv) as producer, SyncConsumer(cluster.namesrv, "CG", "T") as consumer:
        producer.send_batch("T", [b"1", b"2", b"3"])
        monkeypatch.setattr(asyncio, "run_coroutine_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            consumer.receive(3, timeout=5.0)
        received = [message for _ in range(3) for message in consumer.receive(2, timeout=1.0)]
        assert [message.body for message in received] == [b"1", b"2", b"3"]


def test_a_message_that_an_interrupted_iteration_had_taken_is_the_next_one(cluster):
    class Interrupts:
        """Lock after whose release a signal's handler runs, once."""

        is_due = True

        def __enter__(self):
            pass

        def __exit__(self, *_):
            if self.is_due:
                self.is_due = False
                raise KeyboardInterrupt

    with SyncProducer(cluster.namesrv) as producer, SyncConsumer(cluster.namesrv, "CG", "T") as consumer:
        producer.send_batch("T", [b"1", b"2"])
        consumer._receive_lock = Interrupts()
        with pytest.raises(KeyboardInterrupt):
            next(consumer)
        assert [next(consumer).body for _ in range(2)] == [b"1", b"2"]


def on_its_own_thread(client, call):
    """Return the result of a blocking call in a callback on the client's thread."""
    return asyncio.run_coroutine_threadsafe(evaluate(call), client._blocking._loop).result(10)


def test_a_blocking_call_by_a_callback_on_the_clients_own_thread_is_an_error_at_once(cluster):
    with SyncProducer(cluster.namesrv) as producer:
        for call in (lambda: producer.send("T", b"x"), producer.close):
            with pytest.raises(ConcurrentUseError, match="own thread"):
                on_its_own_thread(producer, call)
        assert producer.send("T", b"x").queue_offset == 0
    with SyncConsumer(cluster.namesrv, "CG", "T") as consumer:
        with pytest.raises(ConcurrentUseError):
            on_its_own_thread(consumer, lambda: next(consumer))
        assert next(consumer).body == b"x"


def test_a_forked_process_cannot_acknowledge_a_message_of_its_parent(cluster, capfd):
    with SyncProducer(cluster.namesrv) as producer, SyncConsumer(cluster.namesrv, "CG", "T") as consumer:
        producer.send("T", b"x")
        refused_after_a_fork(consumer, next(consumer).ack, "which alone can acknowledge it")
        assert f"dledger consumer belongs to process {os.getpid()}, which closes it" in capfd.readouterr().err


def test_an_unreferenced_client_warns_and_leaves_its_group(cluster):
    before = set(threading.enumerate())
    gc.disable()
    consumer = [SyncConsumer(cluster.namesrv, "CG", "T")]
    consumer.append(consumer)  # a cycle, so that the collector ends it
    (thread,) = set(threading.enumerate()) - before
    while not cluster.group.members["CG"]:
        time.sleep(0.001)
    del consumer
    with pytest.warns(ResourceWarning, match="dledger consumer was never closed"):
        gc.collect()
    gc.enable()
    thread.join(timeout=10)
    assert not thread.is_alive()
    assert RequestCode.UNREGISTER_CLIENT in cluster.group.nodes[0].codes()
