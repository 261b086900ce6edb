"""Single messages are found by key and by offset."""

from __future__ import annotations

from served_broker import FakeClient, records


def test_messages_are_found_by_key_and_by_offset(client: FakeClient) -> None:
    client.send_message("T1", b"one", properties="KEYS\x01k1 k2\x02UNIQ_KEY\x01U1\x02")
    client.send_message("T1", b"two", properties="KEYS\x01k2\x02UNIQ_KEY\x01U2\x02")
    times = {"topic": "T1", "maxNum": "10", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    both = client.call_from_disk(12, {**times, "key": "k2"})
    assert [record.body for record in records(both)] == [b"two", b"one"]
    assert set(both.ext) == {"indexLastUpdateTimestamp", "indexLastUpdatePhyoffset"}
    one = client.call_from_disk(12, {**times, "key": "U1", "_UNIQUE_KEY_QUERY": "true"})
    assert [record.body for record in records(one)] == [b"one"]
    assert client.call_from_disk(12, {**times, "key": "k9"}).code == 22
    position = records(one)[0].physical_offset
    assert records(client.call_from_disk(33, {"offset": str(position)})) == records(one)
    missing = client.call_from_disk(33, {"offset": str(position + 1)})
    assert (missing.code, missing.remark) == (1, f"can not find message by the offset, {position + 1}")
