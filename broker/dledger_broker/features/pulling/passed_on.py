"""Pulls that were passed on to the leader: how long it may hold them, and what is said if it does not answer.

The reader is to repeat its pull at the offset that it asked for, and here: the leader that did not answer is dead, as
often as not, and by the route of a stock client it is id 0 for up to 30 s more.
"""

from __future__ import annotations

from typing import Final

from dledger_broker.features.pulling.placement import Placement
from dledger_broker.kernel.requests import Request
from dledger_broker.kernel.routes import Effect
from dledger_remoting.codes import ResponseCode
from dledger_remoting.hotpath import pull_response_head

PULL_ANSWER_TIMEOUT_S: Final = 65.0
"""How long a pull that was passed on waits for the leader's answer: longer than the leader may hold it."""


def passed_on(placement: Placement) -> Effect:
    """What pulls do that another node was handed; later requests need not wait for the answers."""

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
