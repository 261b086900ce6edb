"""A node stays registered with every name server, as what it is."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from dledger.statemachine import Leadership
from dledger_broker.addresses import Address
from dledger_broker.config import BrokerConfig
from dledger_broker.features.topics.system_topics import system_topics
from dledger_broker.frontend import name_server, registration
from dledger_broker.frontend.registration import Registrar
from dledger_broker.kernel import topic_changes
from dledger_broker.kernel.leadership import Group
from dledger_broker.testing import BrokerInMemory
from dledger_broker.testing.node import NODE_ID
from dledger_remoting.bodies import decode_body
from dledger_remoting.codes import RequestCode
from dledger_remoting.command import RemotingCommand, decode_command, encode_command, make_response
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.registration import DataVersion, TopicChangesBody, decode_registration
from dledger_remoting.topics import WRITE_ALIASES_ATTRIBUTE, TopicConfig


class FakeNameServer:
    """Takes registrations; `forgotten` answers the next comparisons as if it had lost its table.

    It answers nothing while `answers` is cleared.
    """

    def __init__(self) -> None:
        self.answers = asyncio.Event()
        self.answers.set()
        self.requests: list[RemotingCommand] = []
        self.forgotten = False
        self.refuses = False
        self.refuses_registrations = False
        self.connections = 0
        self.accepts_changes = False
        self.refuses_changes = False
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
                ext = {}
                if request.code == RequestCode.QUERY_DATA_VERSION:
                    ext = {"changed": "true" if self.forgotten else "false"}
                    self.forgotten = False
                if request.code == RequestCode.REGISTER_BROKER and self.accepts_changes:
                    ext = {"acceptsTopicChanges": "true"}
                async with self._arrived:
                    self.requests.append(request)
                    self._arrived.notify_all()
                await self.answers.wait()
                is_change = request.code == RequestCode.DLEDGER_TOPIC_CHANGES
                no_registration = self.refuses_registrations and request.code == RequestCode.REGISTER_BROKER
                code = 1 if self.refuses or no_registration or (is_change and self.refuses_changes) else 0
                writer.write(encode_command(make_response(request, code, "no" if code else None, ext)))

    async def seen(self, condition: Callable[[RemotingCommand], bool]) -> RemotingCommand:
        """The first request from now on, or unread before, that fulfils a condition."""
        async with asyncio.timeout(10), self._arrived:
            while True:
                while self.requests:
                    request = self.requests.pop(0)
                    if condition(request):
                        return request
                await self._arrived.wait()

    async def changes(self) -> TopicChangesBody:
        """The next request that tells changes only."""
        request = await self.seen(lambda request: request.code == RequestCode.DLEDGER_TOPIC_CHANGES)
        return decode_body(TopicChangesBody, request.body)

    async def registration(self, **fields: str) -> RemotingCommand:
        """The next registration with these ext fields."""
        return await self.seen(
            lambda request: request.code == RequestCode.REGISTER_BROKER and fields.items() <= request.ext.items()
        )


class Setup:
    def __init__(self, servers: list[FakeNameServer], **keys: int) -> None:
        self.memory = BrokerInMemory(lead=False)
        self.group = Group(NODE_ID, "127.0.0.1:10911")
        self.memory.machine.on_leadership_changed.append(self.group.on_leadership)
        self.config = BrokerConfig(
            broker_group="broker-a",
            node_id=NODE_ID,
            data_dir=Path("unused"),
            broker_id_when_follower=3,
            namesrv=tuple(Address("127.0.0.1", server.port) for server in servers),
            **keys,  # type: ignore[arg-type]
        )
        self.registrar = Registrar(self.memory.machine, self.group, self.config)
        self.registrar.start()


@pytest_asyncio.fixture
async def servers() -> AsyncIterator[list[FakeNameServer]]:
    made = [FakeNameServer(), FakeNameServer()]
    for server in made:
        await server.start()
    yield made
    for server in made:
        await server.stop()


async def test_a_follower_registers_its_own_id_everywhere(servers: list[FakeNameServer]) -> None:
    setup = Setup(servers)
    for server in servers:
        request = await server.registration()
        assert request.ext == {
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
    await setup.registrar.stop()


async def test_only_a_ready_leader_registers_id_zero_and_its_term(servers: list[FakeNameServer]) -> None:
    setup = Setup(servers)
    await servers[0].registration()
    setup.group.on_leadership(Leadership(4, NODE_ID, is_leader=True, ready=False))
    unready = await servers[0].registration()
    assert unready.ext["brokerId"] == "3"
    setup.group.on_leadership(Leadership(4, NODE_ID, is_leader=True, ready=True))
    for server in servers:
        request = await server.registration(brokerId="0")
        assert decode_registration(request.body).topic_config_serialize_wrapper.data_version.state_version == 4
    setup.group.on_leadership(Leadership(5, None, is_leader=False, ready=False))
    await servers[0].registration(brokerId="3")
    await setup.registrar.stop()


async def test_a_new_topic_is_registered_at_once(servers: list[FakeNameServer]) -> None:
    setup = Setup(servers)
    setup.memory.node.lead()
    await servers[0].registration(brokerId="0")
    setup.memory.machine.proposals.put_topic(TopicConfig("T1"), lambda _: None)
    setup.memory.env.run_ready()
    for server in servers:
        await server.seen(
            lambda request: (
                request.code == RequestCode.REGISTER_BROKER
                and "T1" in decode_registration(request.body).topic_config_serialize_wrapper.topic_config_table
            )
        )
    await setup.registrar.stop()


async def test_topics_that_are_too_many_for_a_frame_are_registered_all_the_same(
    servers: list[FakeNameServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup(servers)
    setup.memory.node.lead()
    plain = await servers[0].registration(brokerId="0")
    monkeypatch.setattr(registration, "MAX_PLAIN_BYTES", len(plain.body))
    setup.memory.create_topic("T1")
    request = await servers[0].registration(compressed="true")
    table = decode_registration(request.body, compressed=True).topic_config_serialize_wrapper.topic_config_table
    assert table == {name: topic.config for name, topic in setup.memory.machine.state.topics.items()}
    await setup.registrar.stop()


async def until_introduced(registrar: Registrar) -> None:
    async with asyncio.timeout(10):
        while not registrar.introduced:  # noqa: ASYNC110 -- there is no event for an answer that came
            await asyncio.sleep(0)


async def test_a_leader_is_introduced_once_every_name_server_has_taken_all_its_first_topics(
    servers: list[FakeNameServer],
) -> None:
    setup = Setup(servers)
    setup.memory.node.lead()
    for server in servers:
        await server.registration(brokerId="0")
    assert not setup.registrar.introduced
    for server in servers:
        server.answers.clear()
    *others, last = system_topics(setup.config)
    for topic in others:
        setup.memory.machine.proposals.ensure_topic(topic, lambda _: None)
    setup.memory.env.run_ready()
    assert not setup.registrar.is_complete
    setup.memory.machine.proposals.ensure_topic(last, lambda _: None)
    setup.memory.env.run_ready()
    assert setup.registrar.is_complete
    servers[0].answers.set()
    while setup.registrar._links[0].introduced_in is None:  # noqa: ASYNC110 -- as above
        await asyncio.sleep(0)
    assert not setup.registrar.introduced
    servers[1].answers.set()
    await until_introduced(setup.registrar)
    term = setup.group.term
    setup.group.on_leadership(Leadership(term + 1, None, is_leader=False, ready=False))
    assert not setup.registrar.introduced
    setup.group.on_leadership(Leadership(term + 2, NODE_ID, is_leader=True, ready=True))
    assert not setup.registrar.introduced
    await until_introduced(setup.registrar)
    await setup.registrar.stop()


async def until_it_leads(setup: Setup) -> None:
    """Until it leads, has the topics of the system, and has told all name servers that it waits for."""
    setup.memory.node.lead()
    for topic in system_topics(setup.config):
        setup.memory.machine.proposals.ensure_topic(topic, lambda _: None)
    setup.memory.env.run_ready()
    await until_introduced(setup.registrar)


async def test_a_leader_does_not_wait_for_a_name_server_that_cannot_be_reached(servers: list[FakeNameServer]) -> None:
    await servers[1].stop()
    setup = Setup(servers)
    await until_it_leads(setup)
    assert setup.registrar.registered == 1
    await setup.registrar.stop()


async def test_a_new_leader_registers_although_another_request_is_on_its_way(servers: list[FakeNameServer]) -> None:
    setup = Setup(servers, register_period_ms=60_000, register_timeout_ms=600_000)
    await servers[0].registration()
    servers[0].answers.clear()
    setup.group.on_leadership(Leadership(0, None, is_leader=False, ready=False))
    await servers[0].seen(lambda request: request.code == RequestCode.QUERY_DATA_VERSION)
    setup.group.on_leadership(Leadership(4, NODE_ID, is_leader=True, ready=True))
    servers[0].answers.set()
    await servers[0].registration(brokerId="0")
    await setup.registrar.stop()


async def test_a_new_leader_does_not_wait_while_changes_of_topics_are_collected(servers: list[FakeNameServer]) -> None:
    setup = Setup(servers)
    while setup.registrar.registered < len(servers):  # noqa: ASYNC110 -- there is no event for an answer that came
        await asyncio.sleep(0)
    setup.registrar._links[0]._pause_s = 3_600.0
    for listener in setup.memory.machine.on_topics_changed:
        listener()
    for _ in range(5):
        await asyncio.sleep(0)  # the link begins its pause
    setup.group.on_leadership(Leadership(4, NODE_ID, is_leader=True, ready=True))
    await servers[0].registration(brokerId="0")
    await setup.registrar.stop()


async def test_the_last_of_a_new_leaders_first_topics_is_not_collected(servers: list[FakeNameServer]) -> None:
    setup = Setup(servers)
    setup.memory.node.lead()
    for server in servers:
        await server.registration(brokerId="0")
    while setup.registrar.registered < len(servers):  # noqa: ASYNC110 -- there is no event for an answer that came
        await asyncio.sleep(0)
    for link in setup.registrar._links:
        link._pause_s = 3_600.0
    for topic in system_topics(setup.config):
        setup.memory.machine.proposals.ensure_topic(topic, lambda _: None)
    setup.memory.env.run_ready()
    await until_introduced(setup.registrar)
    await setup.registrar.stop()


async def test_signs_of_life_are_small_unless_the_name_server_forgot(servers: list[FakeNameServer]) -> None:
    setup = Setup(servers, register_period_ms=100)
    await servers[0].registration()
    for _ in range(2):
        await servers[0].seen(lambda request: request.code == RequestCode.QUERY_DATA_VERSION)
    assert not [request for request in servers[0].requests if request.code == RequestCode.REGISTER_BROKER]
    servers[0].forgotten = True
    await servers[0].registration()
    await setup.registrar.stop()


async def test_a_name_server_that_restarts_or_refuses_is_registered_with_again(servers: list[FakeNameServer]) -> None:
    setup = Setup(servers)
    await servers[0].registration()
    await servers[0].stop()
    servers[0].refuses = True
    await servers[0].start()
    await servers[0].registration()
    servers[0].refuses = False
    await servers[0].registration()
    assert (await servers[1].registration()).ext["brokerId"] == "3"
    await setup.registrar.stop()


async def test_leaving_unregisters_everywhere_and_stays_away(servers: list[FakeNameServer]) -> None:
    setup = Setup(servers)
    for server in servers:
        await server.registration()
    await setup.registrar.leave()
    for server in servers:
        request = await server.seen(lambda request: request.code == RequestCode.UNREGISTER_BROKER)
        assert (request.ext["brokerId"], request.ext["brokerAddr"]) == ("3", "127.0.0.1:10911")
        assert request.ext["stateVersion"] == str(setup.group.term)
    setup.group.on_leadership(Leadership(4, NODE_ID, is_leader=True, ready=True))
    assert setup.registrar.registered == 0
    await setup.registrar.stop()


async def test_leaving_in_the_very_moment_of_a_handover_still_ends(servers: list[FakeNameServer]) -> None:
    setup = Setup(servers)
    for server in servers:
        await server.registration()
    while setup.registrar.registered < len(servers):  # noqa: ASYNC110 -- there is no event for an answer that came
        await asyncio.sleep(0)
    for _ in range(5):
        await asyncio.sleep(0)  # the links begin to wait for a change
    setup.group.on_leadership(Leadership(4, None, is_leader=False, ready=False))
    await asyncio.sleep(0)  # their waits are over, the links do not know it yet
    async with asyncio.timeout(10):
        await setup.registrar.leave()


async def test_an_error_that_nobody_expected_does_not_end_the_registration(
    servers: list[FakeNameServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup(servers[:1])
    build = setup.registrar.registration

    def fail_once(identity: object) -> RemotingCommand:
        monkeypatch.undo()
        raise KeyError("nobody expected that")

    monkeypatch.setattr(setup.registrar, "registration", fail_once)
    await servers[0].registration()
    assert setup.registrar.restarts == 1
    assert setup.registrar.registration == build
    await setup.registrar.stop()


async def test_an_answer_that_nobody_expected_ends_the_connection_and_not_the_registration(
    servers: list[FakeNameServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail_once(frame: bytes) -> RemotingCommand:
        monkeypatch.undo()
        raise KeyError("nobody expected that")

    monkeypatch.setattr(registration, "REQUEST_TIMEOUT_S", 3_600.0)
    monkeypatch.setattr(name_server, "decode_command", fail_once)
    setup = Setup(servers[:1])
    for _ in range(2):
        await servers[0].registration()
    assert setup.registrar.restarts == 1
    await setup.registrar.stop()


async def until_told(setup: Setup) -> None:
    async with asyncio.timeout(10):
        while setup.registrar.told_version() < setup.memory.machine.state.topic_table.version:  # noqa: ASYNC110 -- as above
            await asyncio.sleep(0)


async def leading(servers: list[FakeNameServer]) -> Setup:
    """A leader whom all name servers know."""
    setup = Setup(servers)
    setup.memory.node.lead()
    for server in servers:
        await server.registration(brokerId="0")
    await until_told(setup)
    return setup


async def test_a_name_server_that_takes_changes_is_told_those_and_another_one_everything(
    servers: list[FakeNameServer],
) -> None:
    servers[0].accepts_changes = True
    setup = await leading(servers)
    before = setup.memory.machine.state.topic_table.version
    setup.memory.create_topic("T1")
    setup.registrar.hurry()
    changes = await servers[0].changes()
    assert list(changes.topic_config_table) == ["T1"]
    assert (changes.base.counter, changes.data_version.counter) == (before, before + 1)
    assert changes.base.state_version == setup.group.term
    table = decode_registration((await servers[1].registration()).body).topic_config_serialize_wrapper
    assert "T1" in table.topic_config_table
    await until_told(setup)
    setup.memory.machine.proposals.delete_topic("T1", lambda _: None)
    setup.memory.env.run_ready()
    setup.registrar.hurry()
    changes = await servers[0].changes()
    assert (changes.topic_config_table, changes.deleted) == ({}, ["T1"])
    await setup.registrar.stop()


async def test_who_refuses_changes_is_told_everything_in_the_same_moment(servers: list[FakeNameServer]) -> None:
    servers[0].accepts_changes = True
    setup = await leading(servers[:1])
    servers[0].refuses_changes = True
    setup.memory.create_topic("T1")
    setup.registrar.hurry()
    await servers[0].changes()
    table = decode_registration((await servers[0].registration()).body).topic_config_serialize_wrapper
    assert "T1" in table.topic_config_table
    await until_told(setup)
    await setup.registrar.stop()


@pytest.mark.parametrize("bound", ["MAX_CHANGES", "MAX_REMEMBERED"])
async def test_too_many_changes_are_told_with_everything(
    servers: list[FakeNameServer], monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    servers[0].accepts_changes = True
    setup = await leading(servers[:1])
    monkeypatch.setattr(registration if bound == "MAX_CHANGES" else topic_changes, bound, 2)
    for number in range(3):
        setup.memory.create_topic(f"T{number}")
    request = await servers[0].seen(lambda request: request.code != RequestCode.QUERY_DATA_VERSION)
    assert request.code == RequestCode.REGISTER_BROKER
    await setup.registrar.stop()


async def test_a_new_term_or_another_role_is_told_with_everything(servers: list[FakeNameServer]) -> None:
    servers[0].accepts_changes = True
    setup = await leading(servers[:1])
    term = setup.group.term
    setup.group.on_leadership(Leadership(term + 1, None, is_leader=False, ready=False))
    await servers[0].registration(brokerId="3")
    setup.group.on_leadership(Leadership(term + 2, NODE_ID, is_leader=True, ready=True))
    await servers[0].registration(brokerId="0")
    await setup.registrar.stop()


async def test_a_name_server_that_forgot_is_told_everything(servers: list[FakeNameServer]) -> None:
    servers[0].accepts_changes = True
    setup = Setup(servers[:1], register_period_ms=100)
    setup.memory.node.lead()
    await servers[0].registration(brokerId="0")
    servers[0].forgotten = True
    await servers[0].registration(brokerId="0")
    await setup.registrar.stop()


async def test_what_is_told_counts_those_name_servers_that_can_be_reached(servers: list[FakeNameServer]) -> None:
    for server in servers:
        server.accepts_changes = True
    setup = await leading(servers)
    servers[1].answers.clear()
    version = setup.memory.machine.state.topic_table.version
    setup.memory.create_topic("T1")
    setup.registrar.hurry()
    await servers[0].changes()
    await servers[1].changes()
    for _ in range(100):
        await asyncio.sleep(0)
    assert setup.registrar.told_version() == version
    assert setup.registrar.untold(version) == []
    assert setup.registrar.untold(version + 1) == [f"127.0.0.1:{servers[1].port}"]
    told: list[float] = []
    setup.registrar.on_told = lambda: told.append(setup.registrar.told_version())
    await servers[1].stop()
    servers[1].answers.set()
    async with asyncio.timeout(10):
        while version + 1 not in told:  # noqa: ASYNC110 -- as above
            await asyncio.sleep(0)
    assert setup.registrar.untold(version + 1) == []
    setup.group.on_leadership(Leadership(setup.group.term + 1, None, is_leader=False, ready=False))
    assert setup.registrar.told_version() == float("inf")
    assert setup.registrar.untold(version + 1) == []
    assert setup.registrar.untold(version + 2) == [f"127.0.0.1:{servers[0].port}"]
    await setup.registrar.stop()


async def test_a_node_tells_of_its_alias_whatever_it_knows_of_topics(servers: list[FakeNameServer]) -> None:
    setup = Setup(servers)
    server = servers[0]
    server.accepts_changes = True
    first = await server.registration(aliasAddr="127.0.0.1:10914", aliasNumber="2", nodeId=NODE_ID)
    assert decode_registration(first.body).topic_config_serialize_wrapper.topic_config_table == {}
    assert "memberIds" not in first.ext
    setup.memory.node.lead()
    request = await server.registration(brokerId="0", aliasNumber="2")
    assert request.ext["memberIds"] == ",".join(
        member.node_id for member in setup.memory.machine.log.membership.members
    )
    for attributes in ({WRITE_ALIASES_ATTRIBUTE: "true"}, {}):
        while setup.registrar.registered < len(servers):  # noqa: ASYNC110 -- there is no event for an answer that came
            await asyncio.sleep(0)
        setup.memory.machine.proposals.put_topic(TopicConfig("T1", 4, 4, attributes=attributes), lambda _: None)
        setup.memory.env.run_ready()
        assert (await server.changes()).topic_config_table["T1"].attributes == attributes
    await setup.registrar.stop()


async def test_name_servers_are_told_which_topics_have_aliases_by_configuration(
    servers: list[FakeNameServer],
) -> None:
    setup = Setup(servers, write_aliases=True)
    server = servers[0]
    server.accepts_changes = True
    setup.memory.node.lead()
    await server.registration(brokerId="0")
    while setup.registrar.registered < len(servers):  # noqa: ASYNC110 -- there is no event for an answer that came
        await asyncio.sleep(0)
    table: dict[str, TopicConfig] = {}
    setup.memory.create_topic("T1", 1)
    setup.memory.create_topic("T2")
    while "T2" not in table:
        table |= (await server.changes()).topic_config_table
    setup.memory.create_topic("T3")
    while "T3" not in table:
        table |= (await server.changes()).topic_config_table
    assert {name: table[name].attributes for name in ("T1", "T2", "T3")} == {
        "T1": {},
        "T2": {WRITE_ALIASES_ATTRIBUTE: "true"},
        "T3": {WRITE_ALIASES_ATTRIBUTE: "true"},
    }
    assert setup.memory.machine.state.topics["T2"].config.attributes == {}
    await setup.registrar.stop()


async def test_a_node_without_an_alias_port_tells_of_none(servers: list[FakeNameServer]) -> None:
    setup = Setup(servers, write_aliases=True, alias_port=0)
    setup.memory.node.lead()
    setup.memory.create_topic("T2")
    request = await servers[0].seen(
        lambda request: (
            request.code == RequestCode.REGISTER_BROKER
            and "T2" in decode_registration(request.body).topic_config_serialize_wrapper.topic_config_table
        )
    )
    assert "aliasAddr" not in request.ext
    await setup.registrar.stop()


async def refused(setup: Setup) -> None:
    async with asyncio.timeout(10):
        while not any(link.is_refused for link in setup.registrar._links):  # noqa: ASYNC110 -- as above
            await asyncio.sleep(0)


async def test_a_refusal_keeps_the_connection_and_what_stands_and_is_tried_again(
    servers: list[FakeNameServer], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A name server removes a node whose connection ends: a topic that it refuses would take the group away."""
    monkeypatch.setattr(registration, "RECONNECT_S", 0.001)
    setup = await leading(servers[:1])
    link, connections = setup.registrar._links[0], servers[0].connections
    told = link.told
    servers[0].refuses_registrations = True
    setup.memory.create_topic("T1")
    await refused(setup)
    servers[0].requests.clear()
    for _ in range(2):
        comparison = await servers[0].seen(lambda request: request.code == RequestCode.QUERY_DATA_VERSION)
        assert told is not None
        assert decode_body(DataVersion, comparison.body) == told[1], "what stands is kept alive"
        await servers[0].registration(brokerId="0")
    assert (link.told, link._announced_id) == (told, 0)
    servers[0].refuses_registrations = False
    await until_told(setup)
    assert servers[0].connections == connections
    said = [record.message for record in caplog.records if "event=registration_refused" in record.message]
    assert said == [f"event=registration_refused namesrv=127.0.0.1:{servers[0].port} error='no'"]
    await setup.registrar.stop()


async def test_a_name_server_that_refuses_is_waited_for_and_named_and_one_that_is_gone_is_not(
    servers: list[FakeNameServer],
) -> None:
    setup = await leading(servers)
    servers[0].refuses_registrations = True
    await servers[1].stop()
    setup.memory.create_topic("T1")
    await refused(setup)
    version = setup.memory.machine.state.topic_table.version
    async with asyncio.timeout(10):
        while not setup.registrar._links[1].is_unreachable:  # noqa: ASYNC110 -- as above
            await asyncio.sleep(0)
    assert setup.registrar.told_version() < version
    assert setup.registrar.untold(version) == [f"127.0.0.1:{servers[0].port}"]
    await setup.registrar.stop()


async def test_a_leader_that_is_refused_from_the_start_is_untold_there_and_ready(servers: list[FakeNameServer]) -> None:
    for server in servers:
        server.refuses_registrations = True
    setup = Setup(servers)
    await until_it_leads(setup)
    assert len(setup.registrar.untold(1)) == len(servers)
    assert setup.registrar.told_version() == -1
    await setup.registrar.stop()


async def test_a_name_server_that_refuses_and_forgets_is_no_longer_thought_to_know(
    servers: list[FakeNameServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registration, "RECONNECT_S", 0.001)
    setup = await leading(servers[:1])
    servers[0].refuses_registrations = True
    setup.memory.create_topic("T1")
    await refused(setup)
    servers[0].forgotten = True
    async with asyncio.timeout(10):
        while setup.registrar._links[0].told is not None:  # noqa: ASYNC110 -- as above
            await asyncio.sleep(0)
    await setup.registrar.stop()
