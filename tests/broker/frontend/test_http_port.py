"""The HTTP port of a node."""

import asyncio
from dataclasses import fields

import msgspec
import pytest
from aiohttp import ClientSession, web
from prometheus_client.parser import text_string_to_metric_families

from dledger.errors import ConfigError, LogError
from dledger.loop_holds import Held, LoopHolds
from dledger.net.proof import prove
from dledger.net.settings import LinkCounters
from dledger.replica.status import LoopLateness, NodeStatus, PeerStatus
from dledger_broker.features import FEATURES
from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.frontend.exporter import NodeCollector
from dledger_broker.frontend.http import start_http, unready_because
from dledger_broker.kernel.counters import HELP, BrokerCounters
from dledger_broker.kernel.node_status import BrokerStatus, FeatureStatus
from dledger_broker.kernel.parts import Gauge, LabelledGauge
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.topics import TopicConfig
from dledger_serving import http

LEADER = NodeStatus(
    node_id="broker-a-n0",
    incarnation="i",
    cluster="c",
    group="broker-a",
    role="leader",
    term=7,
    leader_id="broker-a-n0",
    ready=True,
    voter=True,
    first_index=0,
    last_index=41,
    commit_index=40,
    applied_index=38,
    first_position=0,
    last_position=9000,
    durable_position=8000,
    applied_position=7000,
    disk_used=12,
    syncs=10,
    sync_seconds=0.5,
    elections=3,
    voters=["broker-a-n0", "broker-a-n1"],
    learners=[],
    loop_late=LoopLateness([5, 7, 7, 7, 8, 8, 8, 9], 6.5),
    loop_held=[Held("apply", 4, 0.25, 0.125)],
    peers=[PeerStatus("broker-a-n1", True, 30, 11, 250, "replicate", 15, -1500)],
)


SECRET = b"s" * 32


class Config:
    host = "127.0.0.1"
    http_port = 0


class FakeMember:
    """A leader of one other node."""

    def __init__(self) -> None:
        self.calls = []

    async def transfer_leadership(self, to=None):
        self._check(to)
        self.calls.append(("lead", to))
        return len(self.calls) == 1

    def remove(self, node_id):
        self._check(node_id)
        self.calls.append(("remove", node_id))

    def _check(self, node_id):
        if node_id == "nobody":
            raise LogError("'nobody' is no member")


class FakeBroker:
    """A broker whose numbers are set by hand."""

    def __init__(self, status: NodeStatus = LEADER) -> None:
        self.config = Config()
        self.is_draining = False
        self.is_introduced = True
        self.http_tls = None
        self.access_obstacle: str | None = None
        self.state = BrokerState(FEATURES)
        self.now = status
        self.delivered = 0
        self.node = FakeMember()
        self.group_secret = SECRET
        self.holds = LoopHolds()

    def status(self) -> NodeStatus:
        return self.now

    def counters(self) -> dict[str, int]:
        return {"messages_out": self.delivered, "frames_refused": 4}

    def job_failures(self) -> dict[str, int]:
        return {"retention": 3, "pin_leases": 0}

    def gauges(self) -> list[Gauge]:
        return [Gauge("connections", "Open ones", lambda: 2)]

    def labelled_gauges(self) -> list[LabelledGauge]:
        return [LabelledGauge("quota_held", "Sends", ("kind", "name"), lambda: [(("topic", "a b"), 3)])]


@pytest.fixture
async def served():
    broker = FakeBroker()
    runner = await start_http(broker)
    port = runner.addresses[0][1]
    async with ClientSession(f"http://127.0.0.1:{port}") as session:

        async def get(path: str, method: str = "GET") -> tuple[int, str]:
            async with session.request(method, path) as answer:
                return answer.status, await answer.text()

        yield broker, get
    await runner.cleanup()


@pytest.fixture
async def proving():
    """Requests by somebody who knows the group's secret."""
    broker = FakeBroker()
    runner = await start_http(broker)
    async with ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:

        async def ask(path: str, method: str = "GET") -> tuple[int, str]:
            async with session.request(method, path) as answer:
                if answer.status != 401:
                    return answer.status, await answer.text()
                proof = prove(SECRET, method, path, answer.headers["WWW-Authenticate"])
            async with session.request(method, path, headers={"Authorization": proof}) as answer:
                return answer.status, await answer.text()

        yield broker, ask
    await runner.cleanup()


def changed(**fields) -> NodeStatus:
    return msgspec.structs.replace(LEADER, **fields)


def samples(text: str) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return sample values by name and values of labels (in their names' order) other than the node's."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            own = sorted(key for key in sample.labels if key not in {"cluster", "broker", "node"})
            found[sample.name, tuple(sample.labels[key] for key in own)] = sample.value
    return found


async def test_status_is_the_nodes_own_as_json(served):
    _, get = served
    code, text = await get("/status")
    assert code == 200
    assert msgspec.json.decode(text, type=NodeStatus) == LEADER
    assert FeatureStatus("locks", None) in msgspec.json.decode(text, type=BrokerStatus).features


async def test_a_failed_node_is_unhealthy_and_says_why(served):
    broker, get = served
    assert await get("/healthz") == (200, "ok")
    broker.now = changed(failure="commitlog: input/output error")
    assert await get("/healthz") == (503, "commitlog: input/output error")
    assert (await get("/readyz"))[0] == 503


async def test_a_node_that_takes_no_messages_lives_and_is_not_ready(served):
    broker, get = served
    for role in ("leader", "follower"):
        broker.now = changed(role=role, refusal="the disk of broker-a-n0 is full: make room there")
        assert await get("/healthz") == (200, "ok")
        assert await get("/readyz") == (503, "the disk of broker-a-n0 is full: make room there")
        assert samples((await get("/metrics"))[1])["dledger_refuses_writes", ()] == 1
    broker.now = LEADER
    assert await get("/readyz") == (200, "ready")
    assert samples((await get("/metrics"))[1])["dledger_refuses_writes", ()] == 0


async def test_a_draining_node_is_healthy_and_not_ready(served):
    broker, get = served
    assert await get("/readyz") == (200, "ready")
    broker.is_draining = True
    assert (await get("/readyz"))[0] == 503
    assert (await get("/healthz"))[0] == 200


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (changed(ready=False), "first entry is not committed"),
        (changed(role="candidate", leader_id=None, ready=False), "no leader is known"),
        (changed(role="follower", leader_id="broker-a-n1", ready=False), None),
    ],
)
def test_a_node_is_ready_when_clients_get_answers_through_it(status, words):
    obstacle = unready_because(status, is_draining=False, is_introduced=True)
    assert obstacle is None if words is None else words in obstacle


async def test_a_leader_is_ready_once_clients_find_it_and_its_topics(served):
    broker, get = served
    broker.is_introduced = False
    code, text = await get("/readyz")
    assert code == 503
    assert "do not list it" in text
    broker.is_introduced = True
    assert await get("/readyz") == (200, "ready")


def test_every_number_of_a_node_is_explained():
    counters = {*BrokerCounters().as_dict(), *(f"peer_{field.name}" for field in fields(LinkCounters))}
    assert counters <= HELP.keys()
    assert {"connections", "clients", "key_index_lag_bytes"} <= HELP.keys() - counters


async def test_metrics_show_the_log_and_the_counters(served):
    _, get = served
    code, text = await get("/metrics")
    found = samples(text)
    assert code == 200
    assert found["dledger_raft_term", ()] == 7
    assert found["dledger_raft_role", ("leader",)] == 1
    assert found["dledger_raft_role", ("follower",)] == 0
    assert found["dledger_raft_apply_lag", ()] == 2
    assert found["dledger_raft_peer_lag_entries", ("broker-a-n1",)] == 11
    assert found["dledger_raft_peer_clock_ahead_seconds", ("broker-a-n1",)] == -1.5
    assert found["dledger_raft_elections_total", ()] == 3
    assert found["dledger_log_sync_seconds_sum", ()] == 0.5
    assert found["dledger_loop_late_seconds_bucket", ("0.005",)] == 7
    assert found["dledger_loop_late_seconds_bucket", ("0.5",)] == 8
    assert found["dledger_loop_late_seconds_count", ()] == 9
    assert found["dledger_loop_late_seconds_sum", ()] == 6.5
    assert found["dledger_loop_held_seconds_count", ("apply",)] == 4
    assert found["dledger_loop_held_seconds_sum", ("apply",)] == 0.25
    assert found["dledger_loop_held_longest_seconds", ("apply",)] == 0.125
    assert found["dledger_broker_frames_refused_total", ()] == 4
    assert found["dledger_broker_connections", ()] == 2
    assert found["dledger_broker_job_failures_total", ("retention",)] == 3
    assert found["dledger_broker_job_failures_total", ("pin_leases",)] == 0


async def test_topics_and_groups_have_the_names_of_rocketmqs_exporter_on_the_leader_only(served):
    broker, get = served
    topic = broker.state.topic_table.put(TopicConfig(topic_name="orders"), 0)
    topic.queue(0).next_offset, topic.queue(1).next_offset = 5, 7
    broker.state.table(OFFSETS).commit("billing", "orders", 0, 4)
    broker.state.table(OFFSETS).commit("billing", "orders", 1, 1)
    found = samples((await get("/metrics"))[1])
    assert found["rocketmq_producer_offset", ("orders",)] == 12
    assert found["rocketmq_consumer_offset", ("billing", "orders")] == 5
    assert found["rocketmq_message_accumulation", ("billing", "orders")] == 7
    broker.now = changed(role="follower", ready=False)
    assert not any(name.startswith("rocketmq_") for name, _ in samples((await get("/metrics"))[1]))


def test_what_is_shown_does_not_depend_on_who_asked_before_and_when():
    """Two scrapers must not change each other's figures, and one that misses a scrape loses nothing."""
    broker = FakeBroker()
    topic = broker.state.topic_table.put(TopicConfig(topic_name="orders"), 0)
    asked_before = NodeCollector(broker)

    def shown(collector: NodeCollector) -> dict[str, float]:
        return {sample.name: sample.value for family in collector.collect() for sample in family.samples}

    assert shown(asked_before)["dledger_broker_messages_out_total"] == 0
    broker.delivered, topic.queue(0).next_offset = 500, 40
    first, second = shown(asked_before), shown(NodeCollector(broker))
    assert first == second
    assert (first["dledger_broker_messages_out_total"], first["rocketmq_producer_offset"]) == (500, 40)
    texts = [f"{family.name} {family.documentation}" for family in asked_before.collect()]
    assert not [text for text in texts if "per second" in text or "scrape" in text or "tps" in text or "qps" in text]


async def test_a_taken_port_is_named_with_its_key(served):
    broker, _ = served
    first = await start_http(broker)
    other = FakeBroker()
    other.config.http_port = first.addresses[0][1]
    with pytest.raises(ConfigError, match=r"http_port \d+: 127.0.0.1:\d+ is in use"):
        await start_http(other)
    await first.cleanup()


async def test_connections_that_say_nothing_are_bounded_in_number_and_time_and_keep_no_probe_out(monkeypatch):
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(http, "CONNECTION_TIMEOUT_S", 0.5)
    runner = await start_http(FakeBroker())
    port = runner.addresses[0][1]
    async with asyncio.timeout(30):
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        assert await has_ended(silent[0][0])
        async with ClientSession() as session, session.get(f"http://127.0.0.1:{port}/healthz") as answer:
            assert (await answer.text(), answer.headers["Connection"]) == ("ok", "close")
        assert await has_ended(silent[1][0])
        assert await has_ended(silent[2][0])
    for _, writer in silent:
        writer.close()
    await runner.cleanup()


async def test_requests_that_are_being_handled_keep_their_places(monkeypatch):
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 2)
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        begun.release()
        await go_on.wait()
        return web.Response(text="done")

    runner = await http.serve_http("127.0.0.1", 0, [web.get("/wait", wait)])
    port = runner.addresses[0][1]
    async with asyncio.timeout(10), ClientSession(f"http://127.0.0.1:{port}") as session:
        waiting = [asyncio.create_task(session.get("/wait")) for _ in range(2)]
        for _ in waiting:
            await begun.acquire()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await has_ended(reader)
        assert begun.locked(), "nobody had to ask again"
        go_on.set()
        for answer in await asyncio.gather(*waiting):
            assert await answer.text() == "done"
        writer.close()
    await runner.cleanup()


ENDLESS = {
    "a path": (b"GET /", b"x" * 1000),
    "a header": (b"GET /status HTTP/1.1\r\n", b"A: " + b"x" * 1000 + b"\r\n"),
    "a body": (b"PUT /leader/n1 HTTP/1.1\r\nHost: n\r\nContent-Length: 999999999\r\n\r\n", b"x" * 1000),
    "chunks": (b"PUT /leader/n1 HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 100),
    "requests": (b"", b"GET /status HTTP/1.1\r\nHost: n\r\n\r\n" * 10),
}


@pytest.mark.parametrize(("begin", "go_on"), ENDLESS.values(), ids=ENDLESS)
async def test_what_does_not_end_is_closed(begin, go_on):
    runner = await start_http(FakeBroker())
    async with asyncio.timeout(5):  # aiohttp by itself goes on for 10 s
        reader, writer = await asyncio.open_connection("127.0.0.1", runner.addresses[0][1])
        ended = asyncio.create_task(has_ended(reader))
        writer.write(begin)
        while not ended.done():
            writer.write(go_on)
            await asyncio.sleep(0)
        writer.close()
    await runner.cleanup()


async def has_ended(reader: asyncio.StreamReader) -> bool:
    """Wait until the server closes the connection, whatever it says before."""
    try:
        while await reader.read(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


async def test_a_request_that_is_no_http_is_one_line_in_the_log(caplog):
    runner = await start_http(FakeBroker())
    async with asyncio.timeout(30):
        reader, writer = await asyncio.open_connection("127.0.0.1", runner.addresses[0][1])
        writer.write(b"GET /status HTTP/1.1\r\nA: " + b"x" * 20_000 + b"\r\n\r\n")
        assert (await reader.readline()).split()[1] == b"400"
        writer.close()
    await runner.cleanup()
    (record,) = [record for record in caplog.records if record.name == "aiohttp.server"]
    assert record.levelname == "WARNING"
    assert record.exc_info is None
    assert "more than 8190 bytes" in record.getMessage()


async def test_leadership_is_handed_over_and_members_are_removed_on_demand(proving):
    broker, ask = proving
    assert await ask("/leader/broker-a-n1", "PUT") == (200, "broker-a-n1 leads")
    assert await ask("/leader/broker-a-n1", "PUT") == (504, "broker-a-n1 did not take over")
    assert await ask("/members/broker-a-n1", "DELETE") == (200, "broker-a-n1 is being removed")
    assert broker.node.calls == [("lead", "broker-a-n1")] * 2 + [("remove", "broker-a-n1")]
    assert await ask("/leader/nobody", "PUT") == (409, "'nobody' is no member")
    assert await ask("/members/nobody", "DELETE") == (409, "'nobody' is no member")
    assert (await ask("/members/broker-a-n1"))[0] == 405


CHANGES = [("PUT", "/leader/broker-a-n1"), ("DELETE", "/members/broker-a-n1")]


@pytest.mark.parametrize(("method", "path"), CHANGES)
async def test_nobody_changes_the_group_without_proof_of_its_secret(served, method, path):
    broker, get = served
    code, text = await get(path, method)
    assert code == 401
    assert "proof of the group's secret" in text
    assert broker.node.calls == []


@pytest.mark.parametrize(("method", "path"), CHANGES)
async def test_a_request_that_was_overheard_cannot_be_sent_again(method, path):
    broker = FakeBroker()
    runner = await start_http(broker)
    async with ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
        async with session.request(method, path) as answer:
            challenge = answer.headers["WWW-Authenticate"]
        headers = {"Authorization": prove(SECRET, method, path, challenge)}
        answers = []
        for _ in range(2):
            async with session.request(method, path, headers=headers) as answer:
                answers.append(answer.status)
        async with session.request(
            method, path, headers={"Authorization": prove(b"t" * 32, method, path, challenge)}
        ) as answer:
            answers.append(answer.status)
    assert answers == [200, 401, 401]
    assert len(broker.node.calls) == 1
    await runner.cleanup()


@pytest.mark.parametrize(("method", "path"), CHANGES)
async def test_a_node_without_a_secret_refuses_and_says_what_to_do(method, path):
    broker = FakeBroker()
    broker.group_secret = None
    runner = await start_http(broker)
    url = f"http://127.0.0.1:{runner.addresses[0][1]}{path}"
    async with ClientSession() as session, session.request(method, url) as answer:
        assert answer.status == 403
        assert "set secret_file" in await answer.text()
    assert broker.node.calls == []
    await runner.cleanup()
