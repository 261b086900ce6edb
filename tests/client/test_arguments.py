"""Every public call of the client refuses arguments of wrong types with its own error, before it does anything else.

One test calls all public functions with a value that is wrong for every annotation. Others test each rule of the check
with wrong values of each kind.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from datetime import datetime, timedelta
from pathlib import Path
from typing import Literal, get_args, get_type_hints

import pytest
from client_fakes import fake_cluster

from dledger_client import (
    Admin,
    ClientClosedError,
    CustomizedRetryPolicy,
    GroupRetryPolicy,
    InvalidArgumentError,
    Message,
    MessageQueue,
    NoNameServerError,
    OpenTransaction,
    Producer,
    PullConsumer,
    PushConsumer,
    Quota,
    ReceivedMessage,
    Sql,
    SubscriptionGroupConfig,
    SyncAdmin,
    SyncConsumer,
    SyncProducer,
    SyncPullConsumer,
    SyncTransactionProducer,
    TransactionProducer,
)
from dledger_client.arguments import check, checked
from dledger_client.messages import queues_in

NOWHERE = "127.0.0.1:1"
HALF = "half of a pair \ud800"
QUEUE = ("T", "broker-a", 0)
RECEIVED = ReceivedMessage("T", b"x", None, (), {}, MessageQueue(*QUEUE), 0, "k", "id", 0, 0, 0, 0)

LISTED = GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy((1, "2")))

WRONG = object()
"""Value that is wrong for every annotation."""
RULES = [
    (str, [5, None, b"x", HALF, ["x"]]),
    (str | None, [5, HALF]),
    (bytes, ["x", None, 5, bytearray(b"x"), memoryview(b"x")]),
    (bool, [1, "yes", b"", None]),
    (int, [None, "5", 2.0, True, [5]]),
    (float, [None, "5", True, float("nan"), float("inf"), 1e300, timedelta(seconds=5)]),
    (Sequence[str], [5, "a", b"x", ["a", 5], [HALF], {"a"}]),
    (Mapping[str, str], [5, "a=b", [("a", "b")], {"a": 5}, {5: "a"}, {"a": HALF}]),
    (tuple[str, str, int], [5, ["T", "broker-a", 0], ("T", "broker-a"), ("T", "broker-a", "0"), (None, "broker-a", 0)]),
    (Iterable[tuple[str, str, int]], [5, QUEUE, [QUEUE, ("T", "broker-a", "0")]]),
    (Sequence[Message | bytes], [5, b"x", [5], ["x"], [b"x", Message("x")], [Message(b"x", tags=5)]]),
    (bytes | Message, [None, "x", Message("x"), Message(b"x", delay_s="1")]),
    (datetime | int | None, ["now", 1.5, True]),
    (Sql, [None, "x", Sql(5)]),
    (Quota, [None, ("topic", "T", 5), Quota("topic", 5), Quota("topic", "T", "5")]),
    (SubscriptionGroupConfig, [SubscriptionGroupConfig(5), SubscriptionGroupConfig("CG", group_retry_policy=LISTED)]),
    (Path | None, ["offsets.json", 5]),
    (Literal["first", "last"] | int, ["middle", None, 2.5, True, []]),
    (Callable[[str], str] | None, [5, "handler"]),
]
"""Wrong values of each kind for each rule of the check."""
RIGHT = {
    "name_servers": NOWHERE,
    "group": "CG",
    "source": "CG",
    "target": "CG2",
    "subscriptions": "T",
    "topic": "T",
    "body": b"x",
    "messages": [b"x"],
    "queues": [QUEUE],
    "queue": QUEUE,
    "offset": 0,
    "to": "first",
    "timestamp_ms": 0,
    "name": "name",
    "node_id": "broker-a-n0",
    "client_id": "10.0.0.1@1",
    "position": 0,
    "broker_group": "broker-a",
    "config": SubscriptionGroupConfig("CG"),
    "offset_message_id": "7F00000100002A9F0000000000000000",
    "message_id": "ID",
    "key": "key",
    "handle": "handle",
    "message": RECEIVED,
    "transaction": OpenTransaction("T", b"x", "k", "broker-a", 0, 0),
    "quota": Quota("topic", "T", 5),
    "values": {"max_locks_per_group": "100"},
}
"""Values for parameters without a default."""


async def decides(_transaction):
    return "commit"


CHECKS = {TransactionProducer: decides, SyncTransactionProducer: lambda _transaction: "commit"}
BLOCKING = {
    SyncProducer: Producer,
    SyncTransactionProducer: TransactionProducer,
    SyncConsumer: PushConsumer,
    SyncPullConsumer: PullConsumer,
    SyncAdmin: Admin,
}
CLASSES = [Producer, TransactionProducer, PushConsumer, PullConsumer, Admin, *BLOCKING]


def public_calls():
    for cls in CLASSES:
        yield cls, "__init__"
        for name, _ in inspect.getmembers(cls, inspect.isfunction):
            if not name.startswith("_"):
                yield cls, name


def parameters_of(cls, name):
    """Return the parameters of a call by name, with the options themselves in place of `options`."""
    call = getattr(cls, name)
    found = dict(list(inspect.signature(call).parameters.items())[1:])
    if found.pop("options", None) is not None:
        (options,) = get_args(get_type_hints(call)["options"])
        kind = inspect.Parameter.KEYWORD_ONLY
        found.update((option, inspect.Parameter(option, kind, default=None)) for option in options.__annotations__)
    return found


def arguments_of(cls, name):
    return {
        parameter: CHECKS[cls] if parameter == "check" else RIGHT[parameter]
        for parameter, described in parameters_of(cls, name).items()
        if described.default is inspect.Parameter.empty
    }


def made(cls):
    return cls(**arguments_of(cls, "__init__"), **({"start_timeout": None} if cls is SyncConsumer else {}))


async def called(thing, name, arguments):
    result = thing(**arguments) if name == "__init__" else getattr(thing, name)(**arguments)
    return await result if inspect.isawaitable(result) else result


async def test_a_wrong_argument_is_refused_by_name_and_value_before_anything_else():
    """A call that does not refuse at once ends with another error.

    The asynchronous classes are not started, and the blocking ones have no server.
    """
    for cls, name in public_calls():
        thing = cls if name == "__init__" else made(cls)
        for parameter in parameters_of(cls, name):
            arguments = {**arguments_of(cls, name), parameter: WRONG}
            with pytest.raises(InvalidArgumentError, match=rf"^{parameter}\b.*=.* is expected$") as refused:
                await called(thing, name, arguments)
            assert refused.value.outcome == "not_sent", f"{cls.__name__}.{name}"
        if cls in BLOCKING and name != "__init__":
            thing.close()


def test_each_rule_refuses_each_kind_of_wrong_value():
    for annotation, values in RULES:
        for value in values:
            with pytest.raises(InvalidArgumentError, match=r"^it\b.*=.* is expected$"):
                check("it", value, annotation)


async def test_valid_arguments_of_unstarted_clients_are_not_refused():
    for cls, name in public_calls():
        if cls not in BLOCKING and name != "__init__":
            try:
                await called(made(cls), name, {} if name == "start" else arguments_of(cls, name))
            except (ClientClosedError, NoNameServerError):
                pass
            except InvalidArgumentError as error:
                if not re.search("is not assigned|no handler", str(error)):
                    raise


def test_positional_arguments_are_checked_too_and_a_long_value_is_shown_in_part():
    with pytest.raises(InvalidArgumentError, match=r"^name_servers=5: a str without surrogates or a sequence"):
        Producer(5)
    with pytest.raises(InvalidArgumentError, match=r"^subscriptions=None"):
        PushConsumer(NOWHERE, "CG", None)
    with pytest.raises(InvalidArgumentError, match="of type bytes") as refused:
        Producer(b"x" * 10_000)
    assert len(str(refused.value)) < 300


def test_the_part_that_is_wrong_is_named():
    @checked
    class Calls:
        def call(self, messages: Sequence[Message | bytes], attributes: dict[str, int] | None = None) -> None:
            pass

    with pytest.raises(InvalidArgumentError, match=r"^messages\[1\].tags=5: a str .* or None is expected$"):
        Calls().call([b"x", Message(b"x", tags=5)])
    with pytest.raises(InvalidArgumentError, match=r"^attributes\['a'\]='b': an int is expected$"):
        Calls().call([], {"a": "b"})
    with pytest.raises(InvalidArgumentError, match=r"^messages=\[0, 0, .*\.\.\. of type list: |^messages\[0\]=0: "):
        Calls().call([0] * 1000)


@pytest.mark.parametrize("wrong", [5, "T/broker-a/0", ("T", "broker-a", "0"), ("T", "broker-a")])
def test_queues_of_an_iterator_are_checked(wrong):
    assert queues_in(iter([QUEUE])) == [QUEUE]
    with pytest.raises(InvalidArgumentError, match=r"^queues\[1\]"):
        queues_in(iter([QUEUE, wrong]))


async def test_keys_that_an_iterator_yields_are_checked_before_anything_is_sent(cluster, producer):
    def keys() -> Iterable[object]:
        yield "one"
        yield 5

    with pytest.raises(InvalidArgumentError, match=r"^key\[1\]=5"):
        await producer.send("T", b"x", key=keys())
    assert not cluster.group.bodies("T")


async def test_a_send_with_two_choices_of_its_queue_is_refused_and_ignores_neither():
    queue, keyed, both = (
        MessageQueue("T", "broker-a", 0),
        Message(b"x", ordering_key="k"),
        "both pick the queue: give one$",
    )
    async with fake_cluster(topics={"T": 1, "U": 1}) as cluster, Producer(cluster.namesrv) as producer:
        for expected, call in [
            (both, producer.send("T", b"x", ordering_key="k", queue=queue)),
            (both, producer.send("T", keyed, queue=queue)),
            (both, producer.send_batch("T", [b"x"], ordering_key="k", queue=queue)),
            (both, producer.send_batch("T", [b"x", keyed], queue=queue)),
            ("a queue of the topic U is expected$", producer.send("U", b"x", queue=queue)),
            ("a queue of the topic U is expected$", producer.send_batch("U", [b"x"], queue=queue)),
        ]:
            with pytest.raises(InvalidArgumentError, match=rf"^queue=\('T', 'broker-a', 0\).*{expected}"):
                await call
        assert not cluster.group.bodies("T") + cluster.group.bodies("U")


@pytest.mark.parametrize("seconds", [-1, 3_601])
async def test_a_transaction_is_left_alone_for_an_hour_at_most(seconds):
    producer = TransactionProducer(NOWHERE, group="CG", check=decides)
    with pytest.raises(InvalidArgumentError, match=rf"^check_after_s={seconds}: 0 to 3600 is expected$"):
        await producer.begin("T", b"x", check_after_s=seconds)


@pytest.mark.parametrize("tags", ["a||b", "||", "a||", " a", "a ", "a\t", "\u0000a", "  ", "\n"])
async def test_a_tag_that_no_subscription_could_find_is_refused(cluster, producer, tags):
    for sending in (producer.send("T", b"x", tags=tags), producer.send_batch("T", [Message(b"x", tags=tags)])):
        with pytest.raises(InvalidArgumentError, match=r"^tags=.*no subscription could find it"):
            await sending
    assert not cluster.group.bodies("T")


@pytest.mark.parametrize("tags", ["a", "a|b", "|", "a b", "*", "Grüße", "\u3000a\u3000", ""])
async def test_a_tag_that_a_subscription_can_find_is_sent_and_found(cluster, producer, tags):
    await producer.send("T", b"x", tags=tags)
    async with PullConsumer(cluster.namesrv, filter=f"{tags} || {tags}" if tags else "*") as consumer:
        await consumer.assign(await consumer.queues("T"))
        assert [message.tags or "" for message in await consumer.poll(timeout=5)] == [tags]


NONSENSE = {
    Producer: {
        "timeout": 0,
        "attempt_timeout": -1,
        "compress_over_bytes": -1,
        "max_in_flight": 0,
        "max_in_flight_bytes": 0,
        "max_batch_bytes": 0,
    },
    PushConsumer: {
        "concurrency": 0,
        "max_outstanding": 0,
        "pull_batch_size": 0,
        "max_reconsume_times": -1,
        "start_timeout": 0,
        "close_timeout": -0.5,
        "warn_after": 0,
    },
    PullConsumer: {"timeout": 0},
    Admin: {"timeout": 0.0},
}


@pytest.mark.parametrize(
    ("cls", "name", "value"), [(cls, *one) for cls, wrong in NONSENSE.items() for one in wrong.items()]
)
def test_numbers_that_make_no_sense_are_refused(cls, name, value):
    with pytest.raises(InvalidArgumentError, match=f"^{name}={value}: (at least|more than) .* is expected$"):
        cls(**arguments_of(cls, "__init__"), **{name: value})


async def test_a_poll_or_receive_of_no_message_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"^max_messages=0"):
        await PullConsumer(NOWHERE).poll(0)
    with closing(SyncConsumer(NOWHERE, "CG", "T", start_timeout=None)) as consumer:
        with pytest.raises(InvalidArgumentError, match=r"^max_messages=0"):
            consumer.receive(0)
