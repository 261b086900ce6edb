"""Help shows everything in full, also without any extra installed."""

import re
import subprocess
import sys
from importlib.metadata import EntryPoints, requires

import click
import pytest
from click.testing import CliRunner
from command_tree import commands

from dledger_admin import cli
from dledger_admin.cli import main

NOUNS = [
    *("cluster", "node", "topic", "group", "message", "dlq", "pin", "quota", "account", "acl", "log", "config"),
    *("context", "debug", "spark"),
]
VERBS = ["up", "down", "status", "top", "console", "produce", "consume", "bench", "demo", "chaos"]

_WITHOUT_EXTRAS = """
import sys

class Without:
    finders = tuple(sys.meta_path)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            return None
        return next((spec for one in self.finders if (spec := one.find_spec(name, path, target))), None)

    def find_distributions(self, *context):
        finders = [one.find_distributions for one in self.finders if hasattr(one, "find_distributions")]
        return (found for finder in finders for found in finder(*context))

sys.meta_path[:] = [Without()]
from dledger_admin.cli import main
main({words})
"""


def shown(*words: str) -> str:
    return " ".join(CliRunner().invoke(main, [*words, "--help"]).output.split())


def groups() -> dict[str, tuple[tuple[str, ...], click.Group]]:
    return {
        " ".join(["dledger", *words]): (words, command)
        for words, command in commands()
        if isinstance(command, click.Group)
    }


@pytest.mark.parametrize(("words", "group"), groups().values(), ids=groups())
def test_the_help_of_a_group_cuts_no_sentence(words, group):
    text = shown(*words)
    context = click.Context(group)
    for name in group.list_commands(context):
        sentence = " ".join((group.get_command(context, name).help or "").split("\n\n")[0].split())
        assert f"{name} {sentence.split('. ')[0].rstrip('.')}" in text
    assert "…" not in text
    assert "... " not in text.partition("Options:")[2]


def test_help_groups_commands_into_nouns_and_verbs():
    lines = CliRunner().invoke(main, ["--help"]).output.splitlines()
    names: dict[str, list[str]] = {}
    for line in lines:
        if line.endswith(":") and not line.startswith(" "):
            names[line] = found = []
        elif line.startswith("  ") and line[2] != " " and names:
            found.append(line.split()[0])
    assert names["Manage and look at:"] == NOUNS
    assert names["Run and use:"] == VERBS


def extras() -> set[str]:
    """Return the import names of the packages that only extras install."""
    optional = {line.partition(";")[0] for line in requires("dledger-mq") if "extra ==" in line}
    optional |= {line.partition(";")[0] for line in requires("dledger-mq-chaos")}
    names = {re.split(r"[<>=\[ ]", line)[0].replace("-", "_") for line in optional}
    return names | {"toxiproxy", "google"}


@pytest.mark.parametrize(
    "words",
    [(), ("chaos",), ("chaos", "run"), ("spark", "lag"), ("up",), ("top",), ("bench", "send"), ("debug", "bundle")],
)
def test_help_needs_no_extra(words):
    done = run_without_extras(*words, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage:" in done.stdout


def run_without_extras(*words: str) -> subprocess.CompletedProcess[str]:
    hidden = extras() - {"dledger_mq"}
    assert {"aiohttp", "matplotlib", "pyspark", "rich"} <= hidden
    script = _WITHOUT_EXTRAS.format(hidden=hidden, words=list(words))
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)


def test_a_command_without_its_extra_says_which_one_it_needs():
    done = run_without_extras("up", "--data", "nowhere")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: this command needs the extra broker (aiohttp")
    assert done.stderr.count("\n") == 1


def test_without_its_distribution_the_command_chaos_says_which_one_brings_the_command(monkeypatch):
    monkeypatch.setattr(cli, "entry_points", lambda **_: EntryPoints())
    refused = CliRunner().invoke(cli.main, ["chaos", "run"])
    assert refused.exit_code == 2
    assert "'chaos' is a command of the distribution dledger-mq-chaos, which is not installed" in refused.stderr
    assert "chaos" not in CliRunner().invoke(cli.main, ["--help"]).stdout


@pytest.mark.parametrize("word", ["version", "help"])
def test_help_and_version_print_the_same_as_word_and_as_option(word: str) -> None:
    told = [CliRunner().invoke(main, [argument], prog_name="dledger") for argument in (word, f"--{word}")]
    assert [one.exit_code for one in told] == [0, 0]
    assert told[0].output == told[1].output


def test_a_benchmark_needs_no_extra():
    done = run_without_extras("bench", "send", "--namesrv", "127.0.0.1:1")
    assert done.returncode == 1
    assert done.stderr.startswith("Error: no name server at 127.0.0.1:1")
