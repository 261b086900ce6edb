"""Options: the accepted values, and refusals that name the option, its value and the allowed values."""

import pickle
import re
from pathlib import Path

import pytest

from dledger_remoting import topics
from dledger_remoting.pop import Retry, pop_retry_topic
from dledger_spark.declared_options import options_table
from dledger_spark.errors import OptionError
from dledger_spark.needed_rights import rights_table
from dledger_spark.offsets import EARLIEST, LATEST, Queue, QueueNumbers, from_json, to_json
from dledger_spark.options import read_options, write_options
from dledger_spark.schema import NAMES, columns_table
from dledger_spark.source import DledgerDataSource
from dledger_spark.wanted import is_broker_written, is_left_out

BASE = {"namesrv": "a:1;b:2", "subscribe": "t"}


def test_defaults_are_those_of_the_kafka_source_and_names_and_words_are_read_in_any_case() -> None:
    batch, stream = read_options(BASE, "batch"), read_options(BASE, "stream")
    assert batch.namesrv == ("a:1", "b:2")
    assert (batch.starting, batch.ending, stream.starting) == (EARLIEST, LATEST, LATEST)
    assert (batch.mode, stream.mode) == ("segments", "queues")
    assert (batch.fail_on_data_loss, batch.read_from, stream.max_trigger_delay_s) == (True, "follower", 900)
    assert batch.bad_records == stream.bad_records == "FAILFAST"
    assert batch.columns == tuple(name for name in NAMES if name not in ("headers", "_corrupt_record"))
    everything = read_options(BASE | {"includeHeaders": "true", "badRecords": "Permissive"}, "batch")
    assert (everything.columns, everything.bad_records) == (NAMES, "PERMISSIVE")
    shouted = {"NAMESRV": "a:1", "SUBSCRIBE": "t", "readfrom": "ANY", "failondataloss": "FALSE"}
    options = read_options(shouted, "batch")
    assert (options.read_from, options.fail_on_data_loss, options.roles) == ("any", False, "follower,learner,leader")


@pytest.mark.parametrize(
    ("given", "name", "hint"),
    [
        ({"subscribe": "t"}, "namesrv", "required"),
        ({"namesrv": "a"}, "namesrv", "host:port"),
        ({"namesrv": "a..b:1"}, "namesrv", "is no host name"),
        ({"namesrv": "a:1"}, "subscribe", "subscribePattern"),
        (BASE | {"assign": '{"t":[0]}'}, "subscribe", "contradicts 'assign'"),
        (BASE | {"startingOffsets": "latest"}, "startingOffsets", "earliest"),
        (BASE | {"endingOffsets": "earliest"}, "endingOffsets", "latest"),
        (BASE | {"startingOffsets": "{}]"}, "startingOffsets", "JSON"),
        (BASE | {"startingTimestamp": "5", "startingOffsets": "earliest"}, "startingOffsets", "startingTimestamp"),
        (BASE | {"startingTimestamp": "-5"}, "startingTimestamp", "integers from 0"),
        (BASE | {"maxOffsetsPerTrigger": "5"}, "maxOffsetsPerTrigger", "not an option of a batch"),
        (BASE | {"mode": "fast"}, "mode", "segments, queues, auto"),
        (BASE | {"mode": "auto"}, "mode", "only streams choose"),
        (BASE | {"maxRecordsPerPartition": "5"}, "maxRecordsPerPartition", "mode=queues"),
        (BASE | {"minPartitions": "0"}, "minPartitions", "integers from 1"),
        (BASE | {"readFrom": "leaders"}, "readFrom", "follower, learner, any, leader"),
        (BASE | {"readTimeout": "soon"}, "readTimeout", "30s"),
        (BASE | {"pinLease": "2h"}, "pinLease", "3600"),
        (BASE | {"mode": "queues", "pinLease": "5m"}, "pinLease", "mode=segments"),
        (BASE | {"columns": "value,nothing"}, "columns", "log_index"),
        (BASE | {"columns": "value", "includeHeaders": "true"}, "columns", "includeHeaders"),
        (BASE | {"tags": "||"}, "tags", "names no tag"),
        (BASE | {"sql": "amount >"}, "sql", "line 1, column 9"),
        ({"namesrv": "a:1", "subscribe": "rmq_sys_REVIVE_LOG_DefaultCluster"}, "subscribe", "brokers' own"),
        ({"namesrv": "a:1", "subscribePattern": "("}, "subscribePattern", "regular expression"),
        ({"namesrv": "a:1", "assign": '{"t":[-1]}'}, "assign", "queue id"),
        ({"namesrv": "a:1", "assign": "[]"}, "assign", "JSON"),
        ({"namesrv": "a:1", "assign": '{"t":[]}'}, "assign", "has no queue"),
        ({"namesrv": "a:1", "assign": '{"t":{}}'}, "assign", "without queues"),
        (BASE | {"startingOffsets": '{"t":{"0":-3}}'}, "startingOffsets", "from -2 on"),
        (BASE | {"endingOffsets": '{"t":{"0":-2}}'}, "endingOffsets", "from -1 on"),
        (BASE | {"startingOffsetsByTimestamp": '{"t":{"0":-1}}'}, "startingOffsetsByTimestamp", "from 0 on"),
        (BASE | {"startingTimestamp": "9", "endingTimestamp": "8"}, "startingTimestamp", "after endingTimestamp"),
        (BASE | {"pin": ""}, "pin", "empty"),
        (BASE | {"pin": "ä" * 128}, "pin", "at most 255 bytes"),
        (BASE | {"startingTimestamp": "9223372036854775808"}, "startingTimestamp", "up to 9223372036854775807"),
    ],
)
def test_a_wrong_batch_option_is_named_with_its_value_and_the_allowed_ones(
    given: dict[str, str], name: str, hint: str
) -> None:
    with pytest.raises(OptionError, match=re.escape(hint)) as raised:
        read_options(given, "batch")
    assert raised.value.name == name
    assert repr(given.get(name)) in str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_the_value_of_an_unknown_option_appears_in_no_error() -> None:
    """It may be a secret under a misspelled name."""
    given = BASE | {"secretKey": "marked-secret"}
    for refuse in (
        lambda: DledgerDataSource(given),
        lambda: read_options(given, "batch"),
        lambda: write_options({"secretKey": "marked-secret", "namesrv": "a:1"}, "stream sink"),
    ):
        with pytest.raises(OptionError, match="option 'secretKey' is no") as raised:
            refuse()
        for error in (raised.value, pickle.loads(pickle.dumps(raised.value))):
            assert "marked-secret" not in repr(error) + str(error)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        (BASE | {"mode": "segments"}, "mode"),
        (BASE | {"mode": "auto", "maxRecordsPerPartition": "5"}, "maxRecordsPerPartition"),
        (BASE | {"mode": "auto", "pin": "p"}, "pin"),
        (BASE | {"endingOffsets": "latest"}, "endingOffsets"),
        (BASE | {"minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"}, "minOffsetsPerTrigger"),
        (BASE | {"maxTriggerDelay": "1m"}, "maxTriggerDelay"),
        (BASE | {"groupId": "g", "groupIdPrefix": "p"}, "groupId"),
        (BASE | {"groupId": "no spaces"}, "groupId"),
    ],
)
def test_a_wrong_stream_option_is_named(given: dict[str, str], name: str) -> None:
    with pytest.raises(OptionError) as raised:
        read_options(given, "stream")
    assert raised.value.name == name


def test_a_sink_takes_its_own_options_and_sparks() -> None:
    options = write_options({"namesrv": "a:1", "topic": "t", "checkpointLocation": "/c", "path": "/p"}, "stream sink")
    assert (options.topic, options.job_id, options.delivery_timeout_s) == ("t", None, None)
    with pytest.raises(OptionError, match="not an option of a stream sink"):
        write_options({"namesrv": "a:1", "jobId": "j"}, "stream sink")


def test_a_groups_name_made_from_a_prefix_is_the_same_after_a_restart() -> None:
    first, again = (read_options(BASE | {"groupIdPrefix": "spark"}, "stream").group_id for _ in range(2))
    other = read_options(BASE | {"groupIdPrefix": "spark", "subscribe": "u"}, "stream").group_id
    assert first == again != other
    assert first is not None
    assert re.fullmatch("spark-[0-9a-f]{8}", first)


def test_offsets_are_written_as_documented_and_read_back() -> None:
    offsets = {Queue("T", "broker-a", 0): 23, Queue("T", "broker-a", 10): 1, Queue("S", "broker-b", 2): 0}
    document = to_json(offsets)
    assert document == {"v": 1, "topics": {"S": {"broker-b": {"2": 0}}, "T": {"broker-a": {"0": 23, "10": 1}}}}
    assert from_json(document) == offsets


ALL_FORMS = (
    '{"t":{"0":5,"1":-2}}',
    '{"t":{"broker-a":{"0":5,"1":-2}}}',
    '{"v":1,"topics":{"t":{"broker-a":{"0":5,"1":-2}}}}',
)
OTHER_SHAPES = (
    *('{"t":{"broker-a":5}}', '{"t":{"broker-a":{"x":5}}}', '{"t":5}', '{"t":{"0":"5"}}'),
    *('{"t":{"broker-a":{"0":{"0":5}}}}', '{"t":{"broker-a":{"0":9223372036854775808}}}'),
)


@pytest.mark.parametrize("text", ALL_FORMS)
def test_all_forms_of_offsets_mean_the_same(text: str) -> None:
    queues = [Queue("t", "broker-a", 0), Queue("t", "broker-a", 1)]
    assert QueueNumbers.parse("startingOffsets", text, EARLIEST).resolve(queues) == {queues[0]: 5, queues[1]: -2}


@pytest.mark.parametrize("text", OTHER_SHAPES)
def test_offsets_of_another_shape_name_the_option(text: str) -> None:
    with pytest.raises(OptionError, match="option 'startingOffsets' is"):
        QueueNumbers.parse("startingOffsets", text, EARLIEST)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"t":{"0":5}}', "name them: a, b"),
        ('{"t":{"a":{"0":5}}}', "missing: t/b/0"),
        ('{"t":{"a":{"0":5,"1":5},"b":{"0":5}}}', "not read: t/a/1"),
    ],
)
def test_offsets_must_name_every_queue_and_no_other(text: str, words: str) -> None:
    with pytest.raises(OptionError, match=words):
        QueueNumbers.parse("startingOffsets", text, EARLIEST).resolve([Queue("t", "a", 0), Queue("t", "b", 0)])


def test_retries_and_dead_letters_are_read_by_their_names() -> None:
    for name in ("%RETRY%g", "%DLQ%g", pop_retry_topic("g", "orders", Retry.V1)):
        assert read_options({"namesrv": "a:1", "subscribe": name}, "batch").subscription.topics == (name,)


def test_streams_filter_by_tags_and_in_sql_too() -> None:
    wanted = read_options(BASE | {"tags": "a", "sql": "n > 1"}, "stream").row_filter
    assert (wanted.tags, wanted.sql) == ({"a"}, "n > 1")


@pytest.mark.parametrize(
    ("name", "table"), [("options", options_table()), ("columns", columns_table()), ("rights", rights_table())]
)
def test_the_guide_has_the_tables_of_the_code(name: str, table: str) -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "spark.md").read_text()
    shown = re.search(rf"<!-- {name}: [^\n]*-->\n(.*?)<!-- end -->", guide, re.DOTALL)
    assert shown is not None
    assert shown[1].strip() == table.strip()


def test_the_services_own_topics_are_those_of_the_brokers() -> None:
    own = [*topics.SYSTEM_TOPICS, topics.TIMER_TOPIC, topics.TRACE_TOPIC, "rmq_sys_new", "RMQ_SYS_TRANS_new\n"]
    for name in [*own, "orders", "RMQ_SYS", "my_rmq_sys_x", "TRANS_CHECK_MAX_TIME_TOPIC2"]:
        assert is_broker_written(name) == topics.is_broker_written(name), name
        assert is_left_out(name) or not topics.is_system_topic(name), name
    assert is_left_out("%RETRY%g")
    assert is_left_out("%DLQ%g")
    assert all(is_left_out(pop_retry_topic("g", "orders", retry)) for retry in (Retry.V1, Retry.V2))
    assert is_left_out("rmq_sys_REVIVE_LOG_DefaultCluster")
    assert not any(map(is_left_out, ("orders", "RMQ_SYS", "my_rmq_sys_x", "TRANS_CHECK_MAX_TIME_TOPIC2")))


@pytest.mark.parametrize(
    ("name", "value"),
    [("subscribe", "t,rmq_sys_wheel_timer"), ("assign", '{"RMQ_SYS_TRANS_HALF_TOPIC":{"broker-a":[0]}}')],
)
def test_an_internal_topic_of_the_brokers_is_refused(name: str, value: str) -> None:
    with pytest.raises(OptionError, match="is the brokers' own, which nobody else reads: name the topics"):
        read_options({"namesrv": "a:1", name: value}, "batch")
