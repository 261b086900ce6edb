"""A node's report on itself to RocketMQ's tools and to ours (28)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from importlib.metadata import version
from math import ceil
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from served_broker import FakeClient, MakeBroker, ServedBroker, pull_ext, records, send_ext

from dledger.errors import BusyError
from dledger.replica.status import LoopLateness, NodeStatus
from dledger.store.disk import DiskSpace
from dledger.types import EntryKind
from dledger_broker.features.delay.messages import DueMessages
from dledger_broker.features.runtime.description import RuntimeInfo
from dledger_broker.features.runtime.earliest import PIECE_BYTES
from dledger_broker.features.runtime.throughput import PERIOD_S
from dledger_broker.kernel.counters import BOUNDS_MS, PutTimes, quantile_ms, stock_counts
from dledger_remoting.bodies import KVTable, decode_body
from tests.broker.features.delay.test_firing import begin_to_fire
from tests.broker.features.delay.test_recalls import DELAYED
from tests.broker.features.sending.majority import Majority
from tests.broker.features.transactions.test_half_requests import HALF, founded

ROOT: Final = Path(__file__).parents[4]
NOT_TOLD: Final = {"scheduleMessageOffset_3"}
"""Figures that RocketMQ tells and a node does not; docs/compatibility.md says why."""


@pytest.fixture
def broker(broker: ServedBroker) -> ServedBroker:
    """Return a broker that takes samples of what it reports."""
    broker.service.parts[RuntimeInfo].start()
    return broker


def told(client: FakeClient) -> dict[str, str]:
    answer = client.call(28)
    assert answer.code == 0
    return decode_body(KVTable, answer.body).table


def test_runtime_info_has_the_node_status_and_the_keys_of_rocketmqs_tools(broker: ServedBroker) -> None:
    broker.memory.node.disk_used = 120
    broker.advance(86_400 + 3_661)
    table, own = told(broker.client()), broker.group.node_id
    assert msgspec.json.decode(table["dledgerStatus"], type=NodeStatus) == broker.memory.node.status()
    assert msgspec.json.decode(table["dledgerAddresses"]) == {own: broker.group.address_of(own)}
    expected = {
        "brokerVersionDesc": version("dledger-mq"),
        "brokerActive": "true",
        "runtime": "[ 1 days, 1 hours, 1 minutes, 1 seconds ]",
        "dledgerUptimeMs": "90061000",
        "commitLogDiskRatio": "0.12",
        "commitLogMaxOffset": str(broker.memory.machine.applied_position),
        "dledgerDraining": "false",
    }
    assert {name: table[name] for name in expected} == expected


@pytest.mark.parametrize(("http_port", "shown"), [(0, None), (10913, "mq.example:10913")])
def test_runtime_info_has_the_http_address_if_there_is_an_http_port(
    make_broker: MakeBroker, http_port: int, shown: str | None
) -> None:
    broker = make_broker(http_port=http_port, advertised_host="mq.example")
    assert told(broker.client()).get("dledgerHttp") == shown


def test_averages_use_fixed_windows_regardless_of_the_number_of_queries(client: FakeClient) -> None:
    """Averages are of fixed windows, so that two dashboards do not halve each other's figures."""

    def rates() -> list[str]:
        table = told(client)
        return [table[name] for name in ("putTps", "getTransferredTps", "getTransferedTps")]

    for _ in range(20):
        assert client.call(310, send_ext("T1"), b"x").code == 0
    for offset, count in ((0, 20), (10, 10)):
        assert len(records(client.pull("T1", offset=offset))) == count
    client.broker.advance(PERIOD_S)
    assert [rates() for _ in range(2)] == [["2.0 2.0 2.0", "3.0 3.0 3.0", "3.0 3.0 3.0"]] * 2
    client.broker.advance(PERIOD_S)
    assert rates() == ["0.0 1.0 1.0", "0.0 1.5 1.5", "0.0 1.5 1.5"]
    for _ in range(60):
        client.broker.advance(PERIOD_S)
    assert rates() == ["0.0 0.0 0.0"] * 3


def test_daily_totals_are_reported_as_mqadmin_expects(broker: ServedBroker) -> None:
    """clusterList -m shows differences: today is what came since this morning."""
    client, day = broker.client(), 86_400

    def use(*, sends: int, pulls: int) -> None:
        for _ in range(sends):
            sent = client.send_message("T1", b"x")
        for _ in range(pulls):
            assert client.pull("T1", offset=int(sent.ext["queueOffset"])).code == 0

    for sends, pulls in ((3, 1), (2, 4)):
        use(sends=sends, pulls=pulls)
        broker.advance(day)
    use(sends=1, pulls=6)
    table = told(client)
    times = ("YesterdayMorning", "TodayMorning", "TodayNow")
    assert [table[f"msgPutTotal{time}"] for time in times] == ["3", "5", "6"]
    assert [table[f"msgGetTotal{time}"] for time in times] == ["1", "5", "11"]


def test_send_times_of_the_last_minute_are_reported_in_rocketmqs_buckets(broker: ServedBroker) -> None:
    times = broker.counters.put_times
    for seconds, messages in ((0.0004, 90), (0.009, 8), (0.03, 1), (12.0, 1)):
        times.took(seconds, messages)
    for _ in range(6):
        broker.advance(PERIOD_S)
    table = told(broker.client())
    assert table["putMessageDistributeTime"].split() == [
        *("[<=0ms]:90", "[0~10ms]:8", "[10~50ms]:1", "[50~100ms]:0", "[100~200ms]:0", "[200~500ms]:0"),
        *("[500ms~1s]:0", "[1~2s]:0", "[2~3s]:0", "[3~4s]:0", "[4~5s]:0", "[5~10s]:0", "[10s~]:1"),
    ]
    assert (float(table["putLatency99"]), table["putMessageEntireTimeMax"]) == (pytest.approx(30, rel=0.25), "12000")
    broker.advance(PERIOD_S)
    assert told(broker.client())["putMessageDistributeTime"].startswith("[<=0ms]:0 ")


def test_sends_are_counted_with_sizes_and_times_or_as_failed(client: FakeClient) -> None:
    for _ in range(4):
        client.send_message("T1", b"x")
    client.broker.memory.node.stage_error = BusyError("64 MiB wait for a majority")
    assert client.send_message("T1", b"x").code != 0
    client.broker.memory.node.stage_error = None
    assert client.call(310, send_ext("none", defaultTopic="none"), b"x").code == 17
    table = told(client)
    assert (table["putMessageTimesTotal"], sum(client.broker.counters.put_times.counts)) == ("4", 4)
    assert float(table["putMessageAverageSize"]) == int(table["putMessageSizeTotal"]) / 4
    assert table["putMessageFailedTimes"] == "1"


@pytest.mark.parametrize("properties", [{}, {"i": DELAYED}, {"i": HALF, "f": "4"}], ids=["ordinary", "delayed", "half"])
def test_send_times_include_ordinary_delayed_and_transactional_sends(
    make_broker: MakeBroker, monkeypatch: pytest.MonkeyPatch, properties: dict[str, str]
) -> None:
    broker = founded(make_broker())
    client = broker.client()
    assert client.call(310, send_ext("T1", **properties), b"x").code == 0
    majority = Majority(broker, monkeypatch)
    sent = client.send(310, send_ext("T1", **properties), b"x")
    broker.advance(0.5)
    assert not client.has_answer(sent)
    majority.has_it()
    assert client.answered(sent).code == 0
    table, times = told(client), broker.counters.put_times
    assert (table["putMessageTimesTotal"], sum(times.counts)) == ("2", 2)
    assert times.longest_ms == pytest.approx(500, abs=5)


def test_disk_figures_and_the_bytes_to_flush_are_reported_as_by_rocketmq(client: FakeClient) -> None:
    node = client.broker.memory.node
    assert "commitLogDirCapacity" not in told(client)
    node.disk_space = DiskSpace(3 << 29, 10 << 30)
    table = told(client)
    assert table["commitLogDirCapacity"] == "Total : 10.0 GiB, Free : 1.5 GiB."
    assert table["consumeQueueDiskRatio"] == table["commitLogDiskRatio"] == table["commitLogDiskRatio_unused"]
    assert client.send_message("T1", b"x" * 2048).code == 0
    for missing, text in ((0, "0 B"), (1536, "1.5 KiB"), (261, "261 B")):
        node.durable_limit = node.log.end - missing
        assert told(client)["remainHowManyDataToFlush"] == text


def test_runtime_info_has_timer_figures_and_the_gauges_of_metrics(client: FakeClient) -> None:
    assert client.send_message("T1", b"x", properties="TIMER_DELAY_SEC\x0160\x02").code == 0
    client.broker.advance(PERIOD_S)
    table = told(client)
    assert (table["timerCongestNum"], table["timerEnqueueTps"], table["timerDequeueTps"]) == ("1", "0.1", "0.0")
    gauges = msgspec.json.decode(table["dledgerGauges"])
    assert gauges["timers_pending"] == 1
    assert {"open_halves", "pop_messages_open", "held_pulls", "queue_locks"} <= gauges.keys()


@given(st.lists(st.floats(0, 100), min_size=1), st.floats(0.01, 1))
def test_a_quantile_is_at_most_a_quarter_above_the_exact_value(seconds: list[float], part: float) -> None:
    times = PutTimes()
    for one in seconds:
        times.took(one, 1)
    exact_ms = sorted(seconds)[max(0, ceil(len(seconds) * part) - 1)] * 1000
    assert sum(stock_counts(times.counts)) == len(seconds)
    found_ms = quantile_ms(times.counts, part)
    assert found_ms == BOUNDS_MS[-1] if exact_ms >= BOUNDS_MS[-1] else exact_ms <= found_ms <= max(0.1, exact_ms * 1.25)


def told_by_rocketmq() -> dict[str, str]:
    lines = (ROOT / "tests" / "golden" / "runtime_info_5.3.3.txt").read_text().splitlines()
    return dict(line.split(" = ", 1) for line in lines if not line.startswith("#"))


def form(value: str) -> str:
    """Return the form in which a figure is written, whatever its value is."""
    value = re.sub(r"-?\d+(\.\d+)?(E-?\d+)?", "0", value.strip())
    return re.sub(r"\b[KMGT]?i?B\b", "B", value)


def without_path(names: Iterable[str]) -> set[str]:
    return {re.sub(r"(?<=commitLogDiskRatio_).*", "PATH", name) for name in names}


def test_every_figure_of_rocketmq_is_reported_in_its_form_or_listed_as_missing(broker: ServedBroker) -> None:
    """RocketMQ's exporter for Prometheus shows nothing of a broker that leaves a figure out.

    It splits figures at their spaces, and expects a number where RocketMQ has always had one.
    """
    broker.memory.node.disk_space = DiskSpace(3 << 29, 10 << 30)
    table = told(broker.client())
    assert without_path(told_by_rocketmq()) - without_path(table) == NOT_TOLD
    page = (ROOT / "docs" / "compatibility.md").read_text()
    assert [name for name in NOT_TOLD if re.sub(r"_\d+", "_", name) not in page] == []
    # A broker that runs for less than ten minutes leaves the last of its averages out.
    expected = {name: form(value) for name, value in told_by_rocketmq().items() if name in table}
    expected |= {name: "0 0 0" for name in expected if name.endswith("Tps") and not name.startswith("timer")}
    del expected["brokerVersionDesc"]
    assert {name: form(table[name]) for name in expected} == expected


def test_rates_of_reads_with_and_without_messages_are_reported(client: FakeClient) -> None:
    client.send_message("T1", b"x")
    client.pull("T1")
    for _ in range(2):
        client.pull("T1", queueOffset="1")
    client.broker.advance(PERIOD_S)
    table = told(client)
    rates = [table[name] for name in ("getFoundTps", "getMissTps", "getTotalTps")]
    assert rates == ["0.1 0.1 0.1", "0.2 0.2 0.2", "0.3 0.3 0.3"]


def test_the_longest_wait_of_a_pull_for_records_on_the_disk_is_reported(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, node, waits_s = broker.client(), broker.memory.node, [0.25, 0.1]
    client.send_message("T1", b"old")
    assert (client.pull("T1").code, told(client)["getMessageEntireTimeMax"]) == (0, "0")
    read, node.cold = node.read, True

    async def read_slowly(position: int, size: int) -> bytes:
        broker.advance(waits_s.pop(0))
        return await read(position, size)

    monkeypatch.setattr(node, "read", read_slowly)
    for _ in range(2):
        assert client.call_from_disk(11, pull_ext("T1")).code == 0
    assert (waits_s, told(client)["getMessageEntireTimeMax"]) == ([], "250")


def test_the_longest_wait_of_a_pull_for_its_queue_on_the_disk_is_reported(
    broker: ServedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, memory = broker.client(), broker.memory
    client.send_message("T1", b"old")
    client.pull("T1")
    for _ in range(2):
        memory.flush_views()
    run = memory.env.run_blocking

    def run_slowly(*work: Any) -> None:
        memory.env.call_later(0.4, partial(run, *work))

    monkeypatch.setattr(memory.machine.queues, "read", lambda *_: None)
    monkeypatch.setattr(memory.env, "run_blocking", run_slowly)
    assert client.call_from_disk(11, pull_ext("T1")).code == 0
    assert told(client)["getMessageEntireTimeMax"] == "400"


def test_unapplied_entries_are_reported_as_the_send_queue_size(client: FakeClient) -> None:
    node = client.broker.memory.node

    def sizes() -> dict[str, str]:
        return {name: size for name, size in told(client).items() if name.endswith("QueueSize") and size != "0"}

    assert sizes() == {}
    for _ in range(3):
        node.log.append(EntryKind.NO_OP, node.term, b"", b"")
    assert sizes() == {"sendThreadPoolQueueSize": "3"}
    node.catch_up()
    assert sizes() == {}


@pytest.mark.parametrize(
    ("figure", "catch_up"),
    [
        ("dispatchBehindBytes", lambda broker: broker.memory.machine.keys.catch_up()),
        ("timerOffsetBehind", lambda broker: broker.service.parts[DueMessages].index.rows.follower.fold()),
    ],
    ids=["keys", "delayed messages"],
)
def test_the_backlog_of_an_index_is_reported(
    client: FakeClient, figure: str, catch_up: Callable[[ServedBroker], Coroutine[Any, Any, None]]
) -> None:
    memory = client.broker.memory
    memory.run(catch_up(client.broker))
    assert told(client)[figure] == "0"
    begin = memory.log.end
    assert client.send_message("T1", b"x", i=DELAYED).code == 0
    assert told(client)[figure] == str(memory.log.end - begin)
    memory.run(catch_up(client.broker))
    assert told(client)[figure] == "0"


def test_the_lateness_of_delayed_messages_is_reported_in_seconds(broker: ServedBroker) -> None:
    client = broker.client()
    begin_to_fire(broker)
    assert client.send_message("T1", b"later", properties="TIMER_DELAY_SEC\x0160\x02").code == 0
    broker.memory.node.stage_error = BusyError("64 MiB wait for a majority")
    broker.advance(60)
    assert told(client)["timerReadBehind"] == "0"
    broker.advance(90.5)
    assert told(client)["timerReadBehind"] == "90"
    broker.memory.node.stage_error = None
    broker.advance(1)
    assert broker.memory.bodies("T1") == [b"later"]
    assert told(client)["timerReadBehind"] == "0"


async def test_the_store_time_of_the_oldest_kept_message_is_reported_and_its_read_delays_no_answer(
    client: FakeClient,
) -> None:
    def earliest() -> str:
        return told(client)["earliestMessageTimeStamp"]

    assert earliest() == "-1"
    client.send_message("T1", b"x" * 2 * PIECE_BYTES)
    (record,) = records(client.pull("T1"))
    client.broker.memory.node.cold = True
    found = []
    for _ in range(4):
        found.append(earliest())
        await asyncio.sleep(0)
    assert (found[0], found[-1]) == ("-1", str(record.store_timestamp))
    client.broker.advance(60)
    client.send_message("T1", b"later")
    assert earliest() == str(record.store_timestamp)


def test_the_lateness_of_the_event_loop_is_reported_as_thread_pool_wait_times(make_broker: MakeBroker) -> None:
    broker = make_broker()
    broker.memory.node.loop_late = LoopLateness([10] * 8, 0.001)
    broker.service.parts[RuntimeInfo].start()
    broker.memory.node.loop_late = LoopLateness([10, 10, *[20] * 6], 0.121)
    broker.advance(PERIOD_S)
    table, kinds = told(broker.client()), ("send", "pull", "litePull", "query", "ack")
    assert {table[f"{kind}ThreadPoolQueueHeadWaitTimeMills"] for kind in kinds} == {"12"}
