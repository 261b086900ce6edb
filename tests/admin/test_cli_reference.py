"""The reference of the commands stays up to date."""

from pathlib import Path

from command_tree import leaves

PAGE = (Path(__file__).parents[2] / "docs" / "operations" / "cli.md").read_text(encoding="utf-8")
SHARED = {"--output", "--namesrv"}


def test_every_command_is_in_the_reference_with_its_own_options():
    for words, command in leaves():
        own = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
        assert f"`dledger {' '.join(words)}" in PAGE
        assert not [option for option in own - SHARED if option not in PAGE], words
