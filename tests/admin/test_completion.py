"""Shells complete commands and names of existing things. Nothing else ever appears in the user's line."""

import logging
import os
import subprocess
import sys

import pytest
from click.shell_completion import ShellComplete, get_completion_class
from click.testing import CliRunner
from command_fakes import Entered

from dledger_admin.cli import main
from dledger_admin.cluster.bootstrap import founding_manifest
from dledger_admin.cluster.layout import ClusterLayout
from dledger_admin.cluster.manifest import write_manifest
from dledger_admin.commands import completing
from dledger_admin.commands.completion import COMPLETE_VARIABLE, is_asked_for, whole_words


class FakeAdmin(Entered):
    """Administration client that answers as a small cluster does."""

    def __init__(self, namesrv):
        self.namesrv = namesrv

    async def topics(self, *, include_system):
        assert not include_system
        return ["orders", "other", "payments"]

    async def groups(self):
        return {"billing": None, "readers": None}

    async def broker_groups(self):
        return {"broker-a": None, "broker-b": None}


def completed(*words: str) -> list[str]:
    """Return what a shell would offer for the last word."""
    found = ShellComplete(main, {}, "dledger", COMPLETE_VARIABLE).get_completions(list(words[:-1]), words[-1])
    return [item.value for item in found]


def completed_by_bash(words: list[str]) -> subprocess.CompletedProcess[str]:
    """Return the command's answer to bash, which has split the line into words."""
    asked = {COMPLETE_VARIABLE: "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    command = [sys.executable, "-c", "from dledger_admin.cli import main; main(prog_name='dledger')"]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **asked})


@pytest.fixture
def namesrv(monkeypatch, listener):
    """Run a name server that accepts connections, with a cluster behind it."""
    monkeypatch.setattr(completing, "Admin", FakeAdmin)
    return f"127.0.0.1:{listener.getsockname()[1]}"


def test_commands_and_options_are_completed():
    assert completed("topic", "de") == ["delete", "describe"]
    assert completed("co") == ["config", "context", "consume", "completion", "console"]
    assert "--from-beginning" in completed("consume", "--from")


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (("consume", "--topic", "o"), ["orders", "other"]),
        (("produce", "--topic", ""), ["orders", "other", "payments"]),
        (("topic", "delete", "pay"), ["payments"]),
        (("group", "describe", ""), ["billing", "readers"]),
        (("consume", "--group", "r"), ["readers"]),
        (("group", "reset", "billing", "--topic", "p"), ["payments"]),
        (("topic", "create", "x", "--broker-group", "broker-"), ["broker-a", "broker-b"]),
        (("cluster", "forget", ""), ["broker-a", "broker-b"]),
        (("node", "lead", "n1", "--broker-group", "broker-"), ["broker-a", "broker-b"]),
        (("spark", "stats", "--topics", "or"), ["orders"]),
        (("spark", "archive", "--topics", "orders,o"), ["orders,orders", "orders,other"]),
        (("spark", "replay", "--to-topic", "p"), ["payments"]),
    ],
)
def test_names_of_the_cluster_are_completed(monkeypatch, namesrv, words, names):
    monkeypatch.setenv("DLEDGER_NAMESRV", namesrv)
    assert completed(*words) == names


def test_names_come_from_the_cluster_that_the_line_names(monkeypatch, namesrv):
    asked = []

    class Noted(FakeAdmin):
        def __init__(self, address):
            asked.append(address)

    monkeypatch.setattr(completing, "Admin", Noted)
    monkeypatch.setenv("DLEDGER_NAMESRV", "127.0.0.1:1")
    assert completed("topic", "delete", "--namesrv", namesrv, "pay") == ["payments"]
    assert asked == [namesrv]


def test_nodes_of_a_directory_are_completed(tmp_path):
    founded = ClusterLayout(tmp_path, 1, 3, 9876, 10911)
    write_manifest(tmp_path, founding_manifest(founded, None, 1 << 30))
    nodes = ["broker-a-n0", "broker-a-n1", "broker-a-n2"]
    for command in ("stop", "status", "lead", "remove"):
        assert completed("node", command, "--data", str(tmp_path), "broker-a-n") == nodes
    assert completed("node", "start", "--data", str(tmp_path), "name") == ["namesrv"]


@pytest.mark.parametrize("words", [("topic", "delete", ""), ("consume", "--group", ""), ("cluster", "forget", "")])
def test_a_cluster_that_is_not_there_has_no_names(monkeypatch, caplog, capfd, words):
    monkeypatch.setenv("DLEDGER_NAMESRV", "127.0.0.1:1")
    assert completed(*words) == []
    assert completed("node", "stop", "--data", "/nowhere", "") == []
    assert completed("node", "stop", "") == []
    assert (caplog.records, *capfd.readouterr()) == ([], "", "")


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch, listener, capfd):
    monkeypatch.setattr(completing, "SECONDS", 0.05)
    monkeypatch.setenv("DLEDGER_NAMESRV", f"127.0.0.1:{listener.getsockname()[1]}")
    assert completed("topic", "delete", "") == []
    assert capfd.readouterr() == ("", "")
    assert logging.root.manager.disable == logging.NOTSET


def test_completion_rejoins_words_that_bash_cut_at_colons_and_equal_signs():
    cut = ["consume", "--namesrv", "h", ":", "9876", ";", "--topic", "=", "or"]
    assert whole_words(cut) == ["consume", "--namesrv", "h:9876", ";", "--topic=or"]
    assert whole_words(["--topic", "=", ""]) == ["--topic="]
    assert whole_words([""]) == [""]


def test_bash_gets_completions_or_no_output():
    told = completed_by_bash(["dledger", "topic", "de"])
    assert (told.returncode, told.stdout, told.stderr) == (0, "plain,delete\nplain,describe\n", "")
    for words in (["topic", "delete", "--namesrv", "127.0.0.1", ":", "1", "''"], ["\udcff", "x"]):
        told = completed_by_bash(["dledger", *words])
        assert (told.stdout.strip(), told.stderr) == ("", ""), words


def test_completion_uses_whole_words_and_fails_silently(monkeypatch, capfd):
    def broken(self, ctx):
        raise RuntimeError("no commands")

    monkeypatch.setenv(COMPLETE_VARIABLE, "bash_complete")
    monkeypatch.setenv("COMP_WORDS", "dledger topic --namesrv=h : 1 de")
    monkeypatch.setenv("COMP_CWORD", "5")
    assert is_asked_for()
    arguments = get_completion_class("bash")(main, {}, "dledger", COMPLETE_VARIABLE).get_completion_args()
    assert arguments == (["topic", "--namesrv=h:1"], "de")
    monkeypatch.setattr(type(main), "list_commands", broken)
    monkeypatch.setenv("COMP_CWORD", "1")
    with pytest.raises(SystemExit):
        main.main(prog_name="dledger")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("shell", "holds"),
    [
        ("bash", "complete -o nosort -F _dledger_completion dledger"),
        ("zsh", "compdef _dledger_completion dledger"),
        ("fish", "complete --no-files --command dledger"),
    ],
)
def test_every_shell_has_its_script(shell, holds):
    printed = CliRunner().invoke(main, ["completion", shell])
    assert printed.exit_code == 0
    assert holds in printed.output
    assert COMPLETE_VARIABLE in printed.output
