"""Traces in the format of RocketMQ's clients, and bodies with any other content."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from dledger_remoting.traces import (
    DeliveryTrace,
    EndTrace,
    HandlingTrace,
    RecallTrace,
    SendTrace,
    decode_traces,
    encode_trace,
    traces_about,
)

PUB = (
    "Pub\x011700000000123\x01DefaultRegion\x01PG\x01orders\x01ID\x01a\x01k1 k2\x01127.0.0.1:10911\x015\x013\x010"
    "\x01OFF\x01true"
)
SENT = SendTrace(
    1700000000123, "DefaultRegion", "PG", "orders", "ID", "a", "k1 k2", "127.0.0.1:10911", 5, 3, 0, "OFF", True
)
GOLDEN = [
    (SENT, PUB),
    (RecallTrace(17, "R", "PG", "T", "ID", False), "Recall\x0117\x01R\x01PG\x01T\x01ID\x01false"),
    (
        EndTrace(17, "R", "PG", "T", "ID", "", "", "h:1", 2, "TX", "COMMIT_MESSAGE", True),
        "EndTransaction\x0117\x01R\x01PG\x01T\x01ID\x01null\x01null\x01h:1\x012\x01TX\x01COMMIT_MESSAGE\x01true",
    ),
    (DeliveryTrace(17, "", "CG", "RQ", "ID", 2, ""), "SubBefore\x0117\x01null\x01CG\x01RQ\x01ID\x012\x01null"),
    (HandlingTrace("RQ", "ID", 9, False, "k", 4, 18, "CG"), "SubAfter\x01RQ\x01ID\x019\x01false\x01k\x014\x0118\x01CG"),
]


def test_each_trace_is_the_text_that_rocketmq_writes():
    for trace, text in GOLDEN:
        assert encode_trace(trace) == text + "\x02"
    assert decode_traces("".join(text + "\x02" for _, text in GOLDEN).encode()).traces == [one for one, _ in GOLDEN]


def test_traces_of_older_and_newer_clients_are_read():
    without_offset_id = PUB.replace("\x01OFF", "")
    with_host = PUB + "\x01192.0.2.1"
    short = "SubAfter\x01RQ\x01ID\x019\x01true\x01k\x010"
    more = "SubBefore\x0117\x01R\x01CG\x01RQ\x01ID\x012\x01k\x01192.0.2.1\x01more"
    traces, unreadable = decode_traces(f"{without_offset_id}\x02{with_host}\x02{short}\x02{more}".encode())
    assert unreadable == 0
    assert [getattr(traces[0], name) for name in ("offset_message_id", "succeeded")] == ["", True]
    assert [getattr(traces[1], name) for name in ("offset_message_id", "host")] == ["OFF", "192.0.2.1"]
    assert traces[2] == HandlingTrace("RQ", "ID", 9, True, "k", 0)
    assert getattr(traces[3], "host", "") == "192.0.2.1"


def test_invalid_traces_are_counted_and_the_others_are_read():
    broken = PUB.replace("\x015\x01", "\x01five\x01")
    body = f"{PUB}\x02{broken}\x02Pub\x011\x02Sub\x01x\x02\x02{PUB}"
    assert decode_traces(body.encode()) == ([SENT, SENT], 3)


TEXTS = st.one_of(
    st.sampled_from(["Pub", "SubBefore", "SubAfter", "EndTransaction", "Recall", "null", "true", "false", "\u0661"]),
    st.integers().map(str),
    st.text(max_size=8),
)


@given(st.lists(st.lists(TEXTS, max_size=16).map("\x01".join), max_size=8).map("\x02".join), st.binary(max_size=64))
def test_a_body_may_hold_anything(text, tail):
    traces, _ = decode_traces(text.encode(errors="surrogatepass") + tail)
    for trace in traces:
        assert decode_traces(encode_trace(trace).encode()).unreadable == 0


IDS = st.text("ABC-_%| \u00e9", max_size=12).filter(lambda text: text != "null")
NUMBERS = st.integers(-(10**17), 10**17)


@given(st.builds(SendTrace, NUMBERS, IDS, IDS, IDS, IDS, IDS, IDS, IDS, NUMBERS, NUMBERS, NUMBERS, IDS, st.booleans()))
def test_encoded_traces_are_read_back_equal(trace):
    assert decode_traces(encode_trace(trace).encode()) == ([trace], 0)


def test_the_trace_of_the_producer_comes_first_at_any_time_stamp():
    delivered = DeliveryTrace(17, "R", "CG", "RQ", "ID", 0, "")
    handled = HandlingTrace("RQ", "ID", 3, True, "", 0)
    late = msgspec.structs.replace(SENT, timestamp_ms=99)
    bodies = ["".join(map(encode_trace, traces)).encode() for traces in ([handled], [delivered, late], [late])]
    assert traces_about("ID", bodies) == [late, delivered, handled]
    assert traces_about("I", bodies) == []
