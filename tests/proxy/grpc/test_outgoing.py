"""Messages of gRPC clients as brokers store them, and which are refused with which code."""

from __future__ import annotations

import gzip
import zlib

import pytest
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from dledger_proxy.grpc.answers import Refusal
from dledger_proxy.grpc.callers import Caller
from dledger_proxy.grpc.definition import messaging_pb2 as pb
from dledger_proxy.grpc.outgoing import (
    MAX_USER_PROPERTIES,
    MAX_USER_PROPERTIES_BYTES,
    Encoder,
    kind_of,
    request_topic,
)
from dledger_remoting.hosts import HostAddress
from dledger_remoting.properties import RESERVED_NAMES, parse_properties
from dledger_remoting.record import SYS_TRANSACTION_PREPARED
from dledger_remoting.speech import Speech

CALLER = Caller("client", Speech(HostAddress("10.1.2.3", 5)))
LIMIT = 1_000
ENCODER = Encoder(LIMIT, speaks=False)


def message(body=b"x", properties=None, **system):
    system = {"message_id": "id", **system}
    return pb.Message(
        topic=pb.Resource(name="t"),
        user_properties=properties or {},
        system_properties=pb.SystemProperties(**system),
        body=body,
    )


def encoded(made):
    return ENCODER.encode(CALLER, "t", made, kind_of(made))


def properties_of(made):
    return parse_properties(encoded(made).properties)


def test_a_message_is_stored_with_its_id_tag_keys_and_properties():
    stored = properties_of(message(properties={"a": "b"}, tag="T", keys=["k1", "k2"], trace_context="c"))
    assert stored == {
        "UNIQ_KEY": "id",
        "TAGS": "T",
        "KEYS": "k1 k2",
        "a": "b",
        "TRACE_CONTEXT": "c",
        "__BORNHOST": "10.1.2.3",
    }


def test_a_repeated_message_is_encoded_alike_although_its_born_time_is_another():
    first, second = (encoded(message(born_timestamp=Timestamp(seconds=at))) for at in (1, 2))
    assert (first.properties, first.body, first.idempotent) == (second.properties, second.body, True)
    assert (first.born_timestamp_ms, second.born_timestamp_ms) == (1_000, 2_000)


def test_a_delay_a_message_group_and_a_transaction_become_properties():
    assert properties_of(message(delivery_timestamp=Timestamp(seconds=7)))["TIMER_DELIVER_MS"] == "7000"
    assert properties_of(message(message_group="g"))["__SHARDINGKEY"] == "g"
    half = message(message_type=pb.TRANSACTION, orphaned_transaction_recovery_duration=Duration(seconds=9))
    stored = properties_of(half)
    assert (stored["TRAN_MSG"], stored["PGROUP"], stored["CHECK_IMMUNITY_TIME_IN_SECONDS"]) == ("true", "t", "9")
    assert (encoded(half).sys_flag, encoded(half).idempotent) == (SYS_TRANSACTION_PREPARED, False)


def test_a_body_in_gzip_is_stored_plain():
    assert encoded(message(gzip.compress(b"plain"), body_encoding=pb.GZIP)).body == b"plain"


def test_only_a_proxy_with_an_account_speaks_for_its_clients():
    assert encoded(message()).fields is None
    speaking = Encoder(LIMIT, speaks=True).encode(CALLER, "t", message(), pb.NORMAL)
    assert speaking.fields == {"dledgerForAddress": "10.1.2.3:5"}


BOMB = gzip.compress(b"0" * 5_000_000)


@pytest.mark.parametrize(
    ("made", "code"),
    [
        (message(b""), pb.MESSAGE_BODY_EMPTY),
        (message(b"x" * (LIMIT + 1)), pb.MESSAGE_BODY_TOO_LARGE),
        (message(BOMB, body_encoding=pb.GZIP), pb.MESSAGE_BODY_TOO_LARGE),
        (message(b"no gzip", body_encoding=pb.GZIP), pb.MESSAGE_CORRUPTED),
        (message(gzip.compress(b"cut")[:-4], body_encoding=pb.GZIP), pb.MESSAGE_CORRUPTED),
        (message(zlib.compress(b"zlib"), body_encoding=pb.GZIP), pb.MESSAGE_CORRUPTED),
        (message(message_id=" "), pb.ILLEGAL_MESSAGE_ID),
        (message(message_id="a\x01b"), pb.ILLEGAL_MESSAGE_ID),
        (message(tag="a|b"), pb.ILLEGAL_MESSAGE_TAG),
        (message(tag="  "), pb.ILLEGAL_MESSAGE_TAG),
        (message(keys=["\n"]), pb.ILLEGAL_MESSAGE_KEY),
        (message(message_group="g" * 65), pb.ILLEGAL_MESSAGE_GROUP),
        (message(message_group="\x7f"), pb.ILLEGAL_MESSAGE_GROUP),
        (message(properties={"TAGS": "x"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(properties={"a": "\x02"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(properties={"": "a"}), pb.ILLEGAL_MESSAGE_PROPERTY_KEY),
        (message(properties={f"p{n}": "" for n in range(MAX_USER_PROPERTIES + 1)}), pb.MESSAGE_PROPERTIES_TOO_LARGE),
        (message(properties={"a": "x" * MAX_USER_PROPERTIES_BYTES}), pb.MESSAGE_PROPERTIES_TOO_LARGE),
        (message(delivery_timestamp=Timestamp(seconds=-1)), pb.ILLEGAL_DELIVERY_TIME),
        (
            message(message_type=pb.TRANSACTION, orphaned_transaction_recovery_duration=Duration(seconds=4000)),
            pb.BAD_REQUEST,
        ),
        (
            message(message_group="g", delivery_timestamp=Timestamp(seconds=1)),
            pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
        ),
        (message(message_type=pb.DELAY), pb.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE),
    ],
)
def test_a_message_that_breaks_a_rule_is_refused_with_the_rules_code(made, code):
    with pytest.raises(Refusal) as refused:
        encoded(made)
    assert refused.value.code == code


def test_a_request_has_messages_and_one_topic():
    other = pb.Message(topic=pb.Resource(name="other"))
    for messages in ([], [message(), other], [message()] * 1_025):
        with pytest.raises(Refusal) as refused:
            request_topic(messages)
        assert refused.value.code == pb.MESSAGE_CORRUPTED


TEXTS = st.text(max_size=20)
SYSTEMS = st.builds(
    lambda **fields: pb.SystemProperties(**{name: value for name, value in fields.items() if value is not None}),
    tag=st.none() | TEXTS,
    keys=st.lists(TEXTS, max_size=3),
    message_id=TEXTS,
    body_encoding=st.sampled_from([pb.IDENTITY, pb.GZIP, pb.ENCODING_UNSPECIFIED]),
    message_type=st.sampled_from(pb.MessageType.values()),
    born_timestamp=st.none() | st.builds(Timestamp, seconds=st.integers(-(2**63), 2**63 - 1)),
    delivery_timestamp=st.none() | st.builds(Timestamp, seconds=st.integers(-(2**63), 2**63 - 1)),
    message_group=st.none() | TEXTS,
    trace_context=st.none() | TEXTS,
    orphaned_transaction_recovery_duration=st.none() | st.builds(Duration, seconds=st.integers(-10, 10_000)),
    priority=st.none() | st.just(1),
)


@given(SYSTEMS, st.dictionaries(TEXTS, TEXTS, max_size=4), st.binary(max_size=LIMIT + 5))
def test_any_message_is_either_encoded_or_refused_and_loses_nothing(system, properties, body):
    made = pb.Message(topic=pb.Resource(name="t"), user_properties=properties, system_properties=system, body=body)
    try:
        outgoing = encoded(made)
    except Refusal:
        return
    stored = parse_properties(outgoing.properties)
    assert {name: value for name, value in stored.items() if name not in RESERVED_NAMES} == properties
    assert stored["UNIQ_KEY"] == system.message_id
    assert -(2**63) <= outgoing.born_timestamp_ms < 2**63
