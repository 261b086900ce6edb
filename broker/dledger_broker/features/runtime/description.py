"""Self-description of a node (28): texts by name, as RocketMQ's tools show them.

The names that begin with `dledger` are not RocketMQ's. Together they have the content of the HTTP port, so that a
cluster can be inspected where these ports are closed or absent:

    dledgerStatus     JSON of `dledger.replica.status.NodeStatus`; `GET /status` answers with the group's features
                      in addition
    dledgerUptimeMs   time since the node's start, independent of its wall clock
    dledgerDraining   true once the node leaves: it forwards requests of its clients
    dledgerAddresses  JSON: client addresses of the group's nodes by node id, as far as this node knows them
    dledgerGauges     JSON: the features' gauges at `/metrics`: timers, transactions, POP, locks and so on
    dledgerHttp       host:port of the HTTP port; absent without one
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from dledger.environment import Environment
from dledger.log import Log
from dledger.replica.status import LoopLateness, NodeStatus
from dledger_base.extras import package_version
from dledger_broker.config import BrokerConfig
from dledger_broker.features.runtime.earliest import EarliestMessage
from dledger_broker.features.runtime.figures import (
    disk_figures,
    fixed_figures,
    load_figures,
    put_figures,
    size_text,
    timer_figures,
)
from dledger_broker.features.runtime.throughput import Looks, Throughput, Timers
from dledger_broker.kernel import rights
from dledger_broker.kernel.counters import BrokerCounters
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.machine import BrokerMachine
from dledger_broker.kernel.parts import Part
from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.rights import Action
from dledger_broker.kernel.routes import NO_EFFECT, Needs, Route
from dledger_remoting.bodies import KVTable, encode_body
from dledger_remoting.codes import RequestCode

_DAY_S: Final = 86_400


class RuntimeInfo(Part):
    """Description of this node, built from its own state, for a node that runs since `start`."""

    def __init__(
        self,
        machine: BrokerMachine,
        log: Log,
        env: Environment,
        group: LeadershipView,
        config: BrokerConfig,
        counters: BrokerCounters,
        parts: Iterable[Part],
    ) -> None:
        self._machine = machine
        self._log = log
        self._env = env
        self._group = group
        self._config = config
        self._counters = counters
        self._version = package_version()
        self._started_at: float | None = None
        self._boot_ms = 0
        self._parts = parts
        self._throughput = Throughput(env, counters, Looks(self._timers, self._loop_late))
        self._earliest = EarliestMessage(machine, log)

    @property
    def routes(self) -> Mapping[int, Route]:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: Route(
                self.describe, Needs.NOTHING, NO_EFFECT, forwarded=False, rights=(rights.cluster(Action.GET),)
            ),
        }

    def start(self) -> None:
        """Begin to measure: the node runs from now on."""
        self._started_at, self._boot_ms = self._env.now(), self._env.wall_ms()
        self._throughput.start()

    def stop(self) -> None:
        """Stop measuring."""
        self._throughput.stop()

    def close(self) -> None:
        """Stop reading the log."""
        self._earliest.close()

    def describe(self, request: Request) -> None:
        """Answer with the whole description (28)."""
        request.respond(body=encode_body(KVTable(self._table())))

    def _table(self) -> dict[str, str]:
        status, gauges = self._log.status(), self._gauges()
        uptime_s = 0.0 if self._started_at is None else self._env.now() - self._started_at
        table = {
            "brokerActive": str(status.failure is None).lower(),
            "brokerVersionDesc": self._version,
            "bootTimestamp": str(self._boot_ms),
            "runtime": _duration(int(uptime_s)),
            "putTps": self._throughput.stored(),
            "getTransferredTps": self._throughput.delivered(),
            "getTransferedTps": self._throughput.delivered(),
            **self._throughput.totals(),
            "commitLogMinOffset": str(status.first_position),
            "commitLogMaxOffset": str(status.applied_position),
            "earliestMessageTimeStamp": str(self._earliest.time_ms()),
            **self._throughput.reads(),
            "getMessageEntireTimeMax": str(round(self._counters.longest_read_ms)),
            **put_figures(self._counters, self._throughput.put_times()),
            **disk_figures(status.disk_used / 1000, str(self._config.data_dir), self._log.disk_space),
            **timer_figures(gauges, self._throughput.timers_stored(), self._throughput.timers_delivered()),
            **load_figures(
                max(0, status.last_index - status.applied_index), self._throughput.late_ms(), self._config.max_in_flight
            ),
            **fixed_figures(),
            "dispatchBehindBytes": str(self._machine.keys.lag_bytes),
            "remainHowManyDataToFlush": size_text(status.last_position - status.durable_position),
            "dledgerStatus": msgspec.json.encode(status).decode(),
            "dledgerUptimeMs": str(int(uptime_s * 1000)),
            "dledgerDraining": str(self._group.is_leaving).lower(),
            "dledgerGauges": msgspec.json.encode(gauges).decode(),
            "dledgerAddresses": msgspec.json.encode(self._addresses(status)).decode(),
        }
        if self._config.http_port:
            table["dledgerHttp"] = f"{self._config.advertised_host}:{self._config.http_port}"
        return table

    def _gauges(self) -> dict[str, float]:
        """Return the features' gauges, as shown at `/metrics`."""
        return {gauge.name: gauge.read() for part in self._parts for gauge in part.gauges}

    def _timers(self) -> Timers:
        """Return how many delayed messages have been stored and have left on this node."""
        gauges = self._gauges()
        ended = int(gauges["timers_fired"] + gauges["timers_recalled"])
        return Timers(int(gauges["timers_pending"]) + ended, ended)

    def _loop_late(self) -> LoopLateness | None:
        return self._log.status().loop_late

    def _addresses(self, status: NodeStatus) -> dict[str, str]:
        nodes = {status.node_id, *status.voters, *status.learners}
        known = {node_id: self._group.address_of(node_id) for node_id in sorted(nodes)}
        return {node_id: address for node_id, address in known.items() if address}


def _duration(seconds: int) -> str:
    """Return a duration in the form of RocketMQ's brokers."""
    days, seconds = divmod(seconds, _DAY_S)
    hours, seconds = divmod(seconds, 3600)
    minutes, seconds = divmod(seconds, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
