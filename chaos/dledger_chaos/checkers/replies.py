"""Check of requests whose producers wait for replies."""

from __future__ import annotations

from dledger_chaos.workloads import replies
from dledger_sim.seen.replies import check_replies

from .base import Judgement, RunData


def replied(run: RunData) -> Judgement:
    """Check the requests and replies of a run. Once all faults are healed, each request gets a reply."""
    return check_replies(run.of(replies.NAME, "request", "reply"), healed=replies.FINAL)
