"""Namespaces of topics and groups. RocketMQ's clients write them into the names.

| within the namespace `ns` | as brokers know it |
|---|---|
| topic `orders`, group `readers` | `ns%orders`, `ns%readers` |
| retry and dead letter topics of the group | `%RETRY%ns%readers`, `%DLQ%ns%readers` |
| a name of RocketMQ's own, such as `RMQ_SYS_TRACE_TOPIC` | itself |

Messages sent within a namespace have its name in the property `INSTANCE_ID`. A name that has the namespace already is
left as it is. Names that a broker returned can thus be used where an application's names are.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from dledger_remoting.topics import DLQ_PREFIX, RETRY_PREFIX, SYSTEM_GROUP_PREFIX, is_system_topic

from .errors import InvalidArgumentError

SEPARATOR: Final = "%"
_NAME: Final = re.compile(r"[a-zA-Z0-9_-]+")
_PREFIXES: Final = (RETRY_PREFIX, DLQ_PREFIX)


class Namespace(msgspec.Struct, frozen=True):
    """One namespace. A namespace without a `name` changes no names."""

    name: str | None = None

    @classmethod
    def named(cls, name: str | None) -> Namespace:
        """Return the namespace of that name.

        Raises `InvalidArgumentError` for a name with anything but letters, digits, `_` and `-`.
        """
        if name is not None and not _NAME.fullmatch(name):
            raise InvalidArgumentError(f"namespace={name!r}: letters, digits, '_' and '-' are expected")
        return cls(name)

    def full(self, resource: str) -> str:
        """Return the name of a topic or group as brokers know it."""
        if self.name is None or _is_system_name(resource):
            return resource
        prefix, plain = _split(resource)
        if plain.startswith(self.name + SEPARATOR):
            return resource
        return f"{prefix}{self.name}{SEPARATOR}{plain}"

    def plain(self, resource: str) -> str:
        """Return the name as applications within the namespace know it.

        A name of another namespace is left as it is.
        """
        if self.name is None:
            return resource
        prefix, rest = _split(resource)
        return prefix + rest.removeprefix(self.name + SEPARATOR)


NO_NAMESPACE: Final = Namespace()
"""The default: no namespace."""


def _split(resource: str) -> tuple[str, str]:
    for prefix in _PREFIXES:
        if resource.startswith(prefix):
            return prefix, resource.removeprefix(prefix)
    return "", resource


def _is_system_name(resource: str) -> bool:
    return is_system_topic(resource) or resource.startswith(SYSTEM_GROUP_PREFIX)
