"""The HTTP ports of broker and name server keep their output.

The recording has names, types and help of metrics, keys of the status, and the texts for probes and for changes of a
group.
"""

from __future__ import annotations

import asyncio
import re
import types
import typing
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from aiohttp import ClientSession, web
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from dledger.errors import LogError
from dledger.net.proof import prove
from dledger.replica.status import LoopLateness, NodeStatus, PeerStatus
from dledger_base.audit_log import AuditLog
from dledger_base.doorman import DoorCounters
from dledger_base.loop_holds import Held, LoopHolds
from dledger_base.secret import GroupSecrets
from dledger_broker.features.quotas.table import NAME as QUOTAS
from dledger_broker.frontend import http as broker_http
from dledger_broker.frontend.http import BrokerStatus
from dledger_broker.kernel.parts import LabelledGauge
from dledger_broker.kernel.state import BrokerState
from dledger_broker.node import Broker
from dledger_namesrv import http as name_server_http
from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.metrics import NameServerCounters
from dledger_namesrv.table import RouteTable
from tests.broker.broker_in_process import Client, node_config, running
from tests.broker.telling import tell
from tests.recorded.golden_files import compare


@pytest.fixture(autouse=True)
def no_page_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dledger_base.metrics_page.SHORTEST_S", 0.0)
    monkeypatch.setattr("dledger_base.metrics_page.REST", 0.0)


SECRET = b"s" * 32
PEER = PeerStatus("broker-a-n1", True, 30, 11, 250, "replicate", 15, -1500)


class Shown:
    """Node with a real broker's numbers, and with status and group set by the test."""

    def __init__(self, broker: Broker) -> None:
        self.config = SimpleNamespace(host="127.0.0.1", http_port=0)
        self._broker = broker
        self.now = msgspec.structs.replace(
            broker.status(),
            term=7,
            peers=[PEER],
            loop_late=LoopLateness([5, 7, 7, 7, 8, 8, 8, 9], 6.5),
            loop_held=[Held("apply", 4, 0.25, 0.125)],
        )
        self.node = self
        self.group_secret: GroupSecrets | None = GroupSecrets(SECRET)
        self.holds = LoopHolds()
        self.is_draining = False
        self.is_introduced = True
        self.http_tls = self.metrics_token = None
        self.access_obstacle: str | None = None
        self.audit_log = AuditLog()
        self.takes_over = True

    def status(self) -> NodeStatus:
        return self.now

    @property
    def state(self) -> BrokerState:
        return self._broker.state

    def counters(self) -> Mapping[str, int]:
        return self._broker.counters()

    def trimmed(self) -> Mapping[str, tuple[int, int]]:
        return self._broker.trimmed()

    def job_failures(self) -> Mapping[str, int]:
        return self._broker.job_failures()

    def gauges(self) -> Mapping[str, float]:
        return self._broker.gauges()

    def labelled_gauges(self) -> Iterable[LabelledGauge]:
        return self._broker.labelled_gauges()

    async def transfer_leadership(self, to: str | None = None) -> bool:
        self.remove(str(to))
        return self.takes_over

    def remove(self, node_id: str) -> None:
        if node_id == "nobody":
            raise LogError("'nobody' is no member")


class Port:
    """Client of an HTTP port."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session

    async def get(self, path: str) -> str:
        return (await self.ask("GET", path))[1]

    async def ask(self, method: str, path: str, authorization: str = "") -> tuple[int, str, str]:
        """Return status code, text and challenge of the answer."""
        headers = {"Authorization": authorization} if authorization else {}
        async with self._session.request(method, path, headers=headers) as answer:
            return answer.status, await answer.text(), answer.headers.get("WWW-Authenticate", "")

    async def ask_proven(self, method: str, path: str) -> tuple[int, str, str]:
        _, _, challenge = await self.ask(method, path)
        return await self.ask(method, path, prove(SECRET, method, path, challenge))


@asynccontextmanager
async def port_of(runner: web.AppRunner) -> AsyncIterator[Port]:
    try:
        async with ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
            yield Port(session)
    finally:
        await runner.cleanup()


async def active(broker: Broker, feature: str) -> None:
    """Wait until a feature may be used."""
    changed = asyncio.Event()
    tell(broker.machine.events, "members_changed", changed.set)
    async with asyncio.timeout(60):
        while not broker.machine.is_active(feature):
            changed.clear()
            await changed.wait()


@asynccontextmanager
async def broker_port(tmp_path: Path) -> AsyncIterator[tuple[Shown, Port]]:
    """Run a leader that has stored a message, a consumer group's offset and a quota."""
    async with running(node_config(tmp_path), bootstrap=True) as broker:
        client = await Client.connect(broker.listener.port)
        assert (await client.send(b"hello")).code == 0
        await client.heartbeat("client")
        offset = {"consumerGroup": "CG", "topic": "T1", "queueId": "0", "commitOffset": "1"}
        assert (await client.call(15, offset)).code == 0
        await active(broker, QUOTAS)
        assert (await client.call(20017, {}, b'{"kind":"topic","name":"T1","messagesPerSecond":9}')).code == 0
        client.close()
        shown = Shown(broker)
        async with port_of(await broker_http.start_http(shown)) as port:
            yield shown, port


class ObservedServer:
    """Name server that has counted one request."""

    def __init__(self) -> None:
        self.config = NameServerConfig(http_port=0)
        self.counters = NameServerCounters()
        self.counters.count_request(105)
        self.table = RouteTable()
        self.connection_count = self.watch_count = self.watch_bytes = 0
        self.failure = ""
        self.door_counters = DoorCounters()
        self.tls = self.http_tls = self.metrics_token = None


def families(text: str) -> dict[str, Metric]:
    """Return our own metrics. The metrics of the process come from prometheus-client and differ between systems."""
    found = {family.name: family for family in text_string_to_metric_families(text)}
    return {name: found[name] for name in sorted(found) if not name.startswith("process_")}


def described(found: Mapping[str, Metric]) -> Iterator[str]:
    """Yield name, type, labels and help of each metric.

    A label that distinguishes samples of one family is listed with its values, unless these are names of the
    deployment.
    """
    for name, family in found.items():
        assert family.samples, f"{name} has no sample: nobody sees its labels"
        labels = sorted({label for sample in family.samples for label in sample.labels})
        yield f"{name} {family.type} {{{', '.join(labels)}}}: {family.documentation}"
        for label in labels:
            if label in {"le", "limit", "reason", "role"}:
                values = {sample.labels[label] for sample in family.samples if label in sample.labels}
                yield f"    {label}: {' '.join(sorted(values))}"


async def test_metrics_of_a_broker(tmp_path: Path) -> None:
    async with broker_port(tmp_path) as (shown, port):
        on_leader = families(await port.get("/metrics"))
        shown.now = msgspec.structs.replace(shown.now, role="follower", ready=False, peers=[])
        on_follower = families(await port.get("/metrics"))
    of_the_group = [f"only on a leader: {name}" for name in on_leader if name not in on_follower]
    assert on_follower.keys() < on_leader.keys()
    compare("surfaces/metrics_broker", [*described(on_leader), *of_the_group])


async def test_metrics_of_a_name_server() -> None:
    async with port_of(await name_server_http.start_http(ObservedServer())) as port:
        found = families(await port.get("/metrics"))
        assert await port.get("/healthz") == "ok"
    compare("surfaces/metrics_name_server", described(found))


def fields_of(struct: type[msgspec.Struct], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield every key of a struct's JSON, nested ones too, with the JSON type of its value."""
    hints = typing.get_type_hints(struct)
    for field in msgspec.structs.fields(struct):
        key, hint = f"{path}{field.encode_name}", hints[field.name]
        yield key, type_name(hint)
        for inner in (*typing.get_args(hint), hint):
            if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
                yield from fields_of(inner, f"{key}[]." if typing.get_origin(hint) is list else f"{key}.")


def type_name(hint: object) -> str:
    if isinstance(hint, types.UnionType):
        return " or ".join(sorted(type_name(one) for one in typing.get_args(hint)))
    if typing.get_origin(hint) is list:
        return f"array of {type_name(typing.get_args(hint)[0])}"
    names = {str: "text", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
    assert isinstance(hint, type)
    return "object" if issubclass(hint, msgspec.Struct) else names[hint]


def keys_in(value: object, path: str = "") -> Iterator[str]:
    """Yield every key of decoded JSON, in the form of `fields_of`."""
    if isinstance(value, list):
        for inner in value:
            yield from keys_in(inner, f"{path}[]")
    elif isinstance(value, dict):
        for key, inner in value.items():
            here = f"{path}.{key}" if path else key
            yield here
            yield from keys_in(inner, here)


async def test_keys_of_the_status(tmp_path: Path) -> None:
    async with broker_port(tmp_path) as (_, port):
        status = msgspec.json.decode(await port.get("/status"))
    declared = dict(fields_of(BrokerStatus))
    assert sorted(set(keys_in(status))) == sorted(declared)
    compare("surfaces/status", [f"{key}: {declared[key]}" for key in sorted(declared)])


STATES: tuple[tuple[str, dict[str, object], dict[str, bool]], ...] = (
    ("a leader that serves", {}, {}),
    ("a leader that is being introduced", {}, {"is_introduced": False}),
    ("a leader before its first entry", {"ready": False}, {}),
    ("a follower of a leader", {"role": "follower", "leader_id": "broker-a-n1", "ready": False}, {}),
    ("a follower of nobody", {"role": "follower", "leader_id": None, "ready": False}, {}),
    ("a candidate", {"role": "candidate", "leader_id": None, "ready": False}, {}),
    ("a leader that takes no messages", {"refusal": "the disk of broker-a-n0 is full"}, {}),
    ("a node that leaves", {}, {"is_draining": True}),
    ("a node that failed", {"failure": "commitlog: input/output error"}, {"is_draining": True}),
)


async def test_probe_answers_equal_the_recording(tmp_path: Path) -> None:
    lines = []
    async with broker_port(tmp_path) as (shown, port):
        usual = shown.now
        for state, changes, flags in STATES:
            shown.now = msgspec.structs.replace(usual, **changes)
            shown.is_introduced = flags.get("is_introduced", True)
            shown.is_draining = flags.get("is_draining", False)
            lines.append(f"{state}:")
            for path in ("/healthz", "/readyz"):
                code, text, _ = await port.ask("GET", path)
                lines.append(f"    {path} {code} {text}")
    compare("surfaces/probes", lines)


CHANGES = (("PUT", "/leader/broker-a-n1"), ("PUT", "/leader/nobody"), ("DELETE", "/members/broker-a-n1"))


async def test_answers_to_group_changes_equal_the_recording(tmp_path: Path) -> None:
    async with broker_port(tmp_path) as (shown, port):
        answers = {
            "proven": [await port.ask_proven(*change) for change in (*CHANGES, ("DELETE", "/members/nobody"))],
            "without proof": [await port.ask(*CHANGES[0])],
            "with a wrong proof": [await port.ask(*CHANGES[0], prove(b"other", *CHANGES[0], challenge_of_all_zeros()))],
            "in another way": [await port.ask("GET", path) for _, path in CHANGES],
            "elsewhere": [await port.ask("GET", "/")],
        }
        shown.takes_over = False
        answers["proven, of a node that does not follow"] = [await port.ask_proven(*CHANGES[0])]
    async with broker_port(tmp_path / "other") as (shown, _):
        shown.group_secret = None
        async with port_of(await broker_http.start_http(shown)) as port:
            answers["of a node without secret"] = [await port.ask(*change) for change in CHANGES]
    compare("surfaces/group_changes", asked_and_told(answers))


def challenge_of_all_zeros() -> str:
    return f'DLedger nonce="{bytes(40).hex()}"'


def asked_and_told(answers: Mapping[str, Iterable[tuple[int, str, str]]]) -> Iterator[str]:
    for case, told in answers.items():
        yield f"{case}:"
        for code, text, challenge in told:
            own = text if code not in {404, 405} else "in aiohttp's words"
            yield f"    {code} {own}" + (f" [{re.sub('[0-9a-f]{8,}', 'NONCE', challenge)}]" if challenge else "")


class Inner(msgspec.Struct, rename={"share": "share_permille"}):
    """Nested struct."""

    share: int


class Outer(msgspec.Struct):
    """Struct with nested structs."""

    one: Inner | None
    many: list[Inner]


def test_a_key_of_every_kind_is_described() -> None:
    assert list(fields_of(Outer)) == [
        ("one", "null or object"),
        ("one.share_permille", "integer"),
        ("many", "array of object"),
        ("many[].share_permille", "integer"),
    ]
    value = {"one": {"share_permille": 1}, "many": [{"share_permille": 1}]}
    assert sorted(set(keys_in(value))) == ["many", "many[].share_permille", "one", "one.share_permille"]
