"""Write the page with the metrics of nodes and name servers, or check the page.

`.ci/metrics.py --write` writes the page from what a node and a name server show that run in this process for a moment.
Without `--write`, a page that differs is a finding. Exits with 1 if there is one.
"""

import asyncio
import logging
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from prometheus_client.core import Metric

from dledger_broker.config import build_config
from dledger_broker.frontend.exporter import NodeCollector
from dledger_broker.kernel.counters import HELP
from dledger_broker.node import Broker
from dledger_client.testing.ports import find_free_block
from dledger_namesrv.config import build_config as build_namesrv_config
from dledger_namesrv.http import NameServerCollector
from dledger_namesrv.server import NameServer

ROOT = Path(__file__).resolve().parent.parent
PAGE = Path("docs/reference/metrics.md")
SECONDS = 30.0
HEAD = """# Metrics

This page lists the metrics at `/metrics` of a broker's node and of a name server. `make fix` writes it from what both
show. [Watching a cluster](../operations/watching.md) has boards and alarms that use them.

Every metric of a node has the labels `cluster`, `broker` (the broker group) and `node`, unless the column "labels" has
others. Counters and gauges that a node has counted itself start at 0 with its process.

## Names of RocketMQ's exporter

Boards for [RocketMQ's exporter](https://github.com/apache/rocketmq-exporter) ask for these names. Only the leader of a
broker group shows those that we have. Rates are left to Prometheus.

| RocketMQ's exporter | here |
|---|---|
"""
EXPORTER: Final = {
    "rocketmq_producer_offset": "the same name and labels",
    "rocketmq_consumer_offset": "the same name and labels",
    "rocketmq_message_accumulation": "the same name and labels",
    "rocketmq_producer_tps": "`rate(rocketmq_producer_offset[1m])`",
    "rocketmq_consumer_tps": "`rate(rocketmq_consumer_offset[1m])`",
    "rocketmq_broker_tps": "`sum by (cluster, broker) (rate(dledger_broker_messages_in_total[1m]))`",
    "rocketmq_broker_qps": "`sum by (cluster, broker) (rate(dledger_broker_messages_out_total[1m]))`",
    "rocketmq_producer_message_size": "by broker group only: `rate(dledger_broker_bytes_in_total[1m])`",
    "rocketmq_consumer_message_size": "by node only: `rate(dledger_broker_bytes_out_total[1m])`",
    "rocketmq_group_get_latency": "not shown; `dledger group describe` shows lag by queue",
    "rocketmq_group_get_latency_by_storetime": "not shown; the lag in messages is `rocketmq_message_accumulation`",
}
NODE_LABELS: Final = ["cluster", "broker", "node"]


async def node_metrics(folder: Path) -> list[Metric]:
    """Return what a node shows that leads its group."""
    port = find_free_block(range(2))
    broker = Broker(
        build_config(
            {
                "broker_group": "broker-a",
                "node_id": "n0",
                "data_dir": str(folder),
                "host": "127.0.0.1",
                "port": port,
                "peer_port": port + 1,
            }
        ),
        bootstrap=True,
        alone=True,
    )
    await broker.start()
    try:
        async with asyncio.timeout(SECONDS):
            while not broker.status().ready:  # noqa: ASYNC110 -- the node has no event for this
                await asyncio.sleep(0.02)
        return list(NodeCollector(broker).collect())
    finally:
        await broker.stop()


def name_server_metrics(folder: Path) -> list[Metric]:
    """Return what a name server shows that is not started."""
    return list(NameServerCollector(NameServer(build_namesrv_config({"data": folder}))).collect())


def rows(metrics: Iterable[Metric], usual: list[str]) -> list[str]:
    """Return a line of the table for each metric."""
    lines = []
    for metric in sorted(metrics, key=lambda metric: metric.name):
        labels = list(getattr(metric, "_labelnames", ()))
        others = ", ".join(f"`{label}`" for label in labels) if labels != usual else ""
        lines.append(f"| `{shown_name(metric)}` | {metric.type} | {others} | {metric.documentation} |")
    return lines


def shown_name(metric: Metric) -> str:
    """Return the name in queries: counters have a suffix there."""
    return f"{metric.name}_total" if metric.type == "counter" else metric.name


def page(node: list[Metric], name_server: list[Metric]) -> str:
    """Return the whole page."""
    ends = f"| `dledger_broker_tls_certificate_ends_seconds` | gauge | | {HELP['tls_certificate_ends_seconds']} |"
    table = "| metric | kind | labels | is |\n|---|---|---|---|\n"
    return "\n".join(
        [
            HEAD + "\n".join(f"| `{name}` | {ours} |" for name, ours in EXPORTER.items()),
            "\n## Nodes\n\nHistograms and summaries also have `_count` and `_sum`, histograms `_bucket`.\n",
            table + "\n".join([*rows(node, NODE_LABELS), ends]),
            "\n## Name servers\n",
            table + "\n".join(rows(name_server, [])) + "\n",
        ]
    )


def main() -> int:
    """Write or check the page, and return the exit status."""
    logging.disable(logging.WARNING)  # the node tells that it has no name server
    with tempfile.TemporaryDirectory() as folder:
        text = page(asyncio.run(node_metrics(Path(folder, "node"))), name_server_metrics(Path(folder, "namesrv")))
    if "--write" in sys.argv[1:]:
        (ROOT / PAGE).write_text(text, encoding="utf-8")
    elif not (ROOT / PAGE).is_file() or (ROOT / PAGE).read_text(encoding="utf-8") != text:
        print(f"{PAGE} is not what nodes and name servers show: run `make fix`")
        return 1
    print(f"{PAGE}: every metric is listed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
