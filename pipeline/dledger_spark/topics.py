"""Names of the service's own topics, as in `dledger_remoting.topics`, which planners may be unable to import."""

from __future__ import annotations

import re
from typing import Final

_BROKER_WRITTEN: Final = r"rmq_sys_.*|RMQ_SYS_TRANS_.*|SCHEDULE_TOPIC_XXXX|TRANS_CHECK_MAX_TIME_TOPIC"
_match_broker_written: Final = re.compile(_BROKER_WRITTEN, re.DOTALL).fullmatch
_match_left_out: Final = re.compile(
    rf"{_BROKER_WRITTEN}|RMQ_SYS_.*|TBW102|SELF_TEST_TOPIC|BenchmarkTest|OFFSET_MOVED_EVENT|CHECKPOINT_TOPIC"
    r"|%(RETRY|DLQ)%.*",
    re.DOTALL,
).fullmatch


def is_broker_written(topic: str) -> bool:
    """Return True for a topic that only brokers read and write, such as that of delayed or uncommitted messages."""
    return _match_broker_written(topic) is not None


def is_left_out(topic: str) -> bool:
    """Return True for a topic that no pattern selects: topics of the service, retry topics and dead-letter topics."""
    return _match_left_out(topic) is not None
