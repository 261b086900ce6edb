"""The help of every command stays the same: the `dledger` tree, `python -m` of each component, and the simulators.

The recording describes the arguments that our code gives to click and argparse. Their own wording and line breaks
differ between versions and terminals. A simulator is named by what it simulates, since its module may move.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator

import click
import pytest

from dledger_admin.cli import main as dledger
from dledger_broker import __main__ as broker
from dledger_namesrv import __main__ as name_server
from dledger_sim.log import cli as simulator_cli
from dledger_sim.log.explore import __main__ as explorer
from dledger_spark import package as spark_package
from tests.recorded.golden_files import compare

WIDE = 10_000
GROWING = {"--mutant", "--scenario"}
"""Options of simulators whose choices are its known bugs and scenarios, which grow with its tests only."""

SIMULATORS: dict[str, click.Command] = {
    "simulator of the log": simulator_cli.command("NAME", "dledger_sim.log.lab"),
    "simulator of brokers": simulator_cli.command("NAME", "dledger_sim.brokers.lab"),
    "explorer of the log": explorer.main,
}
PROCESSES: dict[str, Callable[[list[str]], int]] = {"broker": broker.main, "name server": name_server.main}


def tree(command: click.Command, words: str, parent: click.Context | None = None) -> Iterator[str]:
    """Yield the description of a command and of all its subcommands."""
    context = click.Context(command, info_name=words.rpartition(" ")[2], parent=parent)
    yield f"== {words}"
    yield from paragraphs(command.help or "")
    yield from paragraphs(command.epilog or "")
    for parameter in command.params:
        yield f"    {described(parameter)}"
    if isinstance(command, click.Group):
        formatter = click.HelpFormatter(width=WIDE)
        command.format_commands(context, formatter)
        yield from (f"    | {' '.join(line.split())}" for line in formatter.getvalue().splitlines() if line)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            yield from tree(inner, f"{words} {name}", context)


def without_known_bugs(line: str) -> str:
    """Remove the names that `mutants` accepts from a line: they grow with the simulator's tests too."""
    return re.sub(r"^    names \(choice of [^)]*\)", "    names", line)


def paragraphs(text: str) -> Iterator[str]:
    """Yield each paragraph as one line."""
    for paragraph in inspect.cleandoc(text).split("\n\n"):
        if paragraph:
            yield " ".join(paragraph.split())


def described(parameter: click.Parameter) -> str:
    """Return names, type, default and help of a parameter."""
    facts = [kind_of(parameter), *facts_of(parameter)]
    names = "/".join(("|".join(parameter.opts), *parameter.secondary_opts))
    text = getattr(parameter, "help", None)
    return f"{names} ({', '.join(facts)})" + (f": {' '.join(text.split())}" if text else "")


def kind_of(parameter: click.Parameter) -> str:
    kind = parameter.type
    if isinstance(parameter, click.Option) and (parameter.is_flag or parameter.count):
        return "flag"
    words = parameter.metavar or kind.name
    if isinstance(kind, click.Choice) and not GROWING & set(parameter.opts):
        return f"{words} of {' '.join(map(str, kind.choices))}"
    if isinstance(kind, click.IntRange | click.FloatRange):
        low, high = ("" if bound is None else f"{bound:g}" for bound in (kind.min, kind.max))
        return f"{words} {low}{'<' if kind.min_open else ''}..{'<' if kind.max_open else ''}{high}"
    return words


def facts_of(parameter: click.Parameter) -> Iterator[str]:
    if isinstance(parameter, click.Argument):
        yield "argument"
    if parameter.required:
        yield "required"
    if parameter.multiple or parameter.nargs != 1:
        yield f"many, {parameter.nargs} at a time"
    if parameter.envvar:
        yield f"or by ${parameter.envvar}"
    default = parameter.default
    if callable(default):
        yield "default computed"
    elif default is True or (isinstance(default, str | int | float) and not isinstance(default, bool)):
        yield f"default {default!r}" + ("" if getattr(parameter, "show_default", True) else ", not shown")
    elif default is not None and hasattr(default, "__fspath__"):
        yield f"default path {default}"
    if getattr(parameter, "hidden", False):
        yield "hidden"


def test_help_of_the_command_line() -> None:
    compare("surfaces/help_dledger", tree(dledger, "dledger"))


def test_help_of_the_simulators() -> None:
    lines = [line for name in SIMULATORS for line in tree(SIMULATORS[name], name)]
    compare("surfaces/help_simulators", lines, kept=without_known_bugs)


def test_help_of_the_processes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(WIDE))
    lines = []
    for name, run in PROCESSES.items():
        with pytest.raises(SystemExit) as ended:
            run(["--help"])
        text = capsys.readouterr().out
        lines += [f"== {name}: {ended.value.code}", *(" ".join(line.split()) for line in text.splitlines() if line)]
    assert spark_package.main(["--help"]) == 2
    lines += ["== package for Spark's executors: 2", *capsys.readouterr().err.splitlines()]
    compare("surfaces/help_processes", lines)


def test_every_kind_of_parameter_is_described() -> None:
    @click.group(epilog="The end.")
    @click.argument("files", nargs=-1)
    @click.option("--level", type=click.FloatRange(0, 1, max_open=True), default=0.5, help="How\n    high.")
    @click.option("--kind", type=click.Choice(["a", "b"]), multiple=True, envvar="KIND", required=True)
    @click.option("--yes/--no", "sure", default=True, hidden=True)
    def top(**_: object) -> None:
        """Do it. And
        more.

        And so
        on.
        """

    @top.command()
    def inner() -> None:
        """Do a part. Slowly."""

    assert list(tree(top, "top")) == [
        "== top",
        "Do it. And more.",
        "And so on.",
        "The end.",
        "    files (text, argument, many, -1 at a time)",
        "    --level (float range 0..<1, default 0.5, not shown): How high.",
        "    --kind (choice of a b, required, many, 1 at a time, or by $KIND)",
        "    --yes/--no (flag, default True, not shown, hidden)",
        "    | Commands:",
        "    | inner Do a part.",
        "== top inner",
        "Do a part. Slowly.",
    ]
