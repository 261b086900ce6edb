"""Queries for single messages, by key and by offset."""

from __future__ import annotations

from itertools import product

import pytest
from served_broker import FakeClient, assert_refused, bodies, records

from dledger_broker.features.queries import by_key


def test_messages_are_found_by_key_and_by_offset(client: FakeClient) -> None:
    client.send_message("T1", b"one", properties="KEYS\x01k1 k2\x02UNIQ_KEY\x01U1\x02")
    client.send_message("T1", b"two", properties="KEYS\x01k2\x02UNIQ_KEY\x01U2\x02")
    times = {"topic": "T1", "maxNum": "10", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    both = client.call_from_disk(12, {**times, "key": "k2"})
    assert bodies(both) == [b"two", b"one"]
    assert set(both.ext) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
    one = client.call_from_disk(12, {**times, "key": "U1", "_UNIQUE_KEY_QUERY": "true"})
    assert bodies(one) == [b"one"]
    assert client.call_from_disk(12, {**times, "key": "k9"}).code == 22
    position = records(one)[0].physical_offset
    assert records(client.call_from_disk(33, {"offset": str(position)})) == records(one)
    missing = client.call_from_disk(33, {"offset": str(position + 1)})
    assert (missing.code, missing.remark) == (1, f"can not find message by the offset, {position + 1}")


def test_a_message_is_found_among_many_messages_with_the_same_key_hash(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the answer says that there are too many. It never says that there is none."""
    same_hash = ["".join(pairs) for pairs in product(("Aa", "BB"), repeat=9)]
    key, others = same_hash[0], same_hash[1:]
    client.send_message("T1", b"the one", properties=f"KEYS\x01{key}\x02")
    for number in range(0, len(others), 8):
        client.send_message("T1", b"another", properties=f"KEYS\x01{' '.join(others[number : number + 8])}\x02")
    memory = client.broker.memory
    memory.run(memory.machine.keys.catch_up())
    asked = {"topic": "T1", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": str(2**62), "key": key}
    assert bodies(client.call_from_disk(12, asked)) == [b"the one"]
    monkeypatch.setattr(by_key, "MAX_LOOKED_AT", 50)
    answer = client.call_from_disk(12, asked)
    assert_refused(answer, 1, "ask for a shorter time")
