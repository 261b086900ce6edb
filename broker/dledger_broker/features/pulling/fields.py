"""Fields of a pull whose header was decoded in full."""

from __future__ import annotations

from dledger_remoting.headers import PullMessageHeader
from dledger_remoting.hotpath import PullFields


def fields_of(header: PullMessageHeader) -> PullFields:
    """Return the fields of a pull from its decoded header."""
    return PullFields(
        header.consumer_group,
        header.topic,
        header.queue_id,
        header.queue_offset,
        header.max_msg_nums,
        header.sys_flag,
        header.commit_offset,
        header.suspend_timeout_millis,
        header.sub_version,
        header.subscription,
        header.expression_type,
        header.max_msg_bytes or 0,
        header.roles,
        header.topic_created,
    )
