"""Every public call of the client refuses arguments of wrong types by its own error, before it does anything else.

The walk goes over the signatures of all public classes. An annotation that it does not know fails: whoever makes a call
with a new one says here which values are wrong for it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence
from contextlib import closing
from datetime import timedelta

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
from dledger_client.arguments import checked
from dledger_client.messages import queues_in

NOWHERE = "127.0.0.1:1"
HALF = "half of a pair \ud800"
QUEUE = ("T", "broker-a", 0)
RECEIVED = ReceivedMessage("T", b"x", None, (), {}, MessageQueue(*QUEUE), 0, "k", "id", 0, 0, 0, 0)

NO_TEXT = [5, None, b"x", HALF, ["x"]]
NO_INTEGER = [None, "5", 2.0, True, [5]]
NO_SECONDS = ["5", True, float("nan"), float("inf"), 1e300, timedelta(seconds=5)]
NO_FLAG = [1, "yes", b""]
NO_LIST_OF_TEXTS = [5, b"x", ["a", 5], [HALF], {"a", None}]
NO_MAPPING = [5, "a=b", [("a", "b")], {"a": 5}, {5: "a"}, {"a": HALF}]
NO_QUEUE = [5, "T/broker-a/0", ["T", "broker-a", 0], ("T", "broker-a"), ("T", "broker-a", "0"), (None, "broker-a", 0)]
NO_QUEUES = [5, QUEUE, [QUEUE, ("T", "broker-a", "0")]]
LISTED = GroupRetryPolicy(customized_retry_policy=CustomizedRetryPolicy((1, "2")))

WRONG = {
    "str": NO_TEXT,
    "str | None": [value for value in NO_TEXT if value is not None],
    "bytes": ["x", None, 5, bytearray(b"x"), memoryview(b"x")],
    "bool": [*NO_FLAG, None],
    "bool | None": NO_FLAG,
    "bool | str": [value for value in NO_FLAG if not isinstance(value, str)],
    "int": NO_INTEGER,
    "int | None": [value for value in NO_INTEGER if value is not None],
    "float": [*NO_SECONDS, None],
    "float | None": NO_SECONDS,
    "str | Sequence[str]": [None, *NO_LIST_OF_TEXTS],
    "str | Sequence[str] | Mapping[str, Filter]": [None, *NO_LIST_OF_TEXTS, {"T": 5}, {5: "*"}],
    "Filter": [None, 5, b"x", ["x"], Sql(5)],  # type: ignore[arg-type]
    "str | Iterable[str] | None": NO_LIST_OF_TEXTS,
    "Sequence[str] | None": ["broker-a", *NO_LIST_OF_TEXTS],
    "Mapping[str, str]": [None, *NO_MAPPING],
    "Mapping[str, str] | None": NO_MAPPING,
    "Mapping[str, str | None] | None": NO_MAPPING,
    "Sequence[Message | bytes]": [None, 5, b"x", "x", [5], ["x"], [b"x", Message("x")], [Message(b"x", tags=5)]],
    "MessageQueue | None": NO_QUEUE,
    "tuple[str, str, int]": [None, *NO_QUEUE],
    "Iterable[tuple[str, str, int]]": [None, *NO_QUEUES],
    "Iterable[tuple[str, str, int]] | None": NO_QUEUES,
    "Path | None": ["offsets.json", 5],
    "Credentials | None": ["app", ("app", "secret")],
    "Credentials": [None, "app", ("app", "secret")],
    "Tls | None": ["ca.pem", True],
    "StartFrom": ["middle", None, 2.5, True, []],
    "StrategyName | Strategy": ["middle", None, 5, []],
    "bool | Priority": ["middle", None, 5, []],
    "Handler | None": [5, "handler"],
    "Check": [None, 5, "check"],
    "SyncCheck": [None, 5, "check"],
    "bytes | Message": [None, 5, "x", Message("x"), Message(b"x", delay_s="1")],
    "datetime | int | None": ["now", 1.5, True],
    "ReceivedMessage": [None, "x"],
    "OpenTransaction": [None, "x", OpenTransaction("T", "x", "k", "broker-a", 0, 0)],
    "Quota": [None, "T", ("topic", "T", 5), Quota("topic", 5), Quota("topic", "T", "5")],
    "SubscriptionGroupConfig": [
        None,
        "CG",
        {"group_name": "CG"},
        SubscriptionGroupConfig(5),
        SubscriptionGroupConfig("CG", group_retry_policy="EXPONENTIAL"),
        SubscriptionGroupConfig("CG", group_retry_policy=LISTED),
    ],
}
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
"""Of what has no default."""


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
    """The parameters of a call by name; the options of a blocking class are those of the class that it stands for."""
    found = dict(list(inspect.signature(getattr(cls, name)).parameters.items())[1:])
    if found.pop("options", None) is not None:
        of_async = inspect.signature(BLOCKING[cls].__init__).parameters
        options = inspect.getmodule(cls).__dict__[f"{BLOCKING[cls].__name__.removeprefix('Push')}Options"]
        found.update((option, of_async[option]) for option in options.__annotations__)
    return found


CASES = [
    pytest.param(cls, name, parameter, id=f"{cls.__name__}.{name}-{parameter}")
    for cls, name in public_calls()
    for parameter in parameters_of(cls, name)
]


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


@pytest.mark.parametrize(("cls", "name", "parameter"), CASES)
async def test_a_wrong_argument_is_refused_by_name_and_value_before_anything_else(cls, name, parameter):
    """The asynchronous classes are not started, and the blocking ones have no server: whatever is not refused at once
    ends in another error.
    """
    thing = None if name == "__init__" else made(cls)
    try:
        for value in WRONG[parameters_of(cls, name)[parameter].annotation]:
            arguments = {**arguments_of(cls, name), parameter: value}
            with pytest.raises(InvalidArgumentError, match=rf"^{parameter}\b.*=.* is expected$") as refused:
                await called(thing or cls, name, arguments)
            assert refused.value.outcome == "not_sent"
    finally:
        if cls in BLOCKING and thing is not None:
            thing.close()


@pytest.mark.parametrize(
    ("cls", "name"), [(cls, name) for cls, name in public_calls() if cls not in BLOCKING and name != "__init__"]
)
async def test_right_arguments_of_what_is_not_started_are_not_what_is_refused(cls, name):
    try:
        await called(made(cls), name, {} if name == "start" else arguments_of(cls, name))
    except (ClientClosedError, NoNameServerError):
        pass
    except InvalidArgumentError as error:
        if not re.search("is not assigned|no handler", str(error)):
            raise


def test_positional_arguments_are_checked_too():
    with pytest.raises(InvalidArgumentError, match=r"^name_servers=5: a str without surrogates or a sequence"):
        Producer(5)
    with pytest.raises(InvalidArgumentError, match=r"^subscriptions=None"):
        PushConsumer(NOWHERE, "CG", None)


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


def test_a_long_value_is_shown_in_part():
    with pytest.raises(InvalidArgumentError) as refused:
        Producer(b"x" * 10_000)
    assert len(str(refused.value)) < 300
    assert "of type bytes" in str(refused.value)


@pytest.mark.parametrize("wrong", [5, "T/broker-a/0", ("T", "broker-a", "0"), ("T", "broker-a")])
def test_queues_that_an_iterator_yields_are_checked_when_it_is_read(wrong):
    assert queues_in(iter([QUEUE])) == [QUEUE]
    with pytest.raises(InvalidArgumentError, match=r"^queues\[1\]"):
        queues_in(iter([QUEUE, wrong]))


async def test_keys_that_an_iterator_yields_are_checked_before_anything_is_sent():
    def keys() -> Iterable[object]:
        yield "one"
        yield 5

    async with fake_cluster() as cluster, Producer(cluster.namesrv) as producer:
        with pytest.raises(InvalidArgumentError, match=r"^key\[1\]=5"):
            await producer.send("T", b"x", key=keys())
        assert not cluster.group.bodies("T")


@pytest.mark.parametrize("seconds", [-1, 3_601])
async def test_a_transaction_is_left_alone_for_an_hour_at_most(seconds):
    producer = TransactionProducer(NOWHERE, group="CG", check=decides)
    with pytest.raises(InvalidArgumentError, match=rf"^check_after_s={seconds}: 0 to 3600 is expected$"):
        await producer.begin("T", b"x", check_after_s=seconds)


@pytest.mark.parametrize("tags", ["a||b", "||", "a||", " a", "a ", "a\t", "\u0000a", "  ", "\n"])
async def test_a_tag_that_no_subscription_could_find_is_refused(tags):
    async with fake_cluster() as cluster, Producer(cluster.namesrv) as producer:
        with pytest.raises(InvalidArgumentError, match=r"^tags=.*no subscription could find it"):
            await producer.send("T", b"x", tags=tags)
        with pytest.raises(InvalidArgumentError, match=r"^tags=.*no subscription could find it"):
            await producer.send_batch("T", [Message(b"x", tags=tags)])
        assert not cluster.group.bodies("T")


@pytest.mark.parametrize("tags", ["a", "a|b", "|", "a b", "*", "Grüße", "\u3000a\u3000", ""])
async def test_a_tag_that_a_subscription_can_find_is_sent_and_found(tags):
    async with fake_cluster() as cluster, Producer(cluster.namesrv) as producer:
        await producer.send("T", b"x", tags=tags)
        async with PullConsumer(cluster.namesrv, filter=f"{tags} || {tags}" if tags else "*") as consumer:
            await consumer.assign(await consumer.queues("T"))
            assert [message.tags or "" for message in await consumer.poll(timeout=5)] == [tags]


@pytest.mark.parametrize(
    ("cls", "wrong"),
    [
        (Producer, {"timeout": 0}),
        (Producer, {"attempt_timeout": -1}),
        (Producer, {"max_in_flight": 0}),
        (Producer, {"max_in_flight_bytes": 0}),
        (Producer, {"max_batch_bytes": 0}),
        (Producer, {"compress_over_bytes": -1}),
        (PushConsumer, {"concurrency": 0}),
        (PushConsumer, {"max_outstanding": 0}),
        (PushConsumer, {"max_reconsume_times": -1}),
        (PushConsumer, {"start_timeout": 0}),
        (PushConsumer, {"close_timeout": -0.5}),
        (PushConsumer, {"warn_after": 0}),
        (PullConsumer, {"timeout": 0}),
        (Admin, {"timeout": 0.0}),
    ],
)
def test_numbers_that_make_no_sense_are_refused(cls, wrong):
    [(name, value)] = wrong.items()
    with pytest.raises(InvalidArgumentError, match=f"^{name}={value}: (at least|more than) .* is expected$"):
        cls(**arguments_of(cls, "__init__"), **wrong)


async def test_a_poll_or_receive_of_no_message_is_refused():
    with pytest.raises(InvalidArgumentError, match=r"^max_messages=0"):
        await PullConsumer(NOWHERE).poll(0)
    with closing(SyncConsumer(NOWHERE, "CG", "T", start_timeout=None)) as consumer:
        with pytest.raises(InvalidArgumentError, match=r"^max_messages=0"):
            consumer.receive(0)
