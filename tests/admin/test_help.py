"""Help shows everything, whole, and without any extra."""

import re
import subprocess
import sys
from importlib.metadata import requires

import click
import pytest
from click.testing import CliRunner
from command_tree import commands

from dledger_admin.cli import main

NOUNS = [
    "cluster",
    "node",
    "topic",
    "group",
    "message",
    "dlq",
    "pin",
    "quota",
    "account",
    "acl",
    "log",
    "config",
    "spark",
]
VERBS = ["up", "down", "status", "produce", "consume", "demo", "chaos"]

_WITHOUT_EXTRAS = """
import sys

class Without:
    finders = tuple(sys.meta_path)

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden}:
            return None
        return next((spec for one in self.finders if (spec := one.find_spec(name, path, target))), None)

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


def test_commands_are_grouped_by_what_they_are_about():
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
    """Return what only extras bring, by the names under which it is imported."""
    optional = {line.partition(";")[0] for line in requires("dledger-mq") if "extra ==" in line}
    names = {re.split(r"[<>=\[ ]", line)[0].replace("-", "_") for line in optional}
    return names | {"toxiproxy", "google"}


@pytest.mark.parametrize("words", [(), ("chaos",), ("chaos", "run"), ("spark", "lag"), ("up",)])
def test_help_needs_no_extra(words):
    hidden = extras() - {"dledger_mq"}
    assert {"aiohttp", "matplotlib", "pyspark", "rich"} <= hidden
    script = _WITHOUT_EXTRAS.format(hidden=hidden, words=[*words, "--help"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage:" in done.stdout


def test_a_command_without_its_extra_says_which_one_it_needs():
    script = _WITHOUT_EXTRAS.format(hidden=extras() - {"dledger_mq"}, words=["chaos", "faults"])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: this command needs aiohttp")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("word", ["version", "help"])
def test_a_word_says_what_the_option_says(word: str) -> None:
    told = [CliRunner().invoke(main, [argument], prog_name="dledger") for argument in (word, f"--{word}")]
    assert [one.exit_code for one in told] == [0, 0]
    assert told[0].output == told[1].output
