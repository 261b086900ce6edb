"""Environment variables can replace options."""

import click
import pytest
from click.testing import CliRunner
from command_tree import leaves

from dledger_admin.cli import main

VARIABLES = {"--data": "DLEDGER_DATA", "--namesrv": "DLEDGER_NAMESRV"}
OF_SERVERS = ("config show", "proxy")
"""Commands whose option is an argument of a server, which no variable replaces: a server's file comes before it."""


@pytest.mark.parametrize("option", VARIABLES)
def test_every_command_that_takes_the_option_takes_its_variable(option):
    takers = {
        " ".join(words): parameter.envvar
        for words, command in leaves()
        for parameter in command.params
        if isinstance(parameter, click.Option) and option in parameter.opts and " ".join(words) not in OF_SERVERS
    }
    assert len(takers) > 4
    assert set(takers.values()) == {VARIABLES[option]}, takers


def test_status_uses_the_directory_of_the_environment_unless_told_otherwise(tmp_path):
    environment = {"DLEDGER_DATA": str(tmp_path / "mq")}
    answered = CliRunner().invoke(main, ["status"], env=environment)
    assert f"{tmp_path / 'mq'} holds no cluster" in answered.output
    answered = CliRunner().invoke(main, ["status", "--data", str(tmp_path / "other")], env=environment)
    assert f"{tmp_path / 'other'} holds no cluster" in answered.output
