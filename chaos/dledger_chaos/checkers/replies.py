"""Check of requests that wait for replies: what their producers got beside what repliers sent, and were told."""

from __future__ import annotations

from dledger_chaos.history import Operation
from dledger_chaos.workloads import replies
from dledger_chaos.workloads.records import Replied, extras

from .base import Findings, Judgement, RunData


def replied(run: RunData) -> Judgement:
    """A request ends with a reply to itself, which no other request has got, or without any when its time is over.

    Whoever replied and was told 0 was heard: a requester that waited in vain had no such reply. When everything is
    healed each request is answered.
    """
    findings, got = Findings(), 0
    sent: dict[str, list[Operation]] = {}
    for reply in run.of(replies.NAME, "reply"):
        sent.setdefault(reply.key, []).append(reply)
    requests = run.of(replies.NAME, "request")
    owners: dict[str, str] = {}
    for request in requests:
        value = str(request.value)
        told = extras(request, Replied)
        if request.outcome == "ok":
            got += 1
            _judge_reply(request, told.reply, sent.get(value, []), findings)
            other = owners.setdefault(told.reply, value)
            if other != value:
                findings.violation(f"{other} and {value} have both got {told.reply}")
        elif request.process == replies.FINAL:
            findings.violation(f"{value} was asked when everything was healed, and has no reply: {request.error}")
        elif request.complete_ns is None:
            findings.violation(f"{value} waited until the end of the run")
        elif told.waited:
            _judge_silence(request, sent.get(value, []), findings)
    unheard = sum(reply.outcome != "ok" for each in sent.values() for reply in each)
    return findings.judged(len(requests), "requests", replied=got, replies_refused=unheard)


def _judge_reply(request: Operation, got: str, sent: list[Operation], findings: Findings) -> None:
    """A requester has got what somebody replied to it."""
    if not any(reply.value == got for reply in sent):
        findings.violation(f"{request.value} has got {got} (operation {request.id}), which nobody replied to it")
    elif all(reply.invoke_ns > (request.complete_ns or 0) for reply in sent if reply.value == got):
        findings.violation(f"{request.value} had got {got} (operation {request.id}) before anybody replied that")


def _judge_silence(request: Operation, sent: list[Operation], findings: Findings) -> None:
    """A requester that waited in vain had no reply that its replier knows to have arrived."""
    for reply in sent:
        if reply.outcome == "ok" and (reply.complete_ns or 0) < (request.complete_ns or 0):
            findings.violation(
                f"{request.value} waited in vain (operation {request.id}), and {reply.process} was told that "
                f"{reply.value} had arrived (operation {reply.id})"
            )
