"""Check of requests and replies, as requesters and repliers saw them.

| operation | process | key | value | extras |
|---|---|---|---|---|
| `request` | requester | topic | the request | `Replied` |
| `reply` | replier | the request | the reply | `Answered` |
| `arrive` | requester | the request | the reply | none |

A history has `arrive` if its clients see every reply that comes, not only the one that ends the request.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import TypeVar

import msgspec

from dledger_sim.seen.findings import Findings, Judgement
from dledger_sim.seen.history import Operation

_ExtrasT = TypeVar("_ExtrasT")


class Replied(msgspec.Struct, frozen=True):
    """End of a request: the value of the reply; `waited` is True if the stored request got no reply in time."""

    reply: str = ""
    waited: bool = False


class Answered(msgspec.Struct, frozen=True):
    """Answer to a replier. With `direct`, the leader itself gave the outcome, and nothing passed the reply on."""

    direct: bool = False


def check_replies(operations: Iterable[Operation], *, healed: str = "", sees_all: bool = False) -> Judgement:
    """Check that a request ends with its own reply, or without a reply after its time limit.

    If a replier was answered 0, its reply has reached the requester. So a requester whose time limit passed had no such
    reply. Each request of the process `healed` gets a reply. With `sees_all` the history has each arrival: a reply that
    was answered 0 has arrived before. If the leader itself answered, the reply arrives once; if it refused, never.
    """
    findings, replied_count = Findings(), 0
    requests: list[Operation] = []
    sent: defaultdict[str, list[Operation]] = defaultdict(list)
    arrivals: list[Operation] = []
    for operation in operations:
        if operation.f == "request":
            requests.append(operation)
        elif operation.f == "reply":
            sent[operation.key].append(operation)
        elif operation.f == "arrive":
            arrivals.append(operation)
    owners: dict[str, str] = {}
    for request in requests:
        value = str(request.value)
        answer = _extras(request, Replied)
        if request.outcome == "ok":
            replied_count += 1
            _judge_reply(request, answer.reply, sent[value], findings)
            other = owners.setdefault(answer.reply, value)
            if other != value:
                findings.violation(f"{other} and {value} have both got {answer.reply}")
        elif healed and request.process == healed:
            findings.violation(f"{value} was asked when everything was healed, and has no reply: {request.error}")
        elif request.complete_ns is None:
            findings.violation(f"{value} waited until the end of the run")
        elif answer.waited:
            _judge_silence(request, sent[value], findings)
    if sees_all:
        _judge_arrivals(requests, [reply for each in sent.values() for reply in each], arrivals, findings)
    refused_count = sum(reply.outcome != "ok" for each in sent.values() for reply in each)
    return findings.judged(len(requests), "requests", replied=replied_count, replies_refused=refused_count)


def _judge_reply(request: Operation, got: str, sent: list[Operation], findings: Findings) -> None:
    """Judge that a replier had sent the reply that a requester got."""
    if not any(reply.value == got for reply in sent):
        findings.violation(f"{request.value} has got {got} (operation {request.id}), which nobody replied to it")
    elif all(reply.invoke_ns > (request.complete_ns or 0) for reply in sent if reply.value == got):
        findings.violation(f"{request.value} had got {got} (operation {request.id}) before anybody replied that")


def _judge_silence(request: Operation, sent: list[Operation], findings: Findings) -> None:
    """Judge that no replier was answered 0 while a requester waited without getting a reply."""
    for reply in sent:
        if reply.outcome == "ok" and (reply.complete_ns or 0) < (request.complete_ns or 0):
            findings.violation(
                f"{request.value} got no reply in time (operation {request.id}), but {reply.process} was told that "
                f"{reply.value} had arrived (operation {reply.id})"
            )


def _judge_arrivals(
    requests: list[Operation], replies: list[Operation], arrivals: list[Operation], findings: Findings
) -> None:
    """Judge each arrival by what was sent, and each answer to a replier by the arrivals of its reply."""
    waiting = {(request.process, str(request.value)) for request in requests}
    sent = {str(reply.value): reply for reply in replies}
    arrived: defaultdict[str, list[int]] = defaultdict(list)
    for arrival in arrivals:
        value = str(arrival.value)
        arrived[value].append(arrival.invoke_ns)
        reply = sent.get(value)
        if (arrival.process, arrival.key) not in waiting:
            findings.violation(f"{value} reached {arrival.process}, which had not asked {arrival.key}")
        if reply is None or arrival.invoke_ns < reply.invoke_ns:
            findings.violation(f"{value} reached {arrival.process} before anybody replied that")
        elif reply.key != arrival.key:
            findings.violation(f"{value} was the reply to {reply.key}, and arrived as the reply to {arrival.key}")
    for value, reply in sent.items():
        count, is_direct = len(arrived[value]), _extras(reply, Answered).direct
        before = [moment for moment in arrived[value] if moment <= (reply.complete_ns or 0)]
        if reply.outcome == "ok" and not before:
            findings.violation(f"{reply.process} was told that {value} had arrived, which had not come to {reply.key}")
        if is_direct and reply.outcome == "ok" and count > 1:
            findings.violation(f"{value} arrived {count} times, and the leader itself had answered")
        if is_direct and reply.outcome == "fail" and count:
            findings.violation(f"{value} arrived {count} times, and the leader had refused it")


def _extras(operation: Operation, kind: type[_ExtrasT]) -> _ExtrasT:
    return msgspec.convert(operation.extras, kind)
