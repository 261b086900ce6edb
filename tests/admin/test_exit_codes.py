"""Exit codes: 2 for what the command line itself makes wrong, whatever there is outside; 1 for what is not there."""

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from dledger import native_part
from dledger_admin.cli import main

ROOT = Path(__file__).parents[2]

WRONG = {
    "a number that makes no cluster": (("up", "--data", "d", "--nodes", "4", "--detach"), "--nodes 4"),
    "no group at all": (("up", "--data", "d", "--groups", "0", "--detach"), "--groups 0"),
    "a port that is none": (("up", "--data", "d", "--base-port", "70000", "--detach"), "--base-port 70000"),
    "a time that is none": (("group", "reset", "g", "--topic", "t", "--to", "soon"), "--to 'soon' is no time"),
    "a time of a job": (("spark", "stats", "--topics", "t", "--from", "soon"), "--from 'soon' is no time"),
    "a setting without a value": (("spark", "lag", "--conf", "a"), "is not KEY=VALUE"),
    "a topic that nothing can be called": (("topic", "describe", "a b"), "may only contain"),
    "another one": (("message", "get", "--topic", "a/b", "--key", "k"), "may only contain"),
    "a group that nothing can be called": (("group", "describe", "a+b"), "may only contain"),
    "an address that is none": (("topic", "list", "--namesrv", "here"), "'here' is not host:port"),
    "no consent": (("node", "recover", "--data", "d", "n"), "--accept-loss"),
    "no proof": (("node", "lead", "n"), "--secret-file FILE or DLEDGER_SECRET_FILE"),
    "two places": (("node", "remove", "n", "--data", "d", "--namesrv", "h:1"), "--data and --namesrv both say"),
    "no such option": (("topic", "list", "--all"), "No such option"),
    "no such command": (("topics",), "No such command"),
    "an option without its value": (("topic", "create", "t", "--queues"), "requires an argument"),
}


@pytest.mark.parametrize(("words", "said"), WRONG.values(), ids=WRONG)
def test_wrong_usage_is_exit_code_2_and_is_said(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, list(words))
    assert (done.exit_code, done.stdout) == (2, "")
    assert said in done.stderr


def test_an_address_from_the_environment_is_judged_like_one_that_is_given():
    done = CliRunner().invoke(main, ["topic", "list"], env={"DLEDGER_NAMESRV": "here"})
    assert done.exit_code == 2
    assert "DLEDGER_NAMESRV" in done.stderr


def test_the_command_the_project_and_its_changelog_agree_on_the_version():
    """What is not released yet has a version that no release has had."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert CliRunner().invoke(main, ["--version"], prog_name="dledger").output == (
        f"dledger, version {version}, native part: {native_part.version()}\n"
    )
    newest, *older = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    released = [as_numbers(one) for one in older]
    if newest == "Unreleased":
        assert all(as_numbers(version) > one for one in released)
    else:
        assert newest == version


def as_numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
