"""Wrong options are one line, the AsyncAPI document names all channels, and internals of FastStream stand together."""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from faststream import AckPolicy, AsyncAPI, FastStream
from faststream._internal.broker import BrokerRouter
from faststream._internal.configs import BrokerConfig
from faststream.exceptions import IncorrectState, SetupError
from pydantic import BaseModel

from dledger_base.extras import install_command
from dledger_client import Delivery, InvalidArgumentError, PushConsumer, Sharing, Tls
from dledger_faststream import DledgerBroker, DledgerMessage, DledgerRouter, internals
from dledger_faststream import message as messages
from dledger_faststream.registrator import DledgerRegistrator, PublisherOptions, SubscriberOptions

PACKAGE = Path(internals.__file__).parent

USED = {
    "faststream._internal.broker": {"BrokerRouter", "BrokerUsecase"},
    "faststream._internal.broker.registrator": {"Registrator"},
    "faststream._internal.broker.router": {"ArgsContainer", "SubscriberRoute"},
    "faststream._internal.configs": {
        "BrokerConfig",
        "PublisherSpecificationConfig",
        "PublisherUsecaseConfig",
        "SubscriberSpecificationConfig",
        "SubscriberUsecaseConfig",
        "UnderlyingDriverAnnotations",
    },
    "faststream._internal.constants": {"EMPTY"},
    "faststream._internal.context": {"ContextRepo"},
    "faststream._internal.di": {"FastDependsConfig"},
    "faststream._internal.endpoint.publisher": {"PublisherProto", "PublisherSpecification", "PublisherUsecase"},
    "faststream._internal.endpoint.publisher.fake": {"FakePublisher"},
    "faststream._internal.endpoint.subscriber": {"SubscriberSpecification", "SubscriberUsecase"},
    "faststream._internal.endpoint.subscriber.call_item": {"CallsCollection"},
    "faststream._internal.endpoint.subscriber.mixins": {"TasksMixin"},
    "faststream._internal.endpoint.utils": {"ParserComposition", "process_msg"},
    "faststream._internal.logger": {"DefaultLoggerStorage", "make_logger_state"},
    "faststream._internal.logger.logging": {"get_broker_logger"},
    "faststream._internal.parser": {"BatchCodecProto", "CodecProto", "DefaultCodec"},
    "faststream._internal.producer": {"ProducerProto"},
    "faststream._internal.testing.broker": {"EnterType", "TestBroker", "change_producer"},
    "faststream._internal.types": {"CustomCallable", "IdGenerator", "MsgType"},
}
"""FastStream's internals that this package uses: a new version of FastStream is compared with this list."""

UNDERSCORED = {
    "_ack_policy",
    "_basic_publish",
    "_basic_publish_batch",
    "_basic_request",
    "_broker_middlewares",
    "_channel_key",
    "_connect",
    "_connection",
    "_decoder",
    "_fake_connect",
    "_fake_start",
    "_get_logger_ref",
    "_get_parser_and_decoder",
    "_logger_ref",
    "_make_response_publisher",
    "_outer_config",
    "_parser",
    "_patch_producer",
    "_post_start",
    "_publish",
    "_serializer",
}
"""Methods and attributes of these classes whose names say that they are internal."""


def imports_of(module: Path) -> dict[str, set[str]]:
    """Return the names that a module imports from FastStream's internals, by module."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(module.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("faststream._internal"):
            found.setdefault(node.module, set()).update(alias.name for alias in node.names)
        elif isinstance(node, ast.Import):
            assert not [alias for alias in node.names if alias.name.startswith("faststream._internal")]
    return found


def test_one_module_imports_the_internals_and_those_are_the_listed_ones():
    by_module = {module.name: imports_of(module) for module in PACKAGE.glob("*.py")}
    assert by_module.pop("internals.py") == USED
    assert not any(by_module.values())
    assert {name for names in USED.values() for name in names} == set(internals.__all__)


def names_of(theirs: object) -> set[str]:
    """Return the attributes of a class of FastStream, also those that only its annotations name."""
    declared = {name for base in getattr(theirs, "__mro__", ()) for name in getattr(base, "__annotations__", ())}
    return declared | set(dir(theirs))


def test_the_internal_attributes_that_are_used_are_the_listed_ones():
    used: set[str] = set()
    for module in PACKAGE.glob("*.py"):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            if isinstance(node, ast.Attribute):
                used.add(node.attr)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                used.add(node.name)
    theirs = [getattr(internals, name) for name in internals.__all__]
    known = {name for cls in theirs if inspect.isclass(cls) for name in names_of(cls)}
    assert {name for name in used & known if re.match(r"_[a-z]", name)} == UNDERSCORED


@pytest.mark.parametrize("version", ["0.8.0", pytest.param("0.7.7", marks=pytest.mark.long)])
def test_another_version_of_faststream_is_refused_in_one_line(version):
    """The module `faststream` itself is a stand-in: its import takes long, and nothing of it is reached."""
    program = f"""
import sys, types
sys.modules["faststream"] = types.ModuleType("faststream")
sys.modules["faststream.__about__"] = about = types.ModuleType("faststream.__about__")
about.__version__ = {version!r}
import dledger_faststream
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: dledger_faststream works with FastStream 0.7 from 0.7.8 on, not with {version}: "
        "pip install 'faststream>=0.7.8,<0.8'"
    )


def test_without_faststream_the_line_says_what_to_install():
    program = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name == "faststream":
            raise ModuleNotFoundError("No module named 'faststream'", name=name)

sys.meta_path.insert(0, NotInstalled())
import dledger_faststream
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1] == (
        f"ImportError: dledger_faststream needs FastStream 0.7: {install_command('faststream')}"
    )
    assert "ModuleNotFoundError" not in done.stderr


def test_the_client_loads_nothing_of_it():
    program = "import dledger_client, dledger_client.testing, sys; print([n for n in sys.modules if 'faststream' in n])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"mode": "both"}, "mode='both' is none of push, ordered, broadcast, simple"),
        ({"mode": "broadcast"}, "mode='broadcast' and offset_file belong together"),
        ({"offset_file": "x"}, "mode='broadcast' and offset_file belong together"),
        ({"mode": "simple", "start_from": 10**12}, "mode='simple' starts from 'first' or 'last'"),
        ({"mode": "simple", "max_reconsume_times": 3}, "mode='simple' has the limit of the group's settings"),
        ({"mode": "ordered", "batch": True}, "mode='ordered' hands out single messages"),
        ({"mode": "ordered", "ack_policy": AckPolicy.ACK_FIRST}, "messages would overlap"),
        ({"batch": True, "max_workers": 2}, "a batch subscriber has one batch in work"),
        ({"max_workers": 0}, "max_workers=0: at least 1 is needed"),
        ({"max_messages": 0}, "max_messages=0: a batch has at least one message"),
    ],
)
def test_options_that_exclude_each_other_are_refused_in_one_line(options, says):
    with pytest.raises(SetupError, match=re.escape(says)) as raised:
        DledgerBroker().subscriber("orders", group="billing", **options)
    assert "\n" not in str(raised.value)


def test_a_subscriber_without_a_topic_or_a_simple_one_of_two_is_refused():
    with pytest.raises(SetupError, match="has no topic: name one"):
        DledgerBroker().subscriber(group="billing")
    with pytest.raises(SetupError, match="reads one topic"):
        DledgerBroker().subscriber("a", "b", group="billing", mode="simple")


def test_a_policy_of_a_router_that_breaks_the_order_is_refused_at_the_start():
    router = DledgerRouter(ack_policy=AckPolicy.ACK_FIRST)
    router.subscriber("orders", group="billing", mode="ordered")
    broker = DledgerBroker(routers=[router])
    with pytest.raises(SetupError, match="messages would overlap"):
        broker.check_subscriptions()


@pytest.mark.parametrize(
    ("first", "second", "fits"),
    [
        ({}, {}, True),
        ({}, {"topics": ("refunds",)}, False),
        ({}, {"filter": "a"}, False),
        ({}, {"mode": "ordered"}, False),
        ({}, {"mode": "simple"}, False),
        ({"mode": "simple"}, {"mode": "simple", "topics": ("refunds",)}, True),
        ({"mode": "simple"}, {"mode": "simple", "filter": "a"}, False),
        ({}, {"topics": ("refunds",), "group": "other"}, True),
        ({"topics": ("orders", "refunds")}, {"topics": ("refunds", "orders")}, True),
    ],
)
def test_a_group_is_for_one_subscription(first, second, fits):
    broker = DledgerBroker()
    for options in (first, second):
        given = {"topics": ("orders",), "group": "billing", **options}
        broker.subscriber(*given.pop("topics"), **given)
    if fits:
        broker.check_subscriptions()
    else:
        with pytest.raises(SetupError, match="all members of a group must read the same"):
            broker.check_subscriptions()


async def test_a_broker_with_subscriptions_that_exclude_each_other_connects_to_nothing():
    broker = DledgerBroker("127.0.0.1:1", logger=None)
    broker.subscriber("orders", group="billing")
    broker.subscriber("refunds", group="billing")
    with pytest.raises(SetupError):
        await broker.start()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"name_servers": "nowhere"}, "'nowhere' is not host:port"),
        ({"producer_group": "a b"}, "group"),
        ({"timeout": 0}, "timeout"),
    ],
)
def test_wrong_arguments_of_a_broker_are_refused_in_one_line(arguments, says):
    with pytest.raises(InvalidArgumentError, match=says) as raised:
        DledgerBroker(**arguments)
    assert "\n" not in str(raised.value)


async def test_a_broker_that_is_not_connected_says_so():
    with pytest.raises(IncorrectState, match="the broker is not connected: use 'async with broker', or start it"):
        await DledgerBroker().publish("x", "orders")


def test_a_router_of_another_broker_is_refused():
    class OtherRouter(BrokerRouter):
        def __init__(self):
            super().__init__(config=BrokerConfig(), handlers=(), routers=())

    with pytest.raises(SetupError, match="OtherRouter is no router of this broker: use DledgerRouter"):
        DledgerBroker().include_router(OtherRouter())


async def test_an_argument_of_the_class_of_the_message_is_refused_with_the_annotation_to_use():
    broker = DledgerBroker(logger=None)
    subscriber = broker.subscriber("orders", group="billing")

    @subscriber
    async def handle(message: messages.DledgerMessage): ...

    broker._setup_logger()
    with pytest.raises(SetupError, match=r"from dledger_faststream\.annotations import DledgerMessage"):
        subscriber._build_fastdepends_model()


@pytest.mark.parametrize(
    ("declare", "options", "given"),
    [
        (DledgerRegistrator.subscriber, SubscriberOptions, {"self", "topics", "group", "batch"}),
        (DledgerRegistrator.publisher, PublisherOptions, {"self", "topic", "batch"}),
    ],
)
def test_the_options_of_routes_are_those_of_the_broker(declare, options, given):
    assert set(inspect.signature(declare).parameters) - given == set(options.__annotations__)


class Order(BaseModel):
    id: int


def document_of(broker: DledgerBroker) -> dict[str, dict[str, object]]:
    return json.loads(FastStream(broker, specification=AsyncAPI()).schema.to_specification().to_json())


def test_the_asyncapi_document_names_server_channels_and_models():
    broker = DledgerBroker("a:9876;b:9876", description="Orders", tls=Tls())
    router = DledgerRouter("shop-")

    @router.subscriber("orders", "refunds", group="billing")
    @router.publisher("invoices", title="Invoices")
    async def bill(order: Order, message: DledgerMessage) -> str:
        """Bill an order."""

    broker.include_router(router)
    document = document_of(broker)
    servers = document["servers"]
    assert {(server["host"], server["protocol"]) for server in servers.values()} == {
        ("a:9876", "rocketmq-secure"),
        ("b:9876", "rocketmq-secure"),
    }
    channels = document["channels"]
    assert {name: channel["address"] for name, channel in channels.items()} == {
        "shop-orders:Bill": "shop-orders",
        "shop-refunds:Bill": "shop-refunds",
        "Invoices": "shop-invoices",
    }
    assert channels["shop-orders:Bill"]["description"] == "Bill an order."
    assert document["components"]["schemas"]["Order"]["properties"]["id"]["type"] == "integer"
    assert {operation["action"] for operation in document["operations"].values()} == {"receive", "send"}


def test_what_is_left_out_of_the_document_is_not_in_it():
    broker = DledgerBroker()
    broker.publisher("secret", include_in_schema=False, schema=int)
    broker.publisher("public", schema=Order)
    assert set(document_of(broker)["channels"]) == {"public:Publisher"}


def test_the_default_of_a_subscriber_is_that_of_the_client():
    subscriber = inspect.signature(DledgerRegistrator.subscriber).parameters
    assert {name: subscriber[name].default for name in ("filter", "start_from", "max_reconsume_times")} == {
        "filter": inspect.signature(PushConsumer.__init__).parameters["filter"].default,
        "start_from": Sharing().start_from,
        "max_reconsume_times": Delivery().max_reconsume_times,
    }
