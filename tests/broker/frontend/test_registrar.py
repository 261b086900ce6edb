"""A node stays registered with every name server in its current role."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Container, Iterable, Sequence
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from broker_in_process import until

from dledger.statemachine import Leadership
from dledger_broker.addresses import Address
from dledger_broker.config import BrokerConfig
from dledger_broker.features.topics.system_topics import system_topics
from dledger_broker.frontend import name_server, registration
from dledger_broker.frontend.registration import Registrar
from dledger_broker.kernel import topics
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.bodies import decode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, decode_command, encode_command, make_response
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.registration import DataVersion, TopicChangesBody, decode_registration
from dledger_remoting.signatures import ACCESS_KEY_FIELD, Credentials, is_signed_with
from dledger_remoting.topics import CREATED_ATTRIBUTE, WRITE_ALIASES_ATTRIBUTE, TopicConfig
from tests.broker.telling import tell

REGISTRATIONS = {RequestCode.REGISTER_BROKER}


class FakeNameServer:
    """Name server that takes requests but for `refused` codes, and answers nothing while `answers` is cleared.

    With `forgotten`, it answers the next comparisons as if it had lost its table.
    """

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.requests: list[RemotingCommand] = []
        self.forgotten = False
        self.refused: Container[int] = ()
        self.connections = 0
        self.accepts_changes = False
        self._arrived = asyncio.Condition()
        self._writers: list[asyncio.StreamWriter] = []
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in self._writers:
            writer.close()
        self._writers.clear()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        self.connections += 1
        decoder = FrameDecoder()
        while data := await reader.read(1 << 16):
            decoder.receive_data(data)
            while (frame := decoder.next_frame()) is not None:
                request = decode_command(frame)
                is_registration = request.code == RequestCode.REGISTER_BROKER
                ext = {"acceptsTopicChanges": "true"} if is_registration and self.accepts_changes else {}
                if request.code == RequestCode.QUERY_DATA_VERSION:
                    ext = {"changed": "true" if self.forgotten else "false"}
                    self.forgotten = False
                async with self._arrived:
                    self.requests.append(request)
                    self._arrived.notify_all()
                await self.answers.wait()
                refused = request.code in self.refused
                writer.write(encode_command(make_response(request, int(refused), "no" if refused else None, ext)))

    async def seen(self, condition: Callable[[RemotingCommand], bool]) -> RemotingCommand:
        """Return the first request that fulfils a condition, of the unread requests and those to come."""
        async with asyncio.timeout(10), self._arrived:
            while True:
                while self.requests:
                    request = self.requests.pop(0)
                    if condition(request):
                        return request
                await self._arrived.wait()

    async def changes(self) -> TopicChangesBody:
        """Return the changes of the next request that tells only changes."""
        request = await self.seen(lambda request: request.code == RequestCode.DLEDGER_TOPIC_CHANGES)
        return decode_body(TopicChangesBody, request.body)

    async def told(self, *topics: str) -> dict[str, TopicConfig]:
        """Return the topics of the next changes, once these are among them."""
        table: dict[str, TopicConfig] = {}
        while not table.keys() >= set(topics):
            table |= (await self.changes()).topic_config_table
        return table

    async def registration(self, *topics: str, **fields: str) -> RemotingCommand:
        """Return the next registration with these topics and ext fields."""
        return await self.seen(
            lambda request: (
                request.code == RequestCode.REGISTER_BROKER
                and fields.items() <= request.ext.items()
                and topics_of(request).keys() >= set(topics)
            )
        )

    async def comparison(self) -> RemotingCommand:
        """Return the next question whether anything has changed, which also keeps a registration alive."""
        return await self.seen(lambda request: request.code == RequestCode.QUERY_DATA_VERSION)


def topics_of(request: RemotingCommand) -> dict[str, TopicConfig]:
    compressed = request.ext["compressed"] == "true"
    return decode_registration(request.body, compressed=compressed).topic_config_serialize_wrapper.topic_config_table


class Setup:
    """A node's registrar. The node follows nobody, and knows the name servers."""

    def __init__(self, servers: Sequence[FakeNameServer], **keys: int) -> None:
        self.memory = BrokerInMemory(lead=False)
        events = self.memory.machine.events
        self.group = LeadershipView(NODE_ID, "127.0.0.1:10911", events)
        tell(events, "new_leadership", self.group.on_leadership)
        self.config = BrokerConfig(
            broker_group="broker-a",
            node_id=NODE_ID,
            data_dir=Path("unused"),
            broker_id_when_follower=3,
            namesrv=tuple(Address("127.0.0.1", server.port) for server in servers),
            **keys,  # type: ignore[arg-type]
        )
        self.registrar = Registrar(self.memory.machine, self.group, self.config)
        events.add(self.registrar)
        self.registrar.start()

    @property
    def version(self) -> int:
        """Number of changes of topics so far."""
        return self.memory.machine.state.topic_table.version

    def leads(self, term: int, *, ready: bool = True) -> None:
        self.group.on_leadership(Leadership(term, NODE_ID, is_leader=True, ready=ready))

    def follows(self, term: int) -> None:
        self.group.on_leadership(Leadership(term, None, is_leader=False, ready=False))

    def ensure(self, topics: Iterable[TopicConfig]) -> None:
        for topic in topics:
            self.memory.machine.proposals.ensure_topic(topic, lambda _: None)
        self.memory.env.run_ready()

    async def registered(self) -> None:
        """Wait until all name servers have the node's registration."""
        await until(lambda: self.registrar.registered == len(self.registrar._links))

    async def introduced(self) -> None:
        await until(lambda: self.registrar.introduced)

    async def told(self) -> None:
        await until(lambda: self.registrar.announced_version() >= self.version)

    async def refused(self) -> None:
        await until(lambda: any(link.is_refused for link in self.registrar._links))


class Servers(list[FakeNameServer]):
    """Name servers, and the registrars of nodes that know them."""

    def __init__(self) -> None:
        super().__init__([FakeNameServer(), FakeNameServer()])
        self.setups: list[Setup] = []

    def setup(self, count: int = 2, **keys: int) -> Setup:
        """Return a node that knows the first servers."""
        self.setups.append(Setup(self[:count], **keys))
        return self.setups[-1]

    async def leading(self, count: int = 2) -> Setup:
        """Return a leader that its name servers know."""
        setup = self.setup(count)
        setup.memory.node.lead()
        for server in self[:count]:
            await server.registration(brokerId="0")
        await setup.told()
        return setup


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[Servers]:
    made = Servers()
    for server in made:
        await server.start()
    yield made
    for setup in made.setups:
        await setup.registrar.stop()
    for server in made:
        await server.stop()


async def test_a_follower_registers_its_own_id_everywhere(servers: Servers) -> None:
    servers.setup()
    for server in servers:
        assert (await server.registration()).ext == {
            "brokerName": "broker-a",
            "brokerAddr": "127.0.0.1:10911",
            "clusterName": "DefaultCluster",
            "haServerAddr": "127.0.0.1:10911",
            "brokerId": "3",
            "heartbeatTimeoutMillis": "15000",
            "compressed": "false",
            "bodyCrc32": "0",
            "topicsComplete": "true",
            "nodeId": NODE_ID,
            "aliasNumber": "2",
            "aliasAddr": "127.0.0.1:10914",
        }


async def test_only_a_ready_leader_registers_id_zero_and_its_term(servers: Servers) -> None:
    setup = servers.setup()
    await servers[0].registration()
    setup.leads(4, ready=False)
    assert (await servers[0].registration()).ext["brokerId"] == "3"
    setup.leads(4)
    for server in servers:
        request = await server.registration(brokerId="0")
        assert decode_registration(request.body).topic_config_serialize_wrapper.data_version.state_version == 4
    setup.follows(5)
    await servers[0].registration(brokerId="3")


async def test_a_new_topic_is_registered_at_once(servers: Servers) -> None:
    setup = servers.setup()
    setup.memory.node.lead()
    await servers[0].registration(brokerId="0")
    setup.memory.create_topic("T1")
    for server in servers:
        await server.registration("T1")


async def test_topics_that_are_too_many_for_a_frame_are_registered_all_the_same(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = servers.setup()
    setup.memory.node.lead()
    plain = await servers[0].registration(brokerId="0")
    monkeypatch.setattr(registration, "MAX_PLAIN_BYTES", len(plain.body))
    setup.memory.create_topic("T1")
    assert topics_of(await servers[0].registration(compressed="true")) == {
        name: msgspec.structs.replace(topic.config, attributes={CREATED_ATTRIBUTE: str(topic.created_position)})
        for name, topic in setup.memory.machine.state.topics.items()
    }


async def test_a_leader_is_introduced_once_every_name_server_has_its_first_topics(servers: Servers) -> None:
    setup = servers.setup()
    setup.memory.node.lead()
    for server in servers:
        await server.registration(brokerId="0")
        server.answers.clear()
    assert not setup.registrar.introduced
    *others, last = system_topics(setup.config)
    setup.ensure(others)
    assert not setup.registrar.is_complete
    setup.ensure([last])
    assert setup.registrar.is_complete
    servers[0].answers.set()
    await until(lambda: setup.registrar._links[0].introduction_term is not None)
    assert not setup.registrar.introduced
    servers[1].answers.set()
    await setup.introduced()
    term = setup.group.term
    setup.follows(term + 1)
    assert not setup.registrar.introduced
    setup.leads(term + 2)
    assert not setup.registrar.introduced
    await setup.introduced()


@pytest.mark.parametrize("obstacle", ["gone", "refusing"])
async def test_a_leader_leads_despite_name_servers_that_are_gone_or_refuse(servers: Servers, obstacle: str) -> None:
    for server in servers:
        server.refused = REGISTRATIONS if obstacle == "refusing" else ()
    if obstacle == "gone":
        await servers[1].stop()
    setup = servers.setup()
    setup.memory.node.lead()
    setup.ensure(system_topics(setup.config))
    await setup.introduced()
    if obstacle == "gone":
        assert setup.registrar.registered == 1
    else:
        assert len(setup.registrar.servers_behind(1)) == len(servers), "all count as untold"
        assert setup.registrar.announced_version() == -1


async def test_a_new_leader_registers_despite_another_request_in_flight(servers: Servers) -> None:
    setup = servers.setup(register_period_ms=60_000, register_timeout_ms=600_000)
    await servers[0].registration()
    servers[0].answers.clear()
    setup.follows(0)
    await servers[0].comparison()
    setup.leads(4)
    servers[0].answers.set()
    await servers[0].registration(brokerId="0")


async def test_a_new_leader_does_not_wait_while_changes_of_topics_are_collected(servers: Servers) -> None:
    setup = servers.setup()
    await setup.registered()
    setup.registrar._links[0]._pause_s = 3_600.0
    setup.registrar.topics_changed()
    for _ in range(5):
        await asyncio.sleep(0)  # the link begins its pause
    setup.leads(4)
    await servers[0].registration(brokerId="0")


async def test_the_last_first_topic_of_a_new_leader_is_registered_without_collecting(servers: Servers) -> None:
    setup = servers.setup()
    setup.memory.node.lead()
    for server in servers:
        await server.registration(brokerId="0")
    await setup.registered()
    for link in setup.registrar._links:
        link._pause_s = 3_600.0
    setup.ensure(system_topics(setup.config))
    await setup.introduced()


@pytest.mark.parametrize("leads", [False, True], ids=["follower", "leader that tells changes"])
async def test_keep_alives_are_small_unless_the_name_server_forgot_the_broker(servers: Servers, leads: bool) -> None:
    servers[0].accepts_changes = leads
    setup = servers.setup(register_period_ms=100)
    if leads:
        setup.memory.node.lead()
    own_id = "0" if leads else "3"
    await servers[0].registration(brokerId=own_id)
    for _ in range(2):
        await servers[0].comparison()
    assert not [request for request in servers[0].requests if request.code == RequestCode.REGISTER_BROKER]
    servers[0].forgotten = True
    await servers[0].registration(brokerId=own_id)


async def test_a_changed_key_signs_at_once_on_connections_that_stand(servers: Servers) -> None:
    """A connection once kept the key that it was made with. Name servers without that key forgot the whole group."""
    setup = servers.setup(register_period_ms=100)
    await servers[0].registration()
    new = setup.registrar.credentials = Credentials("node", "a new secret")
    for code in (RequestCode.QUERY_DATA_VERSION, RequestCode.REGISTER_BROKER):
        servers[0].forgotten = True
        request = await servers[0].seen(
            lambda request, code=code: request.code == code and ACCESS_KEY_FIELD in request.ext  # type: ignore[misc]
        )
        assert is_signed_with(new.secret, request.ext, request.body, request.version)
    assert servers[0].connections == 1
    await setup.registrar.leave()
    farewell = await servers[0].seen(lambda request: request.code == RequestCode.UNREGISTER_BROKER)
    assert is_signed_with(new.secret, farewell.ext, farewell.body, farewell.version)


async def test_a_large_first_registration_follows_a_small_signed_request(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name server with access control has little memory for connections that have signed nothing."""
    monkeypatch.setattr(registration, "INTRODUCTION_BYTES", 0)
    setup = servers.setup(1)
    assert (await servers[0].seen(lambda _: True)).code == RequestCode.REGISTER_BROKER, "without access control"
    setup.registrar.credentials = Credentials("node", "a secret")
    await servers[0].stop()
    servers[0].requests.clear()
    await servers[0].start()
    first, second = [await servers[0].seen(lambda _: True) for _ in range(2)]
    assert (first.code, second.code) == (RequestCode.QUERY_DATA_VERSION, RequestCode.REGISTER_BROKER)
    assert is_signed_with("a secret", first.ext, first.body, first.version)
    await setup.registrar.stop()


async def test_a_name_server_that_restarts_or_refuses_is_registered_with_again(servers: Servers) -> None:
    servers.setup()
    await servers[0].registration()
    await servers[0].stop()
    servers[0].refused = set(RequestCode)
    await servers[0].start()
    await servers[0].registration()
    servers[0].refused = ()
    await servers[0].registration()
    assert (await servers[1].registration()).ext["brokerId"] == "3"


async def test_leaving_unregisters_everywhere_and_stays_away(servers: Servers) -> None:
    setup = servers.setup()
    for server in servers:
        await server.registration()
    await setup.registrar.leave()
    for server in servers:
        request = await server.seen(lambda request: request.code == RequestCode.UNREGISTER_BROKER)
        assert (request.ext["brokerId"], request.ext["brokerAddr"]) == ("3", "127.0.0.1:10911")
        assert request.ext["stateVersion"] == str(setup.group.term)
    setup.leads(4)
    assert setup.registrar.registered == 0


async def test_leaving_during_a_handover_ends(servers: Servers) -> None:
    setup = servers.setup()
    await setup.registered()
    for _ in range(5):
        await asyncio.sleep(0)  # the links begin to wait for a change
    setup.follows(4)
    await asyncio.sleep(0)  # their waits have ended, but the links do not know it yet
    async with asyncio.timeout(10):
        await setup.registrar.leave()


@pytest.mark.parametrize(
    ("fails", "registrations"),
    [((Registrar, "registration"), 1), ((name_server, "decode_command"), 2)],
    ids=["request", "answer"],
)
async def test_an_unexpected_error_does_not_end_the_registration(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, fails: tuple[object, str], registrations: int
) -> None:
    """An error while an answer is read ends the connection, and not only when the request times out."""

    def fail_once(*_: object) -> RemotingCommand:
        monkeypatch.undo()
        raise KeyError("nobody expected that")

    monkeypatch.setattr(registration, "REQUEST_TIMEOUT_S", 3_600.0)
    monkeypatch.setattr(*fails, fail_once)
    setup = servers.setup(1)
    for _ in range(registrations):
        await servers[0].registration()
    assert setup.registrar.restarts == 1


async def test_name_servers_get_changes_if_they_accept_changes_and_everything_otherwise(servers: Servers) -> None:
    servers[0].accepts_changes = True
    setup = await servers.leading()
    before = setup.version
    setup.memory.create_topic("T1")
    setup.registrar.announce_soon()
    changes = await servers[0].changes()
    assert list(changes.topic_config_table) == ["T1"]
    assert (changes.base.counter, changes.data_version.counter) == (before, before + 1)
    assert changes.base.state_version == setup.group.term
    assert "T1" in topics_of(await servers[1].registration())
    await setup.told()
    setup.memory.machine.proposals.delete_topic("T1", lambda _: None)
    setup.memory.env.run_ready()
    setup.registrar.announce_soon()
    changes = await servers[0].changes()
    assert (changes.topic_config_table, changes.deleted) == ({}, ["T1"])


async def test_a_name_server_that_refuses_changes_gets_a_full_registration_at_once(servers: Servers) -> None:
    servers[0].accepts_changes = True
    setup = await servers.leading(1)
    servers[0].refused = {RequestCode.DLEDGER_TOPIC_CHANGES}
    setup.memory.create_topic("T1")
    setup.registrar.announce_soon()
    await servers[0].changes()
    assert "T1" in topics_of(await servers[0].registration())
    await setup.told()


@pytest.mark.parametrize("bound", ["MAX_CHANGES", "MAX_REMEMBERED"])
async def test_too_many_topic_changes_cause_a_full_registration(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    servers[0].accepts_changes = True
    setup = await servers.leading(1)
    monkeypatch.setattr(registration if bound == "MAX_CHANGES" else topics, bound, 2)
    for number in range(3):
        setup.memory.create_topic(f"T{number}")
    request = await servers[0].seen(lambda request: request.code != RequestCode.QUERY_DATA_VERSION)
    assert request.code == RequestCode.REGISTER_BROKER


async def test_a_new_term_or_role_causes_a_full_registration(servers: Servers) -> None:
    servers[0].accepts_changes = True
    setup = await servers.leading(1)
    term = setup.group.term
    setup.follows(term + 1)
    await servers[0].registration(brokerId="3")
    setup.leads(term + 2)
    await servers[0].registration(brokerId="0")


async def test_told_version_counts_reachable_name_servers_only(servers: Servers) -> None:
    for server in servers:
        server.accepts_changes = True
    setup = await servers.leading()
    servers[1].answers.clear()
    version = setup.version
    setup.memory.create_topic("T1")
    setup.registrar.announce_soon()
    for server in servers:
        await server.changes()
    for _ in range(100):
        await asyncio.sleep(0)
    assert setup.registrar.announced_version() == version
    assert setup.registrar.servers_behind(version) == []
    assert setup.registrar.servers_behind(version + 1) == [f"127.0.0.1:{servers[1].port}"]
    told: list[float] = []
    tell(setup.group.events, "name_servers_changed", lambda: told.append(setup.registrar.announced_version()))
    await servers[1].stop()
    servers[1].answers.set()
    await until(lambda: version + 1 in told)
    assert setup.registrar.servers_behind(version + 1) == []
    setup.follows(setup.group.term + 1)
    assert setup.registrar.announced_version() == float("inf")
    assert setup.registrar.servers_behind(version + 1) == []
    assert setup.registrar.servers_behind(version + 2) == [f"127.0.0.1:{servers[0].port}"]


async def test_name_servers_are_told_when_topics_were_made_and_which_have_aliases(servers: Servers) -> None:
    setup, server = servers.setup(write_aliases=True), servers[0]
    server.accepts_changes = True
    setup.memory.node.lead()
    await server.registration(brokerId="0")
    await setup.registered()
    setup.memory.create_topic("T1", 1)
    setup.memory.create_topic("T2")
    table = await server.told("T1", "T2")
    setup.memory.create_topic("T3")
    table |= await server.told("T3")
    aliases = {WRITE_ALIASES_ATTRIBUTE: "true"}
    for name, expected in (("T1", {}), ("T2", aliases), ("T3", aliases)):
        topic = setup.memory.machine.state.topics[name]
        assert table[name].attributes == expected | {CREATED_ATTRIBUTE: str(topic.created_position)}
        assert topic.config.attributes == {}, "what is replicated stays as it is"


async def test_every_registration_has_the_alias_of_the_node(servers: Servers) -> None:
    setup, server = servers.setup(), servers[0]
    server.accepts_changes = True
    first = await server.registration(aliasAddr="127.0.0.1:10914", aliasNumber="2", nodeId=NODE_ID)
    assert topics_of(first) == {}
    assert "memberIds" not in first.ext
    setup.memory.node.lead()
    request = await server.registration(brokerId="0", aliasNumber="2")
    members = setup.memory.machine.log.membership.members
    assert request.ext["memberIds"] == ",".join(member.node_id for member in members)
    for attributes in ({WRITE_ALIASES_ATTRIBUTE: "true"}, {}):
        await setup.registered()
        setup.memory.machine.proposals.put_topic(TopicConfig("T1", 4, 4, attributes=attributes), lambda _: None)
        setup.memory.env.run_ready()
        told = (await server.changes()).topic_config_table["T1"].attributes
        assert {name: value for name, value in told.items() if name != CREATED_ATTRIBUTE} == attributes


async def test_a_node_without_an_alias_port_registers_no_alias(servers: Servers) -> None:
    setup = servers.setup(write_aliases=True, alias_port=0)
    setup.memory.node.lead()
    setup.memory.create_topic("T2")
    assert "aliasAddr" not in (await servers[0].registration("T2")).ext


async def test_a_refused_registration_keeps_connection_and_old_registration(
    servers: Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A name server removes a node whose connection ends: a topic that it refuses would remove the group."""
    monkeypatch.setattr(registration, "RECONNECT_S", 0.001)
    setup = await servers.leading(1)
    link, connections = setup.registrar._links[0], servers[0].connections
    told = link.registered_identity
    assert told is not None
    servers[0].refused = REGISTRATIONS
    setup.memory.create_topic("T1")
    await setup.refused()
    servers[0].requests.clear()
    for _ in range(2):
        assert decode_body(DataVersion, (await servers[0].comparison()).body) == told[1], "what stands is kept alive"
        await servers[0].registration(brokerId="0")
    assert (link.registered_identity, link._announced_id) == (told, 0)
    servers[0].refused = ()
    await setup.told()
    assert servers[0].connections == connections
    said = [record.message for record in caplog.records if "event=registration_refused" in record.message]
    assert said == [f"event=registration_refused namesrv=127.0.0.1:{servers[0].port} error='no'"]


async def test_told_version_waits_for_a_refusing_name_server_and_not_for_an_unreachable_one(servers: Servers) -> None:
    setup = await servers.leading()
    servers[0].refused = REGISTRATIONS
    await servers[1].stop()
    setup.memory.create_topic("T1")
    await setup.refused()
    await until(lambda: setup.registrar._links[1].is_unreachable)
    assert setup.registrar.announced_version() < setup.version
    assert setup.registrar.servers_behind(setup.version) == [f"127.0.0.1:{servers[0].port}"]


async def test_a_name_server_that_refused_and_forgot_no_longer_counts_as_told(
    servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "RECONNECT_S", 0.001)
    setup = await servers.leading(1)
    servers[0].refused = REGISTRATIONS
    setup.memory.create_topic("T1")
    await setup.refused()
    servers[0].forgotten = True
    await until(lambda: setup.registrar._links[0].registered_identity is None)
