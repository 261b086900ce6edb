"""Rows about resets of consumer groups that other vendors' clients must pass. See `rows`.

Each row sends two halves with a time between them. A reset to the beginning delivers both again, a reset to that time
the second half, and a reset to the end neither.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Final

import rows
from cluster_checks import create_topic, dledger, wait_until
from rows import RETRY_SECONDS, Row
from stock_clients import StockClient

from dledger_client import SyncAdmin
from dledger_client.errors import ClientError
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.resets import AT_END
from tests.integration.bare_client import BareClient

HALF = 8
BEGINNING: Final = 0
Reset = Callable[[Row, int], None]
"""Function that resets a row's group to a time in ms since 1970, or to `AT_END`."""


def by_command(row: Row, timestamp_ms: int) -> None:
    """Reset with `dledger group reset`."""
    where = {BEGINNING: "beginning", AT_END: "end"}.get(timestamp_ms, str(timestamp_ms))
    dledger("group", "reset", "--yes", row.group, "--namesrv", row.cluster.namesrv, "--to", where, "--topic", row.topic)


def by_mqadmin(row: Row, timestamp_ms: int) -> None:
    """Reset as `mqadmin resetOffsetByTime` of RocketMQ 5.3.3 does: by a request to each leader, with `isForce`."""
    asked = {"topic": row.topic, "group": row.group, "timestamp": str(timestamp_ms), "isForce": "true"}
    asked |= {"queueId": "-1", "offset": "-1"}
    for broker_group in row.cluster.groups:
        with BareClient(row.cluster.client_address(row.cluster.leader(broker_group))) as client:
            answer = client.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, asked)
        assert answer.code == ResponseCode.SUCCESS, answer.remark


def a_live_group_goes_on_where_it_is_told(row: Row, reset: Reset) -> None:
    """Check that a member reads everything again, then everything from a time on, then only new messages.

    The last reset is one to the end. With kills, the leader is killed after its answer to the first reset, and the row
    ends once the member has read everything again.
    """
    with row.reading() as client:
        early, late, between_ms = _send_halves(row, client)
        everything = [*early, *late]
        _wait_for(row, client, "reader", Counter(everything))
        reset(row, BEGINNING)
        row.kill()
        _wait_for(row, client, "reader", Counter(everything * 2))
        if not row.kills:
            reset(row, between_ms)
            _wait_for(row, client, "reader", Counter(everything * 2 + late))
            reset(row, AT_END)
            rows.send(client, topic=row.topic, body="last")
            # A member that read it before it learned of the reset goes back to the reset offset, and reads it again.
            _wait_for(row, client, "reader", Counter(everything * 2 + [*late, "last"]), maybe_again="last")
        rows.close(row, client, "reader")


def a_group_that_is_away_comes_back_where_it_was_told(row: Row, reset: Reset) -> None:
    """Check that a member that starts after a reset begins at the reset offset. No member runs during the reset.

    With kills, the leader is killed after its answer to the reset to a time, and the row ends once that reset took
    effect.
    """
    create_topic(row.cluster, row.topic)
    with row.told():
        client = row.client()
        client.call("push", name="first", group=row.group, topic=row.topic)
        early, late, between_ms = _send_halves(row, client)
        _wait_for(row, client, "first", Counter([*early, *late]))
        rows.close(row, client, "first")
        reset(row, between_ms)
        row.kill()
        _come_back(row, client, "from a time", late)
        if not row.kills:
            reset(row, BEGINNING)
            _come_back(row, client, "from the beginning", [*early, *late])
            rows.send(client, topic=row.topic, body="skipped")
            reset(row, AT_END)
            rows.send(client, topic=row.topic, body="last")
            _come_back(row, client, "from the end", ["last"])


def _send_halves(row: Row, client: StockClient) -> tuple[list[str], list[str], int]:
    """Send both halves. Return their bodies, and a time in ms since 1970 between them."""
    early, late = ([f"{half} {number}" for number in range(HALF)] for half in ("early", "late"))
    for body in early:
        rows.send(client, topic=row.topic, body=body)
    between_ms = time.time_ns() // 1_000_000 + 2
    assert wait_until(lambda: time.time_ns() // 1_000_000 > between_ms, RETRY_SECONDS)
    for body in late:
        rows.send(client, topic=row.topic, body=body)
    return early, late, between_ms


def _come_back(row: Row, client: StockClient, name: str, bodies: list[str]) -> None:
    """Start a member, check that it gets these bodies, and stop it."""
    client.call("push", name=name, group=row.group, topic=row.topic)
    _wait_for(row, client, name, Counter(bodies))
    rows.close(row, client, name)


def _wait_for(row: Row, client: StockClient, name: str, expected: Counter[str], *, maybe_again: str = "") -> None:
    """Wait until a consumer got each body as often as expected, and the group has committed everything stored.

    More deliveries fail the row, except those of `maybe_again`. After a kill, uncommitted messages may come again.
    """
    rows.wait_for(client, lambda: Counter(client.bodies(name)) >= expected, f"{expected}")
    assert wait_until(lambda: _all_is_committed(row), RETRY_SECONDS), "everything is committed"
    if not row.kills:
        found = Counter(client.bodies(name))
        assert found | Counter({maybe_again: 0}) == expected | Counter({maybe_again: found[maybe_again]})


def _all_is_committed(row: Row) -> bool:
    try:
        with SyncAdmin(row.cluster.namesrv) as admin:
            return all((queue.committed or 0) == queue.end for queue in admin.offsets(row.group, row.topic))
    except (ClientError, TimeoutError):
        return False  # there is no leader yet
