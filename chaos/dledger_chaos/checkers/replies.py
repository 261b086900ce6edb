"""Check of requests whose producers wait for replies."""

from __future__ import annotations

from dledger_chaos.history import Operation
from dledger_chaos.workloads import replies
from dledger_chaos.workloads.records import Replied, extras

from .base import Findings, Judgement, RunData


def replied(run: RunData) -> Judgement:
    """Check that a request ends with its own reply, or without a reply after its time limit.

    If a replier was answered 0, its reply has reached the requester. So a requester whose time limit passed had no such
    reply. Once all faults are healed, each request gets a reply.
    """
    findings, replied_count = Findings(), 0
    sent: dict[str, list[Operation]] = {}
    for reply in run.of(replies.NAME, "reply"):
        sent.setdefault(reply.key, []).append(reply)
    requests = run.of(replies.NAME, "request")
    owners: dict[str, str] = {}
    for request in requests:
        value = str(request.value)
        answer = extras(request, Replied)
        if request.outcome == "ok":
            replied_count += 1
            _judge_reply(request, answer.reply, sent.get(value, []), findings)
            other = owners.setdefault(answer.reply, value)
            if other != value:
                findings.violation(f"{other} and {value} have both got {answer.reply}")
        elif request.process == replies.FINAL:
            findings.violation(f"{value} was asked when everything was healed, and has no reply: {request.error}")
        elif request.complete_ns is None:
            findings.violation(f"{value} waited until the end of the run")
        elif answer.waited:
            _judge_silence(request, sent.get(value, []), findings)
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
