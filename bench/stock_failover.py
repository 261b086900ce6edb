"""Failed sends of unmodified clients when the leader is killed and stays away, with write aliases and without.

    python -m bench.stock_failover --client cpp --senders 1 --kills 20 [--no-aliases] [--asynchronous] [--retries 2]
                                   [--keyed] [--pause | --vanish] [--per-request-ms 1000]
    python -m bench.stock_failover --client java-5.3.3 --program 'java -cp lib/*:classes Driver'

For each kill a fresh process of the client sends, one message after the other from each of its threads. The topic has
8 queues. Before the kill, the topic's route has every alias (none with `--no-aliases`), and a first message has made
the client look it up. After the kill the client continues for `--seconds`, and then the node is started again. With
`--pause` the node is stopped (SIGSTOP) and continued, and its connections stay open. With `--vanish` its host is lost:
the node stops, and its address answers nothing any more, not even a refusal. That needs root, and addresses in a
network namespace of its own:

    unshare --net sh -c 'ip link set lo up && .venv/bin/python -m bench.stock_failover --vanish …'

With `--keyed` the client chooses each queue by a hash of the message's key. The table counts calls of the client that
ended with an error, after any retries inside the client. `--program` starts a driver of tests/conformance, which `make
test-clients` builds; the C++ driver needs none.
"""

from __future__ import annotations

import argparse
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dledger_client import SyncAdmin
from dledger_client.testing import LocalCluster
from dledger_remoting.codes import RequestCode
from dledger_remoting.route import decode_cluster_info, decode_route, is_alias
from dledger_remoting.topics import WRITE_ALIASES_ATTRIBUTE
from tests.conformance.stock_clients import StockClient, StockClientError
from tests.integration.bare_client import BareClient

ROOT = Path(__file__).resolve().parents[1]
TOPIC, QUEUES = "StockFailover", 8
PATIENCE_S = 60.0
WARM_SENDS = 20
ENDLESS = 1_000_000


@dataclass(frozen=True, slots=True)
class Kill:
    """Cost of one kill: failed sends, and the longest time in ms without an acknowledgement."""

    failed: int
    gap_ms: float


class Measurement:
    """Kills of one cluster's leader while one kind of client sends."""

    def __init__(self, cluster: LocalCluster, options: argparse.Namespace) -> None:
        self._cluster = cluster
        self._options = options

    def kill_once(self) -> Kill:
        """Kill the leader while a fresh client sends, and start the node again."""
        with self._start_client() as client:
            self._start_streams(client)
            node_id = self._hit_leader()
            gap_ms = self._longest_gap_ms(client)
            result = Kill(len(client.failed), gap_ms)
            for failed in client.failed:
                print(f"{failed['ms']:.0f} ms: {failed['error']}", file=sys.stderr)
            client.call("stop_streams", timeout=PATIENCE_S)
        self._restore_node(node_id)
        self._cluster.wait_ready()
        self._wait_registered()
        wait_listed(self._cluster, aliases=not self._options.no_aliases)
        return result

    def _hit_leader(self) -> str:
        """Kill or pause the leader, or lose its host. Returns its node id."""
        if not (self._options.pause or self._options.vanish):
            return self._cluster.kill_leader()
        leader = self._cluster.leader()
        self._cluster.pause(leader)
        if self._options.vanish:
            lose_host(leader)
        return leader

    def _restore_node(self, node_id: str) -> None:
        """Let the node work again, as a new process unless it was only paused."""
        if self._options.vanish:
            find_host(node_id)
        if self._options.pause:
            self._cluster.resume(node_id)
        else:
            self._cluster.restart(node_id)

    def _wait_registered(self) -> None:
        """Wait until every node is registered again. With two of three away no node could take a send."""
        with BareClient(self._cluster.namesrv) as client:
            registered = 0
            while registered < len(self._cluster.node_ids):
                time.sleep(0.1)
                info = decode_cluster_info(client.ask(RequestCode.GET_BROKER_CLUSTER_INFO, {}).body)
                registered = sum(len(group.broker_addrs) for group in info.broker_addr_table.values())

    @contextmanager
    def _start_client(self) -> Iterator[StockClient]:
        command = shlex.split(self._options.program) if self._options.program else [sys.executable, _CPP_DRIVER]
        with (
            tempfile.TemporaryDirectory() as home,
            StockClient([*command, self._cluster.namesrv], home=Path(home)) as client,
        ):
            yield client

    def _start_streams(self, client: StockClient) -> None:
        fields: dict[str, object] = {"retries": self._options.retries} if self._options.retries else {}
        fields |= {name: True for name in ("asynchronous", "keyed") if getattr(self._options, name)}
        if self._options.per_request_ms:
            fields["per_request_ms"] = self._options.per_request_ms
        _look_up(client)
        for sender in range(self._options.senders):
            client.begin("stream", topic=TOPIC, prefix=f"{sender}-", count=ENDLESS, pause_ms=5, **fields)
        client.wait_for(lambda: client.sends >= WARM_SENDS * self._options.senders, "sends before the kill")
        client.failed.clear()

    def _longest_gap_ms(self, client: StockClient) -> float:
        """Let the client continue.

        Returns the longest time in ms after the kill in which no thread got an acknowledgement.
        """
        killed_at = last_sent_at = time.monotonic()
        gap, seen_sends = 0.0, client.sends
        while (now := time.monotonic()) - killed_at < self._options.seconds:
            if client.sends > seen_sends:
                gap, last_sent_at, seen_sends = max(gap, now - last_sent_at), now, client.sends
            time.sleep(0.005)
        return max(gap, now - last_sent_at) * 1000


def _look_up(client: StockClient) -> None:
    """Let the client find the topic's route before its threads begin together.

    If several threads send first at the same time, the C++ client fails some sends. Java's client does worse:

    1. The first lookup takes nearly 3 s, because the machine is busy.
    2. The other threads give up waiting for it, and ask for the route of `TBW102`, the template of topics that do not
       exist.
    3. That route has no aliases, takes the place of the topic's route, and stays for up to 30 s.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            client.call("send", topic=TOPIC, body="first", timeout=PATIENCE_S)
            return
        except StockClientError:
            if time.monotonic() > deadline:
                raise


_CPP_DRIVER = str(ROOT / "tests" / "conformance" / "cpp_driver.py")


def hosts_of_their_own(nodes: Iterable[str]) -> str:
    """Give each node an address of its own for clients, in a network namespace that has loopback only.

    Returns the nodes' configurations for these addresses.
    """
    if [name for _, name in socket.if_nameindex()] != ["lo"]:
        raise SystemExit("--vanish takes addresses: run it in a network namespace of its own, see --help")
    tables = []
    for node_id in nodes:
        _run_ip("address", "add", f"{host_of(node_id)}/32", "dev", "lo")
        tables.append(f'[nodes.{node_id}]\nhost = "0.0.0.0"\nadvertised_host = "{host_of(node_id)}"\n')
    return "".join(tables)


def host_of(node_id: str) -> str:
    """Return the address of a node's host. A client connected to it has this address at its own end, too."""
    return f"10.9.0.{int(node_id.rpartition('n')[2]) + 1}"


def lose_host(node_id: str) -> None:
    """Make nothing answer at a node's address: packets to it come back over loopback and reach no process."""
    _run_ip("address", "del", f"{host_of(node_id)}/32", "dev", "lo")
    _run_ip("route", "add", f"{host_of(node_id)}/32", "dev", "lo", "src", "127.0.0.1")


def find_host(node_id: str) -> None:
    """Undo `lose_host`."""
    _run_ip("route", "del", f"{host_of(node_id)}/32", "dev", "lo")
    _run_ip("address", "add", f"{host_of(node_id)}/32", "dev", "lo")


def _run_ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


def make_topic(cluster: LocalCluster, *, aliases: bool) -> None:
    """Create the topic, and wait until its route has the wanted aliases."""
    attributes = {WRITE_ALIASES_ATTRIBUTE: "true" if aliases else "false"}
    with SyncAdmin(cluster.namesrv) as admin:
        admin.create_topic(TOPIC, queues=QUEUES, attributes=attributes)
    wait_listed(cluster, aliases=aliases)


def wait_listed(cluster: LocalCluster, *, aliases: bool) -> None:
    """Wait until the topic's route has the wanted aliases."""
    wanted = len(cluster.node_ids) - 1 if aliases else 0
    with BareClient(cluster.namesrv) as client:
        while True:
            body = client.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": TOPIC}).body
            if sum(is_alias(broker.broker_name) for broker in decode_route(body).broker_datas) == wanted:
                return
            time.sleep(0.05)


def main() -> None:
    """Measure one row of the table and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--client", default="cpp", help="name of the row")
    parser.add_argument("--program", default="", help="command that starts the client's driver")
    parser.add_argument("--senders", type=int, default=1)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument(
        "--seconds", type=float, default=6.0, help="time for which the client continues after a kill, in seconds"
    )
    parser.add_argument("--retries", type=int, default=0, help="number of retries, for drivers that take it (Go's)")
    parser.add_argument(
        "--asynchronous", action="store_true", help="asynchronous sends, for the drivers of Java and C++"
    )
    parser.add_argument("--keyed", action="store_true", help="choose queues by keys, for Java's driver")
    parser.add_argument(
        "--per-request-ms",
        type=int,
        default=0,
        help="for Java's driver: setSendMsgMaxTimeoutPerRequest of the 5.x line",
    )
    faults = parser.add_mutually_exclusive_group()
    faults.add_argument("--pause", action="store_true", help="SIGSTOP instead of SIGKILL")
    faults.add_argument("--vanish", action="store_true", help="the host is lost instead; in a network namespace only")
    parser.add_argument("--no-aliases", action="store_true")
    options = parser.parse_args()
    if (options.keyed or options.per_request_ms) and "java" not in options.program:
        parser.error("--keyed and --per-request-ms are for Java's driver: another would not notice them")
    if options.asynchronous and options.program and "java" not in options.program:
        parser.error("--asynchronous is for the drivers of Java and C++: another would not notice it")
    config = hosts_of_their_own(f"broker-a-n{number}" for number in range(3)) if options.vanish else None
    with LocalCluster(config=config) as cluster:
        make_topic(cluster, aliases=not options.no_aliases)
        measurement = Measurement(cluster, options)
        kills = [measurement.kill_once() for _ in range(options.kills)]
    gaps = sorted(kill.gap_ms for kill in kills)
    way = "asynchronous" if options.asynchronous else "by key" if options.keyed else "synchronous"
    fault = "paused" if options.pause else "host lost" if options.vanish else "killed"
    limit = f", {options.per_request_ms} ms a request" if options.per_request_ms else ""
    print(
        f"| {options.client} | {way}{limit} | {options.senders} | {'no' if options.no_aliases else 'yes'} | {fault} | "
        f"{len(kills)} | {sum(kill.failed for kill in kills)} | {sum(kill.failed > 0 for kill in kills)} | "
        f"{statistics.median(gaps):.0f} | {gaps[-1]:.0f} |"
    )


if __name__ == "__main__":
    main()
