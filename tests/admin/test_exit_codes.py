"""Exit code 2 means a wrong command line, independent of the environment. 1 means that something is missing."""

import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from command_fakes import refused

from dledger_admin.cli import main
from dledger_base import native_part

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
def test_wrong_usage_exits_with_2_and_the_reason(tmp_path, monkeypatch, words, said):
    monkeypatch.chdir(tmp_path)
    assert said in refused(*words, code=2)


def test_a_wrong_address_from_the_environment_is_a_usage_error():
    done = CliRunner().invoke(main, ["topic", "list"], env={"DLEDGER_NAMESRV": "here"})
    assert (done.exit_code, "DLEDGER_NAMESRV" in done.stderr) == (2, True)


def test_the_command_the_project_and_its_changelog_agree_on_the_version():
    """An unreleased state has a version higher than every release."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    told = CliRunner().invoke(main, ["--version"], prog_name="dledger").output
    assert told == f"dledger, version {version}, native part: {native_part.version()}\n"
    newest, *older = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    released = [as_numbers(one) for one in older]
    if newest == "Unreleased":
        assert all(as_numbers(version) > one for one in released)
    else:
        assert newest == version


def as_numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
