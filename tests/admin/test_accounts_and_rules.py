"""Accounts and rules from the command line, with the broker's own explanation of rules."""

from __future__ import annotations

from base64 import b64decode
from typing import ClassVar

import pytest
from command_fakes import Entered, as_json, dledger, fails_in_one_line, recording, run, use_fakes

from dledger_admin.commands import account_calls
from dledger_base.access_keys import access_keys
from dledger_client import AccessRule, AccountInfo, Credentials
from dledger_remoting.accounts import root_credentials
from dledger_remoting.plain_accounts import PlainAccountHeader
from tests.access_keys import KEY_FILE

KEY = ("--key-file", str(KEY_FILE))


class FakeAccountAdmin(Entered):
    """Account client that records requests and knows three accounts."""

    calls: ClassVar[list[tuple]] = []

    def __init__(self, namesrv: str, credentials: Credentials, *, tls: object = None) -> None:
        assert (credentials, tls) == (root_credentials(access_keys(KEY_FILE)), None)

    create = recording("create")
    put_plain = recording("plain")
    put_white_list = recording("white list")
    drop_earlier = recording("drop_earlier")
    delete = recording("delete")
    grant = recording("grant")
    revoke = recording("revoke")

    async def change(self, name, *, secret=None, is_enabled=None, keeps_earlier=False):
        self.calls.append(("change", name, secret, is_enabled, *["keeps"] * keeps_earlier))

    async def accounts(self):
        found = [AccountInfo("app", False, True), AccountInfo("gone", False, False), AccountInfo("root2", True, True)]
        return {"broker-a": found}

    async def rules(self):
        rules = [
            AccessRule("Topic:orders*", ("Pub",), ("10.0.0.0/8",)),
            AccessRule("Topic:orders-old", ("Pub",), (), False),
            AccessRule("Group:*", ("Sub",), (), True, True),
        ]
        return {"broker-a": {"app": rules}}


@pytest.fixture(autouse=True)
def cluster(monkeypatch):
    use_fakes(monkeypatch)
    FakeAccountAdmin.calls.clear()
    monkeypatch.setattr(account_calls, "AccountAdmin", FakeAccountAdmin)


def test_new_key_prints_a_fresh_key_that_a_key_file_accepts(tmp_path):
    key = dledger("account", "new-key").strip()
    assert len(b64decode(key)) == 32
    path = tmp_path / "keys"
    path.touch(0o600)
    path.write_text(key)
    assert root_credentials(access_keys(path)).access_key == "dledger.root"
    assert dledger("account", "new-key").strip() != key


def test_a_secret_is_made_and_shown_where_an_account_is_made_or_rotated():
    made = as_json("account", "create", "app", "--admin", *KEY)
    rotated = as_json("account", "rotate", "app", *KEY)
    assert FakeAccountAdmin.calls == [
        ("create", "app", made["secret"], True),
        ("change", "app", rotated["secret"], None),
    ]
    kept = as_json("account", "rotate", "app", "--keep-earlier", *KEY)
    assert as_json("account", "drop-earlier", "app", *KEY)["state"] == "has its newest secret alone"
    assert FakeAccountAdmin.calls[2:] == [("change", "app", kept["secret"], None, "keeps"), ("drop_earlier", "app")]
    assert len({made["secret"], rotated["secret"], kept["secret"]}) == 3
    assert len(made["secret"]) >= 32
    assert "secret: " in dledger("account", "create", "app", *KEY)


def test_accounts_are_disabled_enabled_deleted_and_listed():
    assert as_json("account", "disable", "app", *KEY) == {"account": "app", "state": "disabled"}
    dledger("account", "enable", "app", *KEY)
    dledger("account", "delete", "--yes", "app", *KEY)
    assert "no account 'nobody'" in fails_in_one_line("account", "delete", "--yes", "nobody", *KEY)
    assert FakeAccountAdmin.calls == [("change", "app", None, False), ("change", "app", None, True), ("delete", "app")]
    first, *_ = as_json("account", "list", *KEY)
    assert first == {"broker_group": "broker-a", "account": "app", "admin": False, "enabled": True}
    assert "root2" in dledger("account", "list", *KEY)


def test_rules_are_granted_revoked_and_listed():
    dledger("acl", "grant", "app", "Topic:orders*", "Pub", "Sub", "--source", "10.0.0.0/8", *KEY)
    dledger("acl", "grant", "app", "Topic:*", "Pub", "--deny", "--default", *KEY)
    dledger("acl", "revoke", "app", "Topic:*", "--default", *KEY)
    dledger("acl", "revoke", "app", *KEY)
    assert FakeAccountAdmin.calls == [
        ("grant", "app", AccessRule("Topic:orders*", ("Pub", "Sub"), ("10.0.0.0/8",))),
        ("grant", "app", AccessRule("Topic:*", ("Pub",), (), False, True)),
        ("revoke", "app", "Topic:*", True),
        ("revoke", "app", None, False),
    ]
    assert len(as_json("acl", "list", "app", *KEY)) == 3
    assert as_json("acl", "list", "other", *KEY) == []
    assert "orders-old" in dledger("acl", "list", *KEY)


@pytest.mark.parametrize(
    ("words", "verdict", "code"),
    [
        (("app", "Pub", "Topic:orders-new", "--source", "10.1.1.1"), "allowed", 0),
        (("app", "Pub", "Topic:orders-new"), "no rule allows it", 1),
        (("app", "Pub", "Topic:orders-old", "--source", "10.1.1.1"), "denied by a rule", 1),
        (("app", "Sub", "Group:readers"), "allowed", 0),
        (("app", "Sub", "Topic:%RETRY%readers"), "allowed", 0),
        (("gone", "Sub", "Group:readers"), "the account is disabled", 1),
        (("root2", "Log", "Cluster:c"), "allowed", 0),
    ],
)
def test_acl_test_prints_the_verdict_for_an_account(words, verdict, code):
    result = run("acl", "test", *words, *KEY)
    assert (result.output.strip(), result.exit_code) == (f"broker-a: {verdict}", code)


def test_a_refused_account_or_acl_command_fails_with_one_line(tmp_path):
    wrong = tmp_path / "keys"
    wrong.touch(0o600)
    wrong.write_text("c2hvcnQ=\n")
    assert "line 1 is no key" in fails_in_one_line("account", "list", "--key-file", str(wrong))
    assert "cannot be read" in fails_in_one_line("account", "list", "--key-file", str(tmp_path / "absent"))
    assert "there is no account 'nobody'" in fails_in_one_line("acl", "test", "nobody", "Pub", "Topic:t", *KEY)
    assert "one topic, group or cluster" in fails_in_one_line("acl", "test", "app", "Pub", "Topic:t*", *KEY)


PLAIN_ACL = """\
# as it comes with RocketMQ
globalWhiteRemoteAddresses:
  - 10.10.103.*
  - '192.168.0.1-50'

accounts:
  - accessKey: RocketMQ
    secretKey: 12345678  # a number is a text
    whiteRemoteAddress:
    admin: false
    defaultTopicPerm: DENY
    defaultGroupPerm: SUB
    topicPerms:
      - topicA=DENY
      - topicB=PUB|SUB
    groupPerms:
    - groupA=DENY

  - accessKey: "rocketmq2"
    secretKey: a#b
    whiteRemoteAddress: 192.168.1.{1,7}
    admin: true
    topicPerms: []
"""


def test_the_accounts_of_a_plain_acl_file_are_made_with_their_permissions(tmp_path):
    path = tmp_path / "plain_acl.yml"
    path.write_text(PLAIN_ACL)
    lines = as_json("account", "import", str(path), *KEY)
    assert lines == [{"account": name, "state": "imported"} for name in ("RocketMQ", "rocketmq2")]
    perms = ("topicA=DENY,topicB=PUB|SUB", "groupA=DENY")
    assert FakeAccountAdmin.calls == [
        ("plain", PlainAccountHeader("RocketMQ", "12345678", "", False, "DENY", "SUB", *perms)),
        ("plain", PlainAccountHeader("rocketmq2", "a#b", "192.168.1.{1,7}", True, "DENY", "DENY", "", "")),
        ("white list", ["10.10.103.*", "192.168.0.1-50"]),
    ]
    path.write_text("accounts: []\n")
    FakeAccountAdmin.calls.clear()
    assert "no account" in dledger("account", "import", str(path), *KEY)
    assert FakeAccountAdmin.calls == [], "a file that says nothing of white lists changes none"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("accounts:\n  - accessKey: app\n", "account 1 has no secretKey"),
        ("accounts:\n  - secretKey: planted\n", "account 1 has no accessKey"),
        ("accounts:\n  - accessKey: app\n    secretKey: planted\n    admin: yes\n", "neither true nor false"),
        ("accounts:\n  - accessKey: app\n    secretKey: planted\n    perms: all\n", "has keys beside"),
        ("accounts:\n  - accessKey: app\n    secretKey: {planted: 1}\n", "line 3"),
        ("accounts:\n  - accessKey: app\n   secretKey: planted\n", "line 3"),
        ("accounts:\n  - accessKey: app\n      secretKey: planted\n", "line 3"),
        ("accounts:\n\t- accessKey: planted\n", "tab"),
        ("accounts:\n  - accessKey: app\n    accessKey: planted\n", "line 3"),
        ("accounts:\n" + 2 * "  - accessKey: app\n    secretKey: planted\n", "more than one account app"),
        ("accounts: planted\n", "no list"),
        ("planted: 1\n", "keys beside"),
        ("planted\n", "line 1"),
    ],
)
def test_a_plain_acl_file_that_is_not_understood_is_refused_whole_and_not_repeated(tmp_path, text, words):
    path = tmp_path / "plain_acl.yml"
    path.write_text(text)
    refusal = fails_in_one_line("account", "import", str(path), *KEY)
    assert words in refusal
    assert "planted" not in refusal
    assert FakeAccountAdmin.calls == []
