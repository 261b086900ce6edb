"""The configuration of a name server, read and changed over the wire."""

import pytest

from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.properties import told_configuration


async def test_the_configuration_can_be_read_and_some_of_it_changed(client):
    assert b"enableTopicList=true\n" in (await client.call(319)).body
    assert (await client.call(318, body=b"# comment\n\nenableTopicList = false")).code == 0
    assert b"enableTopicList=false\n" in (await client.call(319)).body
    answer = await client.call(206)
    assert (answer.code, answer.remark) == (1, "topic lists are disabled: enable_topic_list = false")


def told(**keys) -> dict[str, str]:
    return dict(line.split("=", 1) for line in told_configuration(NameServerConfig(**keys)).decode().splitlines())


def test_the_configuration_is_told_in_rocketmqs_words():
    table = told(idle_timeout_ms=60_000, log_levels={"a": "INFO"})
    assert (table["orderMessageEnable"], table["enableTopicList"], table["enableAllTopicList"]) == (
        "false",
        "true",
        "true",
    )
    assert (table["tls.server.mode"], table["tls.server.certPath"]) == ("disabled", "")
    assert (table["serverChannelMaxIdleTimeSeconds"], table["max_routes"], table["log_levels"]) == (
        "60",
        "1000000",
        "a-INFO",
    )
    assert not {"order_message_enable", "tls_cert_file", "idle_timeout_ms"} & table.keys()
    assert "None" not in table.values()
    assert told(idle_timeout_ms=1_500)["idle_timeout_ms"] == "1500", "no whole seconds"


def test_where_secrets_lie_is_not_told(tmp_path):
    text = told_configuration(NameServerConfig(access_key_file=tmp_path / "in1", tls_key_file=tmp_path / "in2"))
    assert str(tmp_path).encode() not in text


async def test_both_names_of_a_key_can_be_set(client):
    for line, told in ((b"orderMessageEnable=true", b"true"), (b"order_message_enable=false", b"false")):
        assert (await client.call(318, body=line)).code == 0
        assert b"\norderMessageEnable=%b\n" % told in (await client.call(319)).body


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"kvConfigPath=/x", 16),
        (b"port=1", 29),
        (b"nonsense=1", 29),
        (b"enableTopicList", 29),
        (b"enableTopicList=maybe", 29),
        (b"\xff", 1),
    ],
)
async def test_a_change_that_is_not_allowed_changes_nothing(client, body, code):
    before = (await client.call(319)).body
    assert (await client.call(318, body=body)).code == code
    assert (await client.call(319)).body == before
