"""HTTP port of a node: its health for probes, dashboards and people, and changes of its group's leadership and members.

    GET /healthz    200 `ok`; 503 with the reason once the node has failed and serves nothing any more
    GET /readyz     200 `ready` while clients can be served through this node; 503 with the reason otherwise, also while
                    it takes no messages because its disk is full, or too many disks of its group are
    GET /metrics    Prometheus' text format, see `exporter.py`, at most some seconds old; 401 if `metrics_token_file`
                    is set and the request does not have its token
    GET /status     JSON of `BrokerStatus`
    PUT /leader/NODE-ID       200 once that node leads the group; 504 if it did not take over in time
    DELETE /members/NODE-ID   200 once the removal is proposed

The last two need proof that the sender knows the group's secret (`dledger.net.proof`). Without proof the answer is 401,
and 403 if this node has no secret. Both are for the leader. Any other node answers 409 and names the leader. A removed
node joins again as a learner if it still runs and is among the leader's configured peers. The port does no work between
requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from typing import Final, Protocol, TypeAlias

import msgspec
from aiohttp import web

from dledger.errors import LogError
from dledger.net.proof import Gatekeeper, ProofError
from dledger.replica.status import NodeStatus
from dledger_base import native_part
from dledger_base.audit_log import AuditLog
from dledger_base.http import serve_http
from dledger_base.loop_holds import SCRAPE, LoopHolds
from dledger_base.metrics_page import MetricsPage
from dledger_base.secret import GroupSecrets
from dledger_base.tls import TlsContext
from dledger_broker.frontend.exporter import Figures, NodeCollector
from dledger_broker.kernel.state import BrokerState


class FeatureStatus(msgspec.Struct, frozen=True):
    """A feature that a group uses once every voter understands it.

    `since` is the log position from which it is used, None while it is not active, as far as this node has applied.
    """

    name: str
    since: int | None


class BrokerStatus(NodeStatus, frozen=True, kw_only=True):
    """The JSON of a broker's `/status`. `features` are sorted by name.

    `native_part` is the version of the native part that the node uses, `none` if Python does everything.
    """

    features: list[FeatureStatus]
    native_part: str


def with_features(status: NodeStatus, state: BrokerState) -> BrokerStatus:
    """Return a node's status with the features in its state."""
    activation = state.activation
    features = [FeatureStatus(name, activation.since.get(name)) for name in sorted(activation.kinds)]
    return BrokerStatus(**msgspec.structs.asdict(status), features=features, native_part=native_part.version())


_logger = logging.getLogger(__name__)

_Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]

_UNPROVABLE: Final = (
    "this node has no secret_file, so that nobody can prove to be allowed to change its group: set secret_file in its "
    "configuration and restart it"
)


class HttpConfig(Protocol):
    """The part of the broker's configuration that the HTTP port needs."""

    @property
    def host(self) -> str:
        """Address to bind."""

    @property
    def http_port(self) -> int:
        """Port to bind. 0 takes a free port."""


class GroupMember(Protocol):
    """The part of `dledger.node.Node` that the HTTP port uses."""

    async def transfer_leadership(self, to: str | None = None) -> bool:
        """Hand the leadership over, see `dledger.node.Node.transfer_leadership`."""

    def remove(self, node_id: str) -> None:
        """Remove a member, see `dledger.node.Node.remove`."""


class HttpBroker(Figures, Protocol):
    """The part of the broker that the HTTP port uses: numbers for the metrics, secrets, readiness."""

    @property
    def config(self) -> HttpConfig:
        """Address and port to listen on."""

    @property
    def node(self) -> GroupMember:
        """The log's node."""

    @property
    def holds(self) -> LoopHolds:
        """Measure of what has blocked this node's event loop, and for how long."""

    @property
    def group_secret(self) -> GroupSecrets | None:
        """The secrets that the group's nodes share, None if this node has no secrets."""

    @property
    def metrics_token(self) -> str | None:
        """The token that a scraper of the metrics must send, None if metrics are public."""

    @property
    def audit_log(self) -> AuditLog:
        """The audit log of this node."""

    @property
    def http_tls(self) -> TlsContext | None:
        """TLS context of the port, None if it is plain."""

    @property
    def is_introduced(self) -> bool:
        """True if name servers list this node as the leader, with the topics that a broker has from the start."""

    @property
    def access_obstacle(self) -> str | None:
        """The reason why access control cannot decide here, so that all requests are refused. None if it can."""

    @property
    def is_draining(self) -> bool:
        """True from the first stop signal on. The node still forwards requests, and clients should leave it."""


async def start_http(broker: HttpBroker) -> web.AppRunner:
    """Serve until `cleanup()` of the returned runner. Raises `ConfigError` if the port cannot be listened on."""
    return await serve_http(broker.config.host, broker.config.http_port, _routes(broker), broker.http_tls)


def _routes(broker: HttpBroker) -> list[web.RouteDef]:
    page = MetricsPage(NodeCollector(broker).steps, partial(broker.holds.part, SCRAPE), broker.metrics_token)

    async def healthz(_: web.Request) -> web.Response:
        failure = broker.status().failure
        return web.Response(text=failure or "ok", status=503 if failure else 200)

    async def readyz(_: web.Request) -> web.Response:
        obstacle = broker.access_obstacle or unready_because(
            broker.status(), is_draining=broker.is_draining, is_introduced=broker.is_introduced
        )
        return web.Response(text=obstacle or "ready", status=503 if obstacle else 200)

    async def status(_: web.Request) -> web.Response:
        with broker.holds.part(SCRAPE):
            shown = msgspec.json.encode(with_features(broker.status(), broker.state))
        return web.Response(body=shown, content_type="application/json")

    async def lead(request: web.Request) -> web.Response:
        node_id = request.match_info["node_id"]
        try:
            taken = await broker.node.transfer_leadership(node_id)
        except LogError as error:
            return web.Response(text=str(error), status=409)
        return web.Response(
            text=f"{node_id} leads" if taken else f"{node_id} did not take over", status=200 if taken else 504
        )

    async def remove(request: web.Request) -> web.Response:
        node_id = request.match_info["node_id"]
        try:
            broker.node.remove(node_id)
        except LogError as error:
            return web.Response(text=str(error), status=409)
        return web.Response(text=f"{node_id} is being removed")

    return [
        web.get("/healthz", healthz),
        web.get("/readyz", readyz),
        web.get("/metrics", page.handle),
        web.get("/status", status),
        web.put("/leader/{node_id}", _proven(broker, lead)),
        web.delete("/members/{node_id}", _proven(broker, remove)),
    ]


def _proven(broker: HttpBroker, handler: _Handler) -> _Handler:
    """Return a handler that refuses requests without proof that their sender knows the group's secret.

    It writes all other requests to the audit log.
    """
    secret = broker.group_secret
    gate = None if secret is None else Gatekeeper(secret, time.monotonic)

    async def handle(request: web.Request) -> web.StreamResponse:
        if gate is None:
            return web.Response(text=_UNPROVABLE, status=403)
        try:
            gate.check(request.method, request.raw_path, request.headers.get("Authorization", ""))
        except ProofError as error:
            text = f"this needs proof of the group's secret, as `dledger node lead` and `remove` give it: {error}"
            return web.Response(text=text, status=401, headers={"WWW-Authenticate": gate.challenge()})
        answer = await handler(request)
        what = f"{request.method} {request.raw_path}"
        outcome = "done" if answer.status < HTTPStatus.BAD_REQUEST else str(answer.status)
        broker.audit_log.write("the group's secret", request.remote or "", what, outcome)
        _logger.info("event=asked_over_http request=%r from=%s status=%d", what, request.remote, answer.status)
        return answer

    return handle


def unready_because(status: NodeStatus, *, is_draining: bool, is_introduced: bool) -> str | None:
    """Return why clients should use another node, None if they can use this node."""
    if status.failure:
        return status.failure
    if is_draining:
        return "draining: leaving the group's route"
    if status.role == "leader":
        if not status.ready:
            return f"leader of term {status.term}, its first entry is not committed yet"
        if not is_introduced:
            return f"leader of term {status.term}, name servers do not list it and its topics yet"
    elif status.leader_id is None:
        return f"{status.role} in term {status.term}, no leader is known"
    return status.refusal
