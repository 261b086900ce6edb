"""Cost of TLS and of access control in processor time: `python -m bench.security_cost [--rounds 5] [--messages 3000]`.

Six clusters of three nodes run side by side and take turns:

- plain;
- TLS for clients and name servers;
- TLS between nodes;
- TLS on HTTP ports;
- both of the first two;
- access control, where the producer signs each send.

In each turn the Python client sends messages of 1 KiB, 64 at a time, and opens connections one after the other. It also
asks a node's HTTP port whether it lives, over a new connection each time. The figure is the processor time of the
nodes, which other work on the machine disturbs less than throughput. The program prints the median over the rounds,
with the lowest and the highest.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from contextlib import AsyncExitStack
from datetime import timedelta
from pathlib import Path

from dledger_base.issuing import Authority
from dledger_broker.features.accounts.sealing import new_key, read_key_file
from dledger_client import Admin, Credentials, Producer, Tls
from dledger_client.testing import LocalCluster
from dledger_remoting.accounts import ROOT

BODY = b"x" * 1024
AT_A_TIME = 64
TOPIC = "cost"


def configurations(folder: Path) -> dict[str, str]:
    """Return the TOML of each kind of cluster."""
    certificate = f'tls_cert_file = "{folder}/node.pem"\ntls_key_file = "{folder}/node-key.pem"\n'
    clients = f'tls = "enforcing"\n{certificate}'
    peers = f'tls_peer_ca_file = "{folder}/ca.pem"\n'
    accounts = f'access_key_file = "{folder}/access.keys"\n'
    return {
        "plain": "",
        "clients": f'{clients}tls_namesrv_ca_file = "{folder}/ca.pem"\n[namesrv]\n{clients}',
        "nodes": certificate + peers,
        "http": f"{certificate}tls_http = true\n",
        "both": f'{clients}{peers}tls_namesrv_ca_file = "{folder}/ca.pem"\n[namesrv]\n{clients}',
        "accounts": f"{accounts}[namesrv]\n{accounts}",
    }


def processor_seconds(cluster: LocalCluster) -> float:
    """Return the CPU time that all threads of all nodes have used so far, as the scheduler counts it."""
    total_ns = 0
    for node_id in cluster.node_ids:
        for thread in Path(f"/proc/{cluster.pid(node_id)}/task").iterdir():
            total_ns += int((thread / "schedstat").read_text(encoding="ascii").split()[0])
    return total_ns / 1e9


async def send(producer: Producer, messages: int) -> None:
    """Send `messages` messages, some at a time."""
    numbers = iter(range(messages))

    async def worker() -> None:
        for _ in numbers:
            await producer.send(TOPIC, BODY)

    await asyncio.gather(*(worker() for _ in range(AT_A_TIME)))


async def connect(address: str, tls: Tls | None, times: int) -> None:
    """Open and close connections."""
    host, _, port = address.rpartition(":")
    context = None if tls is None else tls.context().context
    for _ in range(times):
        _, writer = await asyncio.open_connection(host, int(port), ssl=context)
        writer.write(b"\0\0\1\0")
        await writer.drain()
        writer.close()


async def ask_http(address: str, tls: Tls | None, times: int) -> None:
    """Ask a node's HTTP port whether it lives, each time over a new connection."""
    host, _, port = address.rpartition(":")
    context = None if tls is None else tls.context().context
    for _ in range(times):
        reader, writer = await asyncio.open_connection(host, int(port) + 2, ssl=context)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answer = await reader.read()
        if b" 200 " not in answer[:16]:
            raise RuntimeError(f"the HTTP port of {address} answered {answer[:80]!r}")
        writer.close()


async def measure(
    rounds: int, messages: int, connections: int
) -> dict[str, tuple[list[float], list[float], list[float]]]:
    """Return the nodes' microseconds per message, connection and question, by kind and round."""
    costs: dict[str, tuple[list[float], list[float], list[float]]] = {}
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        authority = Authority("bench", timedelta(days=1))
        (folder / "ca.pem").write_bytes(authority.certificate)
        authority.issue("127.0.0.1", ["127.0.0.1"]).write(folder / "node.pem", folder / "node-key.pem")
        keys = folder / "access.keys"
        keys.touch(mode=0o600)
        keys.write_text(new_key() + "\n", encoding="ascii")
        root = Credentials(ROOT, read_key_file(keys).root_secrets[0])
        running: dict[str, tuple[LocalCluster, Producer, Tls | None]] = {}
        for kind, config in configurations(folder).items():
            cluster = await stack.enter_async_context(LocalCluster(config=config))
            tls = Tls(folder / "ca.pem") if kind in ("clients", "both") else None
            account = root if kind == "accounts" else None
            async with Admin(cluster.namesrv, tls=tls, credentials=account) as admin:
                await admin.create_topic(TOPIC)
            producer = await stack.enter_async_context(Producer(cluster.namesrv, tls=tls, credentials=account))
            running[kind] = (cluster, producer, tls)
        for _ in range(rounds + 1):
            for kind, (cluster, producer, tls) in running.items():
                began = processor_seconds(cluster)
                await send(producer, messages)
                sent = processor_seconds(cluster)
                node = cluster.client_address(cluster.node_ids[0])
                await connect(node, tls, connections)
                connected = processor_seconds(cluster)
                await ask_http(node, Tls(folder / "ca.pem") if kind == "http" else None, connections)
                ended = processor_seconds(cluster)
                message_costs, connection_costs, question_costs = costs.setdefault(kind, ([], [], []))
                message_costs.append((sent - began) / messages * 1e6)
                connection_costs.append((connected - sent) / connections * 1e6)
                question_costs.append((ended - connected) / connections * 1e6)
    return costs


def shown(values: list[float]) -> str:
    """Return median, lowest and highest value as text. The first round is a warm-up."""
    measured = values[1:]
    return f"{statistics.median(measured):.0f} ({min(measured):.0f} to {max(measured):.0f})"


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=3000)
    parser.add_argument("--connections", type=int, default=200)
    options = parser.parse_args()
    print("| | µs of all nodes for a message of 1 KiB | µs for a connection | µs for a question over HTTP |")
    print("|---|---|---|---|")
    costs = asyncio.run(measure(options.rounds, options.messages, options.connections))
    for kind, columns in costs.items():
        print(f"| {kind} | {' | '.join(map(shown, columns))} |")


if __name__ == "__main__":
    main()
