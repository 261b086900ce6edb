"""The HTTP port of a node."""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import fields
from types import SimpleNamespace

import msgspec
import pytest
from aiohttp import ClientSession, web
from broker_in_process import until
from prometheus_client.parser import text_string_to_metric_families

from dledger.errors import ConfigError, LogError
from dledger.net.proof import prove
from dledger.net.settings import LinkCounters
from dledger.replica.status import LoopLateness, NodeStatus, PeerStatus
from dledger_base import http
from dledger_base.audit_log import AuditLog
from dledger_base.loop_holds import Held, LoopHolds
from dledger_base.metrics_page import MetricsPage
from dledger_base.secret import GroupSecrets
from dledger_broker.features import FEATURES
from dledger_broker.features.offsets.table import OFFSETS
from dledger_broker.frontend.exporter import PER_TURN, NodeCollector
from dledger_broker.frontend.http import BrokerStatus, FeatureStatus, start_http, unready_because
from dledger_broker.kernel.counters import HELP, BrokerCounters
from dledger_broker.kernel.parts import Gauge, LabelledGauge
from dledger_broker.kernel.state import BrokerState
from dledger_remoting.topics import TopicConfig

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


class FakeBroker:
    """Leader with one other node, whose numbers a test sets. `calls` are the changes of the group that were asked."""

    def __init__(self) -> None:
        self.config = SimpleNamespace(host="127.0.0.1", http_port=0)
        self.is_draining = False
        self.is_introduced = True
        self.http_tls = self.metrics_token = None
        self.access_obstacle: str | None = None
        self.audit_log = AuditLog()
        self.state = BrokerState(FEATURES)
        self.now = LEADER
        self.delivered = 0
        self.calls: list[tuple[str, str]] = []
        self.node = SimpleNamespace(
            transfer_leadership=self._lead, remove=lambda node_id: self._change("remove", node_id)
        )
        self.group_secret = GroupSecrets(SECRET)
        self.holds = LoopHolds()
        self.status = lambda: self.now
        self.counters = lambda: {"messages_out": self.delivered, "frames_refused": 4}
        self.trimmed = lambda: {"retention_hours": (40, 8192), "when_full": (0, 0)}
        self.job_failures = lambda: {"retention": 3, "pin_leases": 0}
        self.gauges = lambda: [Gauge("connections", "Open ones", lambda: 2)]
        held = LabelledGauge("quota_held", "Sends", ("kind", "name"), lambda: [(("topic", "a b"), 3)])
        self.labelled_gauges = lambda: [held]

    async def _lead(self, to: str) -> bool:
        """Succeed once."""
        self._change("lead", to)
        return len(self.calls) == 1

    def _change(self, what: str, node_id: str) -> None:
        if node_id == "nobody":
            raise LogError("'nobody' is no member")
        self.calls.append((what, node_id))


class Port:
    """An HTTP port, and a session of a client with it."""

    def __init__(self, runner: web.AppRunner, session: ClientSession) -> None:
        self.session = session
        self.number = runner.addresses[0][1]
        (self.site,) = runner.sites

    async def get(self, path: str, method: str = "GET", authorization: str = "") -> tuple[int, str]:
        headers = {"Authorization": authorization} if authorization else {}
        async with self.session.request(method, path, headers=headers) as answer:
            return answer.status, await answer.text()

    async def challenge(self, path: str, method: str) -> str:
        """Return what a client has to sign for this request."""
        async with self.session.request(method, path) as answer:
            assert "proof of the group's secret" in await answer.text()
            assert answer.status == 401
            return answer.headers["WWW-Authenticate"]

    async def speak(self, data: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection, and send these bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.number)
        writer.write(data)
        return reader, writer

    async def code_of(self, data: bytes) -> int:
        """Return the code of the answer to these bytes."""
        reader, writer = await self.speak(data)
        code = int((await reader.readline()).split()[1])
        writer.close()
        return code


@asynccontextmanager
async def serving(starting: Awaitable[web.AppRunner] | FakeBroker) -> AsyncIterator[Port]:
    """Serve a broker's HTTP port, or another one, while the block runs, which may take 30 s."""
    runner = await (start_http(starting) if isinstance(starting, FakeBroker) else starting)
    try:
        async with asyncio.timeout(30), ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as session:
            yield Port(runner, session)
    finally:
        await runner.cleanup()


@pytest.fixture
async def served(monkeypatch):
    monkeypatch.setattr("dledger_base.metrics_page.SHORTEST_S", 0.0)
    monkeypatch.setattr("dledger_base.metrics_page.REST", 0.0)
    broker = FakeBroker()
    async with serving(broker) as port:
        yield broker, port.get


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


async def test_the_status_page_has_the_node_status_as_json(served):
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


async def test_a_node_that_refuses_writes_is_healthy_and_not_ready(served):
    broker, get = served
    full = "the disk of broker-a-n0 is full: make room there"
    for status, ready, refuses in (
        *((changed(role=role, refusal=full), (503, full), 1) for role in ("leader", "follower")),
        (LEADER, (200, "ready"), 0),
    ):
        broker.now = status
        assert await get("/healthz") == (200, "ok")
        assert await get("/readyz") == ready
        assert samples((await get("/metrics"))[1])["dledger_refuses_writes", ()] == refuses


@pytest.mark.parametrize(
    ("state", "words"), [({"is_draining": True}, "draining"), ({"is_introduced": False}, "do not list it")]
)
async def test_a_draining_or_unlisted_node_is_healthy_and_not_ready(served, state, words):
    broker, get = served
    assert await get("/readyz") == (200, "ready")
    vars(broker).update(state)
    code, text = await get("/readyz")
    assert code == 503
    assert words in text
    assert (await get("/healthz"))[0] == 200


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (changed(ready=False), "first entry is not committed"),
        (changed(role="candidate", leader_id=None, ready=False), "no leader is known"),
        (changed(role="follower", leader_id="broker-a-n1", ready=False), None),
    ],
)
def test_a_node_is_unready_without_a_leader_or_before_its_first_committed_entry(status, words):
    obstacle = unready_because(status, is_draining=False, is_introduced=True)
    assert obstacle is None if words is None else words in obstacle


def test_every_counter_has_a_help_text():
    counters = {*BrokerCounters().as_dict(), *(f"peer_{field.name}" for field in fields(LinkCounters))}
    assert counters <= HELP.keys()
    assert {"connections", "clients", "key_index_lag_bytes"} <= HELP.keys() - counters


async def test_metrics_show_the_log_and_the_counters(served):
    _, get = served
    code, text = await get("/metrics")
    assert code == 200
    expected = {
        ("dledger_raft_term", ()): 7,
        ("dledger_raft_role", ("leader",)): 1,
        ("dledger_raft_role", ("follower",)): 0,
        ("dledger_raft_apply_lag", ()): 2,
        ("dledger_raft_peer_lag_entries", ("broker-a-n1",)): 11,
        ("dledger_raft_peer_clock_ahead_seconds", ("broker-a-n1",)): -1.5,
        ("dledger_raft_elections_total", ()): 3,
        ("dledger_log_sync_seconds_sum", ()): 0.5,
        ("dledger_loop_late_seconds_bucket", ("0.005",)): 7,
        ("dledger_loop_late_seconds_bucket", ("0.5",)): 8,
        ("dledger_loop_late_seconds_count", ()): 9,
        ("dledger_loop_late_seconds_sum", ()): 6.5,
        ("dledger_loop_held_seconds_count", ("apply",)): 4,
        ("dledger_loop_held_seconds_sum", ("apply",)): 0.25,
        ("dledger_loop_held_longest_seconds", ("apply",)): 0.125,
        ("dledger_broker_frames_refused_total", ()): 4,
        ("dledger_broker_connections", ()): 2,
        ("dledger_broker_job_failures_total", ("retention",)): 3,
        ("dledger_broker_job_failures_total", ("pin_leases",)): 0,
        ("dledger_trimmed_messages_total", ("retention_hours",)): 40,
        ("dledger_trimmed_bytes_total", ("retention_hours",)): 8192,
        ("dledger_trimmed_messages_total", ("when_full",)): 0,
    }
    assert samples(text).items() >= expected.items()


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


def test_a_scrape_of_metrics_does_not_depend_on_earlier_scrapes():
    """Two scrapers do not change each other's figures, and a scraper that misses a scrape loses nothing."""
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


async def test_a_taken_port_is_named_with_its_key():
    other = FakeBroker()
    async with serving(FakeBroker()) as port:
        other.config.http_port = port.number
        with pytest.raises(ConfigError, match=r"http_port \d+: 127.0.0.1:\d+ is in use"):
            await start_http(other)


async def test_silent_http_connections_are_limited_and_keep_no_probe_out(monkeypatch):
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(http, "CONNECTION_TIMEOUT_S", 0.5)
    async with serving(FakeBroker()) as port:
        silent = [await port.speak() for _ in range(3)]
        assert await has_ended(silent[0][0])
        async with port.session.get("/healthz") as answer:
            assert (await answer.text(), answer.headers["Connection"]) == ("ok", "close")
        assert await has_ended(silent[1][0])
        assert await has_ended(silent[2][0])
        for _, writer in silent:
            writer.close()


async def test_requests_that_are_being_handled_keep_their_places(monkeypatch):
    monkeypatch.setattr(http, "MAX_CONNECTIONS", 2)
    begun, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def wait(_: web.Request) -> web.Response:
        begun.release()
        await go_on.wait()
        return web.Response(text="done")

    async with serving(http.serve_http("127.0.0.1", 0, [web.get("/wait", wait)])) as port:
        waiting = [asyncio.create_task(port.get("/wait")) for _ in range(2)]
        for _ in waiting:
            await begun.acquire()
        reader, writer = await port.speak()
        assert await has_ended(reader)
        assert begun.locked(), "nobody had to ask again"
        go_on.set()
        assert await asyncio.gather(*waiting) == [(200, "done")] * 2
        writer.close()


ENDLESS = {
    "a path": (b"GET /", b"x" * 1000),
    "a header": (b"GET /status HTTP/1.1\r\n", b"A: " + b"x" * 1000 + b"\r\n"),
    "a body": (b"PUT /leader/n1 HTTP/1.1\r\nHost: n\r\nContent-Length: 999999999\r\n\r\n", b"x" * 1000),
    "chunks": (b"PUT /leader/n1 HTTP/1.1\r\nHost: n\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n" * 100),
    "requests": (b"", b"GET /status HTTP/1.1\r\nHost: n\r\n\r\n" * 10),
}


@pytest.mark.parametrize(("begin", "go_on"), ENDLESS.values(), ids=ENDLESS)
async def test_an_endless_http_request_is_closed(begin, go_on):
    async with serving(FakeBroker()) as port, asyncio.timeout(5):  # aiohttp by itself goes on for 10 s
        reader, writer = await port.speak(begin)
        ended = asyncio.create_task(has_ended(reader))
        while not ended.done():
            writer.write(go_on)
            await asyncio.sleep(0)
        writer.close()


async def has_ended(reader: asyncio.StreamReader) -> bool:
    """Wait until the server closes the connection, whatever it says before."""
    try:
        while await reader.read(1 << 16):
            pass
    except ConnectionError:
        pass
    return True


async def test_invalid_http_requests_are_logged_in_one_line(caplog):
    async with serving(FakeBroker()) as port:
        assert await port.code_of(b"GET /status HTTP/1.1\r\nA: " + b"x" * 20_000 + b"\r\n\r\n") == 400
        for _ in range(20):
            assert await port.code_of(b"no HTTP\r\n\r\n") == 400
    (record,) = [record for record in caplog.records if record.name == "aiohttp.server"]
    assert record.levelname == "WARNING"
    assert record.exc_info is None
    assert "more than 8190 bytes" in record.getMessage()


async def test_leadership_is_handed_over_and_members_are_removed_on_demand():
    broker = FakeBroker()
    async with serving(broker) as port:

        async def ask(method: str, path: str) -> tuple[int, str]:
            return await port.get(path, method, prove(SECRET, method, path, await port.challenge(path, method)))

        assert await ask("PUT", "/leader/broker-a-n1") == (200, "broker-a-n1 leads")
        assert await ask("PUT", "/leader/broker-a-n1") == (504, "broker-a-n1 did not take over")
        assert await ask("DELETE", "/members/broker-a-n1") == (200, "broker-a-n1 is being removed")
        assert broker.calls == [("lead", "broker-a-n1")] * 2 + [("remove", "broker-a-n1")]
        assert await ask("PUT", "/leader/nobody") == (409, "'nobody' is no member")
        assert await ask("DELETE", "/members/nobody") == (409, "'nobody' is no member")
        assert (await port.get("/members/broker-a-n1"))[0] == 405


CHANGES = [("PUT", "/leader/broker-a-n1"), ("DELETE", "/members/broker-a-n1")]


@pytest.mark.parametrize(("method", "path"), CHANGES)
async def test_changes_of_the_group_need_proof_of_the_group_secret_which_cannot_be_sent_again(method, path):
    broker = FakeBroker()
    async with serving(broker) as port:
        challenge = await port.challenge(path, method)
        assert broker.calls == []
        proof = prove(SECRET, method, path, challenge)
        codes = [(await port.get(path, method, proof))[0] for _ in range(2)]
        codes.append((await port.get(path, method, prove(b"t" * 32, method, path, challenge)))[0])
    assert codes == [200, 401, 401]
    assert len(broker.calls) == 1


@pytest.mark.parametrize(("method", "path"), CHANGES)
async def test_a_node_without_a_secret_refuses_changes_with_instructions(method, path):
    broker = FakeBroker()
    broker.group_secret = None
    async with serving(broker) as port:
        code, text = await port.get(path, method)
    assert code == 403
    assert "set secret_file" in text
    assert broker.calls == []


async def test_metrics_are_computed_once_for_concurrent_scrapes_and_in_several_turns(monkeypatch):
    monkeypatch.setattr("dledger_base.metrics_page.SHORTEST_S", 3600.0)
    broker, count = FakeBroker(), 4 * PER_TURN
    for number in range(count):
        broker.state.topic_table.put(TopicConfig(topic_name=f"t{number}"), number)
    async with serving(broker) as port:
        pages = await asyncio.gather(*(port.get("/metrics") for _ in range(21)))
        broker.now = changed(term=8)
        assert {*pages, await port.get("/metrics")} == {pages[0]}
    found = samples(pages[0][1])
    assert sum(name == "rocketmq_producer_offset" for name, _ in found) == count
    assert broker.holds.part("scrape").times >= 4


async def test_clients_that_do_not_read_the_metrics_hold_little(monkeypatch):
    page = b"x" * (8 << 20)

    async def large(_: MetricsPage) -> bytes:
        return page

    monkeypatch.setattr(MetricsPage, "_page", large)
    async with serving(FakeBroker()) as port:
        silent = [await port.speak(b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n") for _ in range(20)]
        for reader, _ in silent:
            assert (await reader.readline()).split()[1] == b"200"
        unread = [connection._transport.get_write_buffer_size() for connection in port.site._open_connections]
        assert len(unread) == 20
        assert max(unread) < 512 << 10
        assert await port.get("/metrics") == (200, page.decode())
        for _, writer in silent:
            writer.close()


async def test_metrics_may_ask_for_a_token():
    broker = FakeBroker()
    broker.metrics_token = "hush"
    async with serving(broker) as port:
        for token, code in (("", 401), ("Bearer hush", 200), ("Bearer other", 401)):
            assert (await port.get("/metrics", authorization=token))[0] == code
        no_text = b"GET /metrics HTTP/1.1\r\nHost: n\r\nAuthorization: Bearer \xff\r\n\r\n"
        assert await port.code_of(no_text) == 401


async def test_scrapers_that_leave_before_the_answer_are_no_lines_in_the_log(caplog):
    """A traceback for each would displace all other lines of the log within seconds."""
    gone = asyncio.Event()

    def steps():
        while not gone.is_set():
            yield None

    page = MetricsPage(steps, nullcontext)
    async with serving(http.serve_http("127.0.0.1", 0, [web.get("/metrics", page.handle)])) as port:
        for _ in range(5):
            _, writer = await port.speak(b"GET /metrics HTTP/1.1\r\nHost: n\r\n\r\n")
            await until(lambda: port.site._open_connections and not port.site._idle)
            writer.transport.abort()
            await until(lambda: not port.site._open_connections)
        gone.set()
        await page._page()
        for _ in range(10):  # turns in which the handlers write
            await asyncio.sleep(0)
    assert [record.getMessage() for record in caplog.records if record.name == "aiohttp.server"] == []


async def test_a_fault_of_a_handler_is_a_traceback_once_a_minute_for_each_host(caplog):
    async def fail(_: web.Request) -> web.Response:
        raise KeyError("a fault")

    async with serving(http.serve_http("127.0.0.1", 0, [web.get("/fail", fail)])) as port:
        for _ in range(5):
            assert (await port.get("/fail"))[0] == 500
    (record,) = [record for record in caplog.records if record.name == "aiohttp.server"]
    assert record.exc_info is not None
    assert record.getMessage() == "Error handling request from 127.0.0.1 untold=0"
