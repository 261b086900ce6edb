"""Names of topics and groups as parameters of commands."""

from __future__ import annotations

from collections.abc import Callable

import click

from dledger_remoting.errors import InvalidParameter
from dledger_remoting.topics import validate_group, validate_topic


class Name(click.ParamType):  # type: ignore[type-arg]  # older versions, which are allowed, are not generic
    """The name of something that brokers keep; `check` raises `InvalidParameter` for a name that nothing can have."""

    def __init__(self, kind: str, check: Callable[[str], None]) -> None:
        self.name = kind
        self._check = check

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Refuse a name that nothing can have."""
        try:
            self._check(value)
        except InvalidParameter as error:
            self.fail(error.remark, param, ctx)
        return value


TOPIC = Name("topic", validate_topic)
CONSUMER_GROUP = Name("group", validate_group)
