"""Names of topics and groups as parameters of commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import click
from click.shell_completion import CompletionItem

from dledger_remoting.errors import InvalidParameter
from dledger_remoting.pop import validate_stored_topic
from dledger_remoting.topics import validate_group, validate_topic

from .completing import consumer_groups, topics

Known: TypeAlias = Callable[[click.Context, click.Parameter, str], list[str]]
"""Function that returns the existing names that begin with some letters."""


class Name(click.ParamType):  # type: ignore[type-arg]  # older versions, which are allowed, are not generic
    """The name of a topic or group; `check` raises `InvalidParameter` for a name that is not valid."""

    def __init__(self, kind: str, check: Callable[[str], None], known: Known) -> None:
        self.name = kind
        self._check = check
        self._find_names = known

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the existing names that begin with `incomplete`."""
        return [CompletionItem(name) for name in self._find_names(ctx, param, incomplete)]

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name. Fail if it is not valid."""
        try:
            self._check(value)
        except InvalidParameter as error:
            self.fail(error.remark, param, ctx)
        return value


TOPIC = Name("topic", validate_topic, topics)
STORED_TOPIC = Name("topic", validate_stored_topic, topics)
CONSUMER_GROUP = Name("group", validate_group, consumer_groups)
