"""Names of the service's own topics, as `dledger_remoting.topics` has them, which is not on every planner."""

from __future__ import annotations

import re
from typing import Final

_BROKER_WRITTEN: Final = r"rmq_sys_.*|RMQ_SYS_TRANS_.*|SCHEDULE_TOPIC_XXXX|TRANS_CHECK_MAX_TIME_TOPIC"
_is_broker_written: Final = re.compile(_BROKER_WRITTEN, re.DOTALL).fullmatch
_is_left_out: Final = re.compile(
    rf"{_BROKER_WRITTEN}|RMQ_SYS_.*|TBW102|SELF_TEST_TOPIC|BenchmarkTest|OFFSET_MOVED_EVENT|CHECKPOINT_TOPIC"
    r"|%(RETRY|DLQ)%.*",
    re.DOTALL,
).fullmatch


def is_broker_written(topic: str) -> bool:
    """True for a topic that nobody reads: what waits there is not due, or not committed, and stands in another topic
    once it is.
    """
    return _is_broker_written(topic) is not None


def is_left_out(topic: str) -> bool:
    """True for a topic that no pattern means: the service's own, and those that a consumer group keeps for itself."""
    return _is_left_out(topic) is not None
