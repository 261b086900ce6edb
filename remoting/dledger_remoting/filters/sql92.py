"""SQL92 filters: expressions on the properties of a message, parsed once and kept.

They have the meaning that RocketMQ gives them. `parsing.py` has the grammar, `closures.py` and `values.py` the meaning.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from dledger_remoting.filters.closures import Names, Values, condition
from dledger_remoting.filters.limits import DEFAULT_LIMITS, FilterLimits
from dledger_remoting.filters.parsing import parse_sql92
from dledger_remoting.filters.tags import SHORT_CHARS
from dledger_remoting.filters.values import Incomparable
from dledger_remoting.properties import find_property, parse_properties

_MAX_SINGLE_SEARCHES: Final = 8
"""Maximum number of properties that are searched one by one. To find more, all properties of a message are parsed."""


class SqlFilter:
    """A parsed expression. It is immutable, so all subscriptions with the same text share it."""

    __slots__ = ("_encoded_names", "_matches", "_names", "expression")

    def __init__(self, expression: str, limits: FilterLimits = DEFAULT_LIMITS) -> None:
        """Parse an expression. Raises `SubscriptionParseFailed` that names line and column of the fault."""
        names: Names = {}
        self._matches = condition(parse_sql92(expression, limits), names)
        self._names = tuple(names)
        self._encoded_names = tuple(name.encode() for name in names)
        self.expression = expression

    @staticmethod
    def parse(expression: str, limits: FilterLimits = DEFAULT_LIMITS) -> SqlFilter:
        """Return the filter of a text, from a cache of recent filters. Raises as the constructor does."""
        return (_parse_short if len(expression) <= SHORT_CHARS else _parse_long)(expression, limits)

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the properties that the expression uses."""
        return self._names

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Return whether a message with these properties matches."""
        return self._holds([properties.get(name) for name in self._names])

    def matches_text(self, properties: bytes) -> bool:
        """Return whether a message matches, given the properties as its record holds them."""
        if len(self._encoded_names) > _MAX_SINGLE_SEARCHES:
            return self.matches(parse_properties(properties))
        values: list[str | None] = []
        for name in self._encoded_names:
            value = find_property(properties, name)
            values.append(None if value is None else value.decode(errors="replace"))
        return self._holds(values)

    def _holds(self, values: Values) -> bool:
        try:
            return self._matches(values) is True
        except Incomparable:
            return False


_parse_short: Final = lru_cache(maxsize=1024)(SqlFilter)
_parse_long: Final = lru_cache(maxsize=64)(SqlFilter)
