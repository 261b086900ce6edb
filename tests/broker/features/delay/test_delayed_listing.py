"""List of delayed messages (20033): what waits, the next one first, and page by page."""

from __future__ import annotations

import json

from served_broker import FakeClient

from dledger_broker.testing.environment import START_MS
from tests.broker.features.delay.delayed_brokers import fold_index, recall

LIST_DELAYED = 20033
INVALID_PARAMETER = 29


def listed(client: FakeClient, **ext: str) -> dict[str, object]:
    fold_index(client.broker)
    answer = client.call_from_disk(LIST_DELAYED, ext)
    assert answer.code == 0, answer.remark
    return json.loads(answer.body)


def wait(client: FakeClient, key: str, delay_ms: int) -> str:
    properties = f"UNIQ_KEY\x01{key}\x02TIMER_DELIVER_MS\x01{START_MS + delay_ms}\x02"
    return client.send_message("T1", b"later", i=properties).ext["recallHandle"]


def test_delayed_messages_are_listed_by_their_due_times_until_they_are_recalled(client: FakeClient) -> None:
    assert listed(client) == {"rows": [], "pending": 0}
    for key, delay_ms in (("K3", 90_000), ("K1", 60_000), ("K2", 70_000)):
        handle = wait(client, key, delay_ms)
    found = listed(client)
    assert found["pending"] == 3
    assert [(row["uniqueKey"], row["topic"], row["dueMs"] - START_MS) for row in found["rows"]] == [
        ("K1", "T1", 60_000),
        ("K2", "T1", 70_000),
        ("K3", "T1", 90_000),
    ]
    assert recall(client, handle).code == 0  # K2, the last one that was sent
    assert [row["uniqueKey"] for row in listed(client)["rows"]] == ["K1", "K3"]


def test_the_list_goes_on_behind_a_key_and_has_a_limit(client: FakeClient) -> None:
    for number in range(3):
        wait(client, f"K{number}", 60_000 + number)
    first = listed(client, maxRows="2")["rows"]
    assert [row["uniqueKey"] for row in first] == ["K0", "K1"]
    behind = {"afterDueMs": str(first[-1]["dueMs"]), "afterPosition": str(first[-1]["position"])}
    assert [row["uniqueKey"] for row in listed(client, **behind)["rows"]] == ["K2"]
    assert client.call(LIST_DELAYED, {"maxRows": "0"}).code == INVALID_PARAMETER
