"""The configuration of a name server, read and changed over the wire."""

import pytest

from dledger_namesrv.config import NameServerConfig
from dledger_namesrv.properties import told_configuration


async def test_the_configuration_can_be_read_and_some_of_it_changed(client):
    assert b"enableTopicList=true\n" in (await client.call(319)).body
    assert (await client.call(318, body=b"# comment\n\nenableTopicList = false")).code == 0
    assert b"enableTopicList=false\n" in (await client.call(319)).body
    assert await client.refusal(206) == (1, "topic lists are disabled: enable_topic_list = false")
    for line, told in ((b"orderMessageEnable=true", b"true"), (b"order_message_enable=false", b"false")):
        assert (await client.call(318, body=line)).code == 0, "both names of a key can be set"
        assert b"\norderMessageEnable=%b\n" % told in (await client.call(319)).body


def told(**keys) -> dict[str, str]:
    return dict(line.split("=", 1) for line in told_configuration(NameServerConfig(**keys)).decode().splitlines())


def test_the_configuration_is_told_in_rocketmqs_words():
    table = told(idle_timeout_ms=60_000, log_levels={"a": "INFO"})
    expected = {
        "orderMessageEnable": "false", "enableTopicList": "true", "enableAllTopicList": "true", "max_routes": "1000000",
        "tls.server.mode": "disabled", "tls.server.certPath": "", "serverChannelMaxIdleTimeSeconds": "60",
        "log_levels": "a-INFO",
    }  # fmt: skip
    assert {key: table[key] for key in expected} == expected
    assert not {"order_message_enable", "tls_cert_file", "idle_timeout_ms"} & table.keys()
    assert "None" not in table.values()
    assert told(idle_timeout_ms=1_500)["idle_timeout_ms"] == "1500", "no whole seconds"


def test_the_reported_configuration_omits_paths_of_secrets(tmp_path):
    secrets = ("access_key_file", "metrics_token_file", "tls_key_file")
    text = told_configuration(NameServerConfig(**{key: tmp_path / key for key in secrets}))
    assert str(tmp_path).encode() not in text


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
