"""Pulls passed on to the leader: the time that it may hold them, and the answer if it does not answer.

The answer makes the reader repeat its pull at the same offset, and at this node. A leader that does not answer is often
dead. By the route of a stock client, id 0 is still that leader for up to 30 s.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.pulling.placement import Placement
from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.routes import Effect
from dledger_remoting.codes import ResponseCode
from dledger_remoting.hotpath import pull_response_head

PULL_ANSWER_TIMEOUT_S: Final = 65.0
"""Time limit for the leader's answer to a pull that was passed on. It is longer than the leader may hold the pull."""


def passed_on(placement: Placement) -> Effect:
    """Return the effect of pulls that were passed on. Later requests need not wait for their answers."""

    def pull_again(request: Request) -> None:
        if request.is_oneway:
            request.origin.settle()
            return
        try:
            offset = int(request.ext.get("queueOffset", ""))
        except ValueError:
            offset = 0
        frame = pull_response_head(
            request.opaque,
            ResponseCode.PULL_RETRY_IMMEDIATELY,
            offset,
            0,
            offset,
            remark="the leader did not answer, pull again",
            serialize_type=request.serialize_type,
            suggest_broker_id=placement.id_without_leader(),
        )
        request.origin.answer_frame(frame)

    return Effect(changes=False, answer_timeout_s=PULL_ANSWER_TIMEOUT_S, unanswered=pull_again)
