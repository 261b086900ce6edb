"""JSON bodies: routes in both dialects, heartbeats of every client, registrations, locks, names, tags, compression."""

import random
import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dledger_remoting.bodies import ConsumerList, KVTable, TopicList, decode_body, encode_body
from dledger_remoting.compression import Compression, compress, decompress
from dledger_remoting.errors import BodyError, InvalidParameter, SubscriptionParseFailed
from dledger_remoting.fastjson import encode_fastjson, to_standard_json
from dledger_remoting.filters.tags import TagFilter, java_hash, tag_code
from dledger_remoting.heartbeat import (
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    HeartbeatData,
    MessageModel,
    SubscriptionData,
    decode_heartbeat,
)
from dledger_remoting.registration import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfigSerializeWrapper,
    decode_registration,
    encode_compressed_registration,
    encode_registration,
    registration_crc,
    registration_steps,
)
from dledger_remoting.route import (
    BrokerData,
    ClusterInfo,
    QueueData,
    TopicRouteData,
    decode_cluster_info,
    decode_route,
    encode_cluster_info,
    encode_route,
    wants_standard_json,
)
from dledger_remoting.topics import (
    MessageQueue,
    SubscriptionGroupConfig,
    TopicConfig,
    is_system_group,
    is_system_topic,
    retry_topic,
    validate_group,
    validate_topic,
)

# Routes

ROUTE = TopicRouteData(
    [QueueData("broker-a", 4, 4, 6, 0)],
    [BrokerData("broker-a", "DefaultCluster", {2: "10.0.0.2:10911", 0: "10.0.0.1:10911"})],
)
LEGACY_ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911",2:"10.0.0.2:10911"},"brokerName":"broker-a",'
    b'"cluster":"DefaultCluster","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":'
    b'"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
)
STANDARD_ROUTE = LEGACY_ROUTE.replace(b"{0:", b'{"0":').replace(b",2:", b',"2":')


def test_a_route_has_exactly_the_text_that_each_kind_of_client_reads():
    assert encode_route(ROUTE, standard=False) == LEGACY_ROUTE
    assert encode_route(ROUTE, standard=True) == STANDARD_ROUTE
    assert decode_route(LEGACY_ROUTE) == ROUTE == decode_route(STANDARD_ROUTE)
    assert encode_route(TopicRouteData(order_topic_conf="broker-a:4"), standard=True) == (
        b'{"brokerDatas":[],"filterServerTable":{},"orderTopicConf":"broker-a:4","queueDatas":[]}'
    )
    not_ascii = TopicRouteData([], [BrokerData("é", "C")])
    assert b'"brokerName":"\\u00e9"' in encode_route(not_ascii, standard=True)
    assert '"brokerName":"é"'.encode() in encode_route(not_ascii, standard=False)


def test_equal_routes_are_equal_bytes_whatever_their_order():
    datas = [BrokerData("b", "C", {1: "y", 0: "x"}), BrokerData("a", "C", {0: "z"})]
    queues = [QueueData("b"), QueueData("a")]
    one = TopicRouteData(queues, datas)
    other = TopicRouteData(queues[::-1], [datas[1], BrokerData("b", "C", {0: "x", 1: "y"})])
    assert encode_route(one, standard=False) == encode_route(other, standard=False)


@pytest.mark.parametrize(
    ("version", "asked", "expected"), [(317, None, False), (400, False, False), (401, None, True), (63, True, True)]
)
def test_the_dialect_depends_on_version_and_wish(version, asked, expected):
    assert wants_standard_json(version, asked) is expected


def test_cluster_information_in_both_dialects():
    info = ClusterInfo({"b": BrokerData("b", "C", {0: "x"})}, {"C": ["b"]})
    legacy = encode_cluster_info(info, standard=False)
    assert legacy == (
        b'{"brokerAddrTable":{"b":{"brokerAddrs":{0:"x"},"brokerName":"b","cluster":"C","enableActingMaster":false}},'
        b'"clusterAddrTable":{"C":["b"]}}'
    )
    assert decode_cluster_info(legacy) == decode_cluster_info(encode_cluster_info(info, standard=True)) == info


# fastjson


def test_maps_keyed_by_a_queue_have_objects_as_keys_and_texts_in_standard_json():
    offsets = {MessageQueue("broker-a", 1, "T1"): 5, MessageQueue("broker-a", 0, "T1"): 12}
    assert encode_fastjson(offsets) == (
        b'{{"brokerName":"broker-a","queueId":0,"topic":"T1"}:12,{"brokerName":"broker-a","queueId":1,"topic":"T1"}:5}'
    )
    standard = to_standard_json(b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:12}, 3 : [1,"a\\"}"]}')
    table = decode_body(dict[str, object], standard)
    assert table["3"] == [1, 'a"}']
    (key,) = decode_body(dict[str, dict[str, int] | list[object]], standard)["offsetTable"]
    assert decode_body(MessageQueue, str(key).encode()) == MessageQueue("b", 0, "T")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.integers(0, 99), inner.filter(lambda v: v is not None))
    ),
    max_leaves=8,
)


@given(json_values, st.booleans())
def test_both_dialects_hold_the_same(value, standard):
    plain = decode_body(object, to_standard_json(encode_fastjson(value, standard=standard)))
    assert plain == decode_body(object, encode_fastjson(value, standard=True))


@given(st.text('{}[]":,0a\\ ', max_size=30).map(str.encode) | st.binary(max_size=30))
def test_garbage_raises_nothing_but_a_body_error(data):
    for read in (to_standard_json, decode_route, decode_heartbeat, decode_registration):
        try:
            read(data)
        except BodyError:
            continue


def test_keys_within_keys_are_a_body_error():
    """Each level of nested keys would double the size of the levels inside: 40 levels would exceed any memory."""
    assert to_standard_json(b'{{"a":1}:{{"b":2}:3}}') == b'{"{\\"a\\":1}":{"{\\"b\\":2}":3}}'
    for depth in (2, 40, 200):
        with pytest.raises(BodyError, match="a key of an object that is a key itself"):
            decode_registration(b"{" * (depth + 1) + b'"a":1' + b"}:1" * depth + b"}")
    with pytest.raises(BodyError):
        decode_route(b'{"a":' * 100_000)
    with pytest.raises(BodyError, match="deeper"):
        to_standard_json(b"[" * 100_000)


def test_bodies_of_clients_are_not_parsed_in_the_slow_dialect():
    """A node that parses 16 MiB in this dialect answers nobody for half a minute, and loses its leadership."""
    assert decode_route(b"{queueDatas:[]}") == TopicRouteData()
    with pytest.raises(BodyError, match="heartbeat body is no JSON"):
        decode_heartbeat(b'{clientID:"c"}')


# Heartbeats


def test_the_heartbeat_of_ali_ons():
    body = (
        b'{"clientID":"192.0.2.2@24506","consumerDataSet":[{"groupName":"CG","consumeType":"CONSUME_PASSIVELY",'
        b'"messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[{"topic":'
        b'"T1","subString":"*","classFilterMode":false,"tagsSet":[],"codeSet":[],"subVersion":1795161763302}]}],'
        b'"producerDataSet":[]}'
    )
    how = (ConsumeType.PUSH, MessageModel.CLUSTERING, ConsumeFromWhere.FIRST_OFFSET)
    consumer = ConsumerData("CG", *how, [SubscriptionData("T1", sub_version=1795161763302)])
    assert decode_heartbeat(body) == HeartbeatData("192.0.2.2@24506", [], [consumer])


def test_the_heartbeat_of_cpp_has_ordinals_texts_for_numbers_and_no_empty_lists():
    body = (
        b'{"clientID":"7-127.0.0.1@DEFAULT","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"CG",'
        b'"messageModel":0,"subscriptionDataSet":[{"subString":"a || b","subVersion":"1700000000000",'
        b'"topic":"T1"}]}]}\n'
    )
    (consumer,) = decode_heartbeat(body).consumer_data_set
    assert (consumer.consume_type, consumer.message_model) == (ConsumeType.PUSH, MessageModel.BROADCASTING)
    assert consumer.consume_from_where is ConsumeFromWhere.FIRST_OFFSET
    (subscription,) = consumer.subscription_data_set
    assert (subscription.sub_version, subscription.expression_type) == (1700000000000, "TAG")
    assert (subscription.tags_set, subscription.code_set) == (["a", "b"], [97, 98])


def test_the_heartbeat_of_an_old_go_client():
    body = b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"Push","messageModel":"Clustering"}]}'
    (consumer,) = decode_heartbeat(body).consumer_data_set
    assert (consumer.consume_type, consumer.message_model) == (ConsumeType.PUSH, MessageModel.CLUSTERING)


NO_LONG = b'{"topic":"T","subVersion":9223372036854775808}'
"""Subscription with a number that Java could not hold."""


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{}", "clientID"),
        (b'{"clientID":"c","consumerDataSet":[{}]}', "groupName"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"NEVER"}]}', "consumeType.*NEVER"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","messageModel":2}]}', "messageModel.*2"),
        (b'{"clientID":"c","consumerDataSet":[{"groupName":"g","subscriptionDataSet":[%b]}]}' % NO_LONG, "subVersion"),
        (b"", "JSON"),
    ],
)
def test_a_heartbeat_that_cannot_be_read_says_which_field(body, words):
    with pytest.raises(BodyError, match=words):
        decode_heartbeat(body)


# Registrations

REGISTRATION = RegisterBrokerBody(
    TopicConfigSerializeWrapper(
        {"T1": TopicConfig("T1", 4, 4), "T2": TopicConfig("T2", 1, 1, 4, attributes={"message.type": "FIFO"})},
        DataVersion(3, 1700000000000, 12),
    )
)


def test_an_empty_registration_is_read_and_the_checksum_of_a_registration_is_java_s():
    assert decode_registration(b"") == RegisterBrokerBody()
    assert registration_crc(b"hello") == 0x3610A686


def test_the_registration_of_a_java_broker_is_read():
    body = (
        b'{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":12,"stateVersion":0,'
        b'"timestamp":1700000000000},"topicConfigTable":{"T1":{"topicName":"T1","readQueueNums":4,"writeQueueNums":4,'
        b'"perm":6,"topicFilterType":"SINGLE_TAG","topicSysFlag":0,"order":false,"attributes":{}}},'
        b'"topicQueueMappingInfoMap":{},"topicQueueMappingDetailMap":{}}}'
    )
    wrapper = decode_registration(body).topic_config_serialize_wrapper
    assert wrapper.data_version == DataVersion(0, 1700000000000, 12)
    assert wrapper.topic_config_table == {"T1": TopicConfig("T1", 4, 4)}


def compressed_registration(*topic_lines: bytes) -> bytes:
    def field(data: bytes) -> bytes:
        return struct.pack(">i", len(data)) + data

    version = b'{"counter":12,"stateVersion":3,"timestamp":1700000000000}'
    parts = [field(version), struct.pack(">i", len(topic_lines)), *map(field, topic_lines), field(b"[]")]
    return zlib.compress(b"".join(parts) + struct.pack(">i", 0))


def test_a_compressed_registration_loses_no_flag_of_a_topic():
    topics = {
        "T1": TopicConfig("T1", topic_sys_flag=3, order=True, attributes={"message.type": "FIFO"}),
        "T2": TopicConfig("T2", order=True),
        "T3": TopicConfig("T3"),
    }
    flagged = RegisterBrokerBody(TopicConfigSerializeWrapper(topics, DataVersion(1, 2, 3)))
    for body in (REGISTRATION, RegisterBrokerBody(), flagged):
        assert decode_registration(encode_registration(body)) == body
        assert decode_registration(encode_compressed_registration(body), compressed=True) == body
    java = compressed_registration(b"T1 4 4 6 SINGLE_TAG", b'T2 1 1 4 SINGLE_TAG {"message.type":"FIFO"}')
    assert decode_registration(java, compressed=True) == REGISTRATION


@pytest.mark.parametrize(
    "body",
    [
        *(b"x", compressed_registration()[:-5]),
        *map(compressed_registration, (b"T1 4 four 6 SINGLE_TAG", b"T1 4 2147483648 6 SINGLE_TAG", b"T1")),
        *map(zlib.compress, (b"\x00\x00\x00\x05{}", b"\x00\x00\x00\x02{}\xff")),
    ],
)
def test_a_damaged_compressed_registration_is_a_body_error(body):
    with pytest.raises(BodyError):
        decode_registration(body, compressed=True)


@pytest.mark.parametrize("compressed", [True, False])
def test_a_large_registration_is_read_in_slices_as_a_small_one_is(compressed):
    attributes = {"message.type": "FIFO", "odd": '},"{'}
    topics = {f"T{number}": TopicConfig(f"T{number}", attributes=attributes) for number in range(9_000)}
    body = RegisterBrokerBody(TopicConfigSerializeWrapper(topics, DataVersion(1, 2, 3)), ["f"])
    encode = encode_compressed_registration if compressed else encode_registration
    found = []

    def reading():
        found.append((yield from registration_steps(encode(body), compressed=compressed)))

    pauses = sum(1 for _ in reading())
    assert found == [body]
    assert pauses >= 2


@pytest.mark.parametrize(
    "table",
    [
        b'"a":{"topicName":"a","x":{' + b'"a":{},' * 100_000 + b'"a":{}}}',
        b'"a":{"topicName":"a","x":[' + b"{}," * 200_000 + b"{}]}",
        b'"a":{"topicName":"' + b'},"' * 200_000,
        b'"a":{"topicName":"' + b"x" * 600_000 + b'"}',
    ],
)
def test_a_large_registration_without_ends_of_entries_is_a_body_error(table):
    with pytest.raises(BodyError):
        decode_registration(b'{"topicConfigSerializeWrapper":{"topicConfigTable":{' + table + b"}}}")


# Small bodies


def test_small_bodies_have_the_names_and_defaults_of_the_protocol():
    assert encode_body(TopicList(["T1"])) == b'{"topicList":["T1"]}'
    assert encode_body(TopicList(["C"], "a:1")) == b'{"topicList":["C"],"brokerAddr":"a:1"}'
    assert encode_body(KVTable({"k": "v"})) == b'{"table":{"k":"v"}}'
    assert encode_body(ConsumerList(["id1"])) == b'{"consumerIdList":["id1"]}'
    assert decode_body(TopicConfig, b'{"topicName":"T"}') == TopicConfig("T", 16, 16, 6, "SINGLE_TAG", 0, order=False)
    group = decode_body(SubscriptionGroupConfig, b'{"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"}}')
    assert (group.retry_queue_nums, group.retry_max_times, group.which_broker_when_consume_slowly) == (1, 16, 1)
    assert b'"consumeFromMinEnable":true' in encode_body(group)


@pytest.mark.parametrize(
    ("body_type", "text"),
    [
        (SubscriptionGroupConfig, b'{"groupName":"g","retryMaxTimes":2147483648}'),
        (SubscriptionGroupConfig, b'{"groupName":"g","brokerId":"9223372036854775808"}'),
        (TopicConfig, b'{"topicName":"T","topicSysFlag":-2147483649}'),
        (QueueData, b'{"brokerName":"b","perm":1e30}'),
        (DataVersion, b'{"counter":100000000000000000000}'),
    ],
)
def test_numbers_that_java_could_not_hold_are_refused(body_type, text):
    with pytest.raises(BodyError, match="Expected `int`"):
        decode_body(body_type, text)


# Names


def test_names_that_topics_and_groups_can_have():
    for topic in ("T1", "a-b_c%d|e", "x" * 127, retry_topic("g" * 120)):
        validate_topic(topic)
    validate_group("g" * 120)
    system = {name: is_system_topic(name) for name in ("TBW102", "rmq_sys_anything", "T1")}
    assert system == {"TBW102": True, "rmq_sys_anything": True, "T1": False}
    assert [is_system_group(name) for name in ("CID_RMQ_SYS_TRANS", "g")] == [True, False]


@pytest.mark.parametrize(
    ("validate", "name", "words"),
    [
        *((validate_topic, name, "empty") for name in ("", "  ")),
        *((validate_topic, name, "only contain") for name in ("a b", "é")),
        (validate_topic, "x" * 128, "128 characters"),
        *((validate_group, name, ".") for name in ("g" * 121, "a+b")),
    ],
)
def test_bad_names_say_what_to_change(validate, name, words):
    with pytest.raises(InvalidParameter, match=words):
        validate(name)


# Tags


@pytest.mark.parametrize(
    ("text", "code"),
    [
        *(("TagA", 2598919), ("T1#k0", 79072523), ("T1#UNIQ", -1321340953), ("polygenelubricants", -2147483648)),
        *(("中文", 646394), ("Aa", 2112), ("BB", 2112), ("", 0), ("😀", 1772899)),
    ],
)
def test_hashes_are_those_of_java(text, code):
    assert java_hash(text) == code
    assert tag_code(text) == code


def test_an_empty_filter_matches_everything_and_a_filter_without_a_tag_is_refused():
    for expression in (None, "", "*", " * "):
        everything = TagFilter.parse(expression)
        assert everything.matches_all
        assert everything.matches_tag(None)
    with pytest.raises(SubscriptionParseFailed, match="names no tag"):
        TagFilter.parse(" || ")


def test_a_filter_matches_its_tags_and_its_codes_also_their_doubles():
    tags = TagFilter.parse(" Aa ||TagB|| ")
    assert tags.tags == {"Aa", "TagB"}
    assert tags.codes == {java_hash("BB"), java_hash("TagB")}
    assert not tags.matches_tag("BB")
    assert tags.matches_tag("TagB")
    assert not tags.matches_tag(None)


def test_a_tag_filter_trims_its_tags_as_java_does():
    assert TagFilter.parse("\u3000a\xa0 || \x1fb\x00").tags == {"\u3000a\xa0", "b"}
    subscription = '{"topic":"T","subString":"\u3000a"}'
    body = f'{{"clientID":"c","consumerDataSet":[{{"groupName":"g","subscriptionDataSet":[{subscription}]}}]}}'
    (consumer,) = decode_heartbeat(body.encode()).consumer_data_set
    assert consumer.subscription_data_set[0].tags_set == ["\u3000a"]


def test_only_some_filters_of_long_expressions_are_kept():
    long = ["||".join(f"{number}-{tag}" for tag in range(200)) for number in range(65)]
    first = TagFilter.parse(long[0])
    assert TagFilter.parse(long[0]) is first
    for expression in long[1:]:
        TagFilter.parse(expression)
    assert TagFilter.parse(long[0]) is not first


# Compression


@given(st.binary(max_size=5000))
def test_compressed_bodies_survive(body):
    compressed, flag = compress(body)
    assert decompress(compressed, flag) == body
    assert decompress(zlib.compress(body), 0x1) == body
    assert decompress(body, 0) == body


def test_a_bomb_is_an_error_before_it_is_unpacked_and_damaged_data_is_an_error():
    with pytest.raises(BodyError, match="limit of 1000 bytes"):
        decompress(zlib.compress(bytes(1 << 24)), 0x1, 1000)
    for data in (b"", b"garbage", zlib.compress(b"hello")[:-3]):
        with pytest.raises(BodyError, match="zlib"):
            decompress(data, 0x1)


@pytest.mark.parametrize("algorithm", [Compression.LZ4, Compression.ZSTD])
def test_bodies_of_other_algorithms_are_read_whole_or_not_at_all(algorithm):
    body = random.Random(1).randbytes(50_000) + bytes(1 << 20)
    if algorithm == Compression.LZ4:
        compressed = pytest.importorskip("lz4.frame").compress(body)
    else:
        compressed = pytest.importorskip("zstandard").ZstdCompressor().compress(body)
    assert decompress(compressed, 0x1 | algorithm, len(body)) == body
    with pytest.raises(BodyError, match=f"limit of {len(body) - 1} bytes"):
        decompress(compressed, 0x1 | algorithm, len(body) - 1)
    for cut in (0, 6, len(compressed) // 2, len(compressed) - 1):
        with pytest.raises(BodyError, match=r"cut off|damaged"):
            decompress(compressed[:cut], 0x1 | algorithm)


def test_an_algorithm_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(BodyError, match="pip install zstandard"):
        decompress(b"x", 0x1 | Compression.ZSTD)
    with pytest.raises(BodyError, match="0x500"):
        decompress(b"x", 0x501)
