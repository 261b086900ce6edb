"""Contexts: named clusters, the current one, and which cluster a command uses."""

from __future__ import annotations

import os
import stat
import tomllib

import pytest
from command_fakes import FakeAdmin, as_json, dledger, fails_in_one_line, refused, use_fakes

SECRET = "hunter2-is-secret"


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "config" / "contexts.toml"
    monkeypatch.setenv("DLEDGER_CONTEXTS", str(path))
    for name in [name for name in os.environ if name.startswith("DLEDGER_TLS") or name == "DLEDGER_CREDENTIALS"]:
        monkeypatch.delenv(name)
    return path


@pytest.fixture
def credentials(tmp_path):
    path = tmp_path / "credentials"
    path.write_text(f"ops\n{SECRET}\n")
    return path


@pytest.fixture
def asked(monkeypatch):
    """Return the list of what each command asks: name servers, and the variables of its account."""
    use_fakes(monkeypatch)
    calls = []

    class Noting(FakeAdmin):
        def __init__(self, namesrv, **signing):
            calls.append((namesrv, signing.get("credentials"), signing.get("tls")))
            super().__init__(namesrv)

    monkeypatch.setattr("dledger_admin.commands.client_calls.Admin", Noting)
    return calls


def test_the_file_of_contexts_is_private_and_holds_no_secret(file, credentials):
    dledger("context", "add", "prod", "--namesrv", "a:1;b:2", "--credentials", credentials, "--use")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert tomllib.loads(file.read_text()) == {
        "current": "prod",
        "contexts": {"prod": {"namesrv": "a:1;b:2", "credentials": str(credentials)}},
    }
    printed = dledger("context", "show") + dledger("context", "list") + str(as_json("context", "show", "prod"))
    assert "ops" in printed
    assert SECRET not in printed + file.read_text()


def test_contexts_are_added_used_listed_and_removed(file):
    assert "makes one" in dledger("context", "list")
    dledger("context", "add", "prod", "--namesrv", "a:1")
    dledger("context", "add", "test", "--namesrv", "b:2")
    assert as_json("context", "use", "test") == {"context": "test", "state": "used", "current": "test"}
    assert [(line["name"], line["current"]) for line in as_json("context", "list")] == [("prod", False), ("test", True)]
    assert "context 'test' already" in refused("context", "add", "test", "--namesrv", "c:3")
    dledger("context", "add", "test", "--namesrv", "c:3", "--replace")
    assert as_json("context", "show")["namesrv"] == "c:3"
    assert as_json("context", "remove", "test") == {"context": "test", "state": "removed", "current": ""}
    assert "no current context" in fails_in_one_line("context", "show")
    dledger("context", "use", "prod")
    assert dledger("context", "use", "--none") == "no context is current\n"


def test_a_command_uses_the_named_context_as_a_whole(file, asked, credentials, monkeypatch):
    dledger("context", "add", "prod", "--namesrv", "a:1", "--credentials", credentials)
    dledger("context", "add", "open", "--namesrv", "b:2", "--use")
    monkeypatch.setenv("DLEDGER_NAMESRV", "elsewhere:3")
    dledger("--context", "prod", "topic", "list")
    monkeypatch.setenv("DLEDGER_CREDENTIALS", str(credentials))
    dledger("--context", "open", "topic", "list")
    (first, account, _), (second, nobody, _) = asked
    assert (first, account.access_key, second, nobody) == ("a:1", "ops", "b:2", None)
    assert os.environ["DLEDGER_CREDENTIALS"] == str(credentials)


def test_the_current_context_counts_unless_another_cluster_is_given(file, asked, credentials, monkeypatch):
    dledger("context", "add", "prod", "--namesrv", "a:1", "--credentials", credentials, "--use")
    dledger("topic", "list")
    dledger("topic", "list", "--namesrv", "b:2")
    monkeypatch.setenv("DLEDGER_NAMESRV", "c:3")
    dledger("topic", "list")
    assert [(place, account is not None) for place, account, _ in asked] == [
        ("a:1", True),
        ("b:2", False),
        ("c:3", False),
    ]
    assert "DLEDGER_CREDENTIALS" not in os.environ


def test_the_context_may_stand_behind_the_command(file, asked):
    dledger("context", "add", "prod", "--namesrv", "a:1")
    dledger("context", "add", "test", "--namesrv", "b:2")
    dledger("--context", "prod", "topic", "list", "--context", "test")
    dledger("topic", "list", "--context", "prod")
    assert [place for place, _, _ in asked] == ["b:2", "a:1"]


def test_the_variable_names_a_context(file, asked, monkeypatch):
    dledger("context", "add", "prod", "--namesrv", "a:1")
    monkeypatch.setenv("DLEDGER_CONTEXT", "prod")
    dledger("topic", "list")
    assert asked[0][0] == "a:1"


def test_two_clusters_in_one_command_are_wrong_usage(file):
    dledger("context", "add", "prod", "--namesrv", "a:1")
    assert "give one of them" in refused("--context", "prod", "topic", "list", "--namesrv", "b:2", code=2)


@pytest.mark.parametrize("words", [("--context", "prid", "topic", "list"), ("context", "use", "prid")])
def test_an_unknown_context_suggests_the_nearest(file, words):
    dledger("context", "add", "prod", "--namesrv", "a:1")
    assert "Did you mean 'prod'?" in fails_in_one_line(*words)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("current =", "holds no contexts"),
        ('[contexts.a]\nnamesrv = "x:1"\nsecret = "s"', "unknown field `secret`"),
        ('[contexts.a]\nnamesrv = "x"', "'x' is not host:port"),
        ('current = "gone"', "'gone' is not in the file"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line_that_names_it(file, text, said):
    file.parent.mkdir()
    file.write_text(text)
    error = fails_in_one_line("topic", "list")
    assert said in error
    assert str(file) in error


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a b", "--namesrv", "x:1"), "is no name of a context"),
        (("a", "--namesrv", "x"), "is not host:port"),
        (("a", "--namesrv", "x:1", "--tls-cert", "c"), "go with --tls-ca"),
    ],
)
def test_a_wrong_context_is_wrong_usage(file, words, said):
    assert said in refused("context", "add", *words, code=2)
    assert not file.exists()


def test_a_file_that_a_context_names_must_be_there(file):
    assert "cannot be read" in refused("context", "add", "a", "--namesrv", "x:1", "--credentials", "nowhere")


def test_a_context_without_its_credentials_says_so(file, credentials):
    dledger("context", "add", "prod", "--namesrv", "a:1", "--credentials", credentials, "--use")
    credentials.unlink()
    assert "cannot be read" in dledger("context", "list")
