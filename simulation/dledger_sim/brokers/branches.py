"""Counters of rare branches of forwarding, of requests and of retention. They watch the methods that take the branches.

`Forwarder`, `OffsetRequests`, `Dispatcher` and `Retention` say what each branch is for.
"""

# ruff: noqa: SLF001 - watches private names

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import msgspec

from dledger_broker.errors import wire_error
from dledger_broker.features.offsets.requests import OffsetRequests
from dledger_broker.features.pins.requests import PinRequests
from dledger_broker.features.retention.job import Retention
from dledger_broker.frontend.dispatch import UNSURE_CODES, Dispatcher
from dledger_broker.frontend.forwarding import Envelope, Forwarder
from dledger_broker.kernel.leadership import LeadershipView
from dledger_broker.kernel.requests import Request
from dledger_broker.service import BrokerService
from dledger_sim.brokers.connection import SimConnection

_decode: Final = msgspec.msgpack.Decoder(Envelope).decode


def watch(service: BrokerService, counts: Counter[str]) -> None:
    """Count the branches that the requests of one life of a node take, and logs that grow too old."""
    group = service.group
    _watch_forwarder(service.forwarder, group, counts)
    _watch_offsets(service.parts[OffsetRequests], counts)
    _watch_requests(service.requests, group, counts)
    _before(service.parts[Retention], "_trim_if_due", lambda _, before: counts.update({"log too old": before > 0}))
    _before(service.parts[PinRequests].proposed, "delete", lambda *by: counts.update({"lease ended": len(by) == 3}))


def _before(owner: object, name: str, see: Callable[..., None]) -> None:
    """Call `see` with the arguments of every call of a method, before the call."""
    method = getattr(owner, name)

    def watched(*arguments: Any) -> Any:  # noqa: ANN401 - arguments and result of any method
        see(*arguments)
        return method(*arguments)

    setattr(owner, name, watched)


def _after(owner: object, name: str, see: Callable[..., None]) -> None:
    """Call `see` with the result of every call of a method, followed by its arguments."""
    method = getattr(owner, name)

    def watched(*arguments: Any) -> Any:  # noqa: ANN401 - arguments and result of any method
        result = method(*arguments)
        see(result, *arguments)
        return result

    setattr(owner, name, watched)


def _watch_forwarder(forwarder: Forwarder, group: LeadershipView, counts: Counter[str]) -> None:
    def on_request(_sender: object, data: bytes, _reply: object) -> None:
        if forwarder._refusals and group.ready:
            envelope = _decode(data)
            refused = forwarder._refusals.get(envelope.channel)
            counts["refused for its channel's epoch"] += refused is not None and envelope.epoch <= refused[0]

    def answered(request: Request, _answer: object) -> None:
        origin = request.origin
        refused, sent = origin.forward_refused, origin.forwards_sent
        counts["channel has all back"] += bool(refused) and max(sent - {request.sequence}, default=0) < refused

    def hand_on(request: Request) -> None:
        origin = request.origin
        if not group.ready:
            counts["waited behind a refused one"] += bool(origin.forward_refused)
        elif origin.forwards_sent:
            counts["waited for what another node had"] += 1
        else:
            counts["handled where it had waited"] += 1

    def unanswered(request: Request, _error: object) -> None:
        effect = forwarder._handling.route(request.code).effect
        counts["question without an answer"] += effect.unanswered is None and not effect.changes
        if effect.unanswered is not None:
            counts["pull to be repeated"] += 1

    def pass_on(request: Request) -> None:
        if isinstance(request.origin, SimConnection):
            request.origin.passed_on.add(request.opaque)

    _before(forwarder, "pass_on", pass_on)
    _before(forwarder, "on_request", on_request)
    _before(forwarder, "_answered", answered)
    _before(forwarder, "_hand_on", hand_on)
    _before(forwarder, "_unanswered", unanswered)
    _before(forwarder, "_expire", lambda count, _: counts.update({"answered by a stopping node": count}))
    _after(forwarder, "_is_not_forwarded", lambda kept, _: counts.update({"forwarding not wanted": kept}))


def _watch_offsets(offsets: OffsetRequests, counts: Counter[str]) -> None:
    def is_late(late: bool, request: Request, *_: object) -> None:
        counts["commit took a detour"] += request.is_rerouted
        counts["commit came back"] += request.is_rerouted and not request.origin.is_forwarded
        counts["commit overtaken"] += late

    def finish_overtaken(
        _result: None, _request: Request, key: tuple[str, str, int], offset: int, error: Exception | None
    ) -> None:
        counts["overtaken commit answered"] += error is None and offsets._covers(key, offset)
        counts["overtaking commit lost"] += error is None and not offsets._covers(key, offset)
        counts["overtaken commit of unknown outcome"] += error is not None

    _after(offsets, "_is_overtaken", is_late)
    _after(offsets, "_is_overtaker_lost", lambda lost, *_: counts.update({"overtaking commit known to be lost": lost}))
    _after(offsets, "_may_be_overtaken", lambda may, *_: counts.update({"commit that may be old": may}))
    _after(offsets, "_finish_overtaken", finish_overtaken)
    _before(offsets, "_pass_on_commit", lambda *_: counts.update(("commit of a pull passed on",)))


def _watch_requests(requests: Dispatcher, group: LeadershipView, counts: Counter[str]) -> None:
    def confirmed(_request: Request, _go_on: object, error: Exception | None) -> None:
        counts["leader not confirmed"] += error is not None

    def confirm(_request: Request) -> None:
        counts["doubt passed on to the leader"] += not group.ready

    def fail(request: Request, error: Exception) -> None:
        unsure = wire_error(error).code in UNSURE_CODES
        counts["denial confirmed first"] += unsure and not request.confirmed
        counts["denial of a confirmed leader"] += unsure and request.confirmed

    _before(requests, "_confirmed", confirmed)
    _before(requests, "confirm", confirm)
    _before(requests, "fail", fail)
