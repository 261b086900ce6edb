"""Configuration of topics and groups by users: its limits, and changes of attributes in the tools' format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeAlias, TypeVar

import msgspec

from dledger.errors import LogError, OutcomeUnknownError
from dledger_broker.kernel.topics import TopicTable
from dledger_remoting.errors import InvalidParameter
from dledger_remoting.registration import DataVersion
from dledger_remoting.topics import MAX_PERM, SubscriptionGroupConfig, TopicConfig, is_system_topic, validate_topic

Configured = TypeVar("Configured", TopicConfig, SubscriptionGroupConfig)

MAX_QUEUES: Final = 65_536
"""Maximum number of queues of one topic."""
FILTER_TYPES: Final = ("SINGLE_TAG", "MULTI_TAG")
MAX_ATTRIBUTES_BYTES: Final = 4_096
"""Maximum size in bytes of the attributes of one topic or group. Name servers get all topics in one frame."""

ONLY_ATTRIBUTES: Final = {"queue.type": "SimpleCQ", "cleanup.policy": "DELETE"}
"""Attributes for other stores of RocketMQ, each with the value that means this broker's store."""

AttributeChanges: TypeAlias = Sequence[tuple[str, str | None]]
"""Names of attributes with their new values, or None for an attribute to remove."""

MAX_CHANGES_CHARS: Final = 8 * MAX_ATTRIBUTES_BYTES
"""Maximum length of a text of changes. It is enough to remove all attributes and add as many."""

MAX_LISTED: Final = 1_024
"""Maximum number of topics, or groups, that one request changes."""


def data_version(term: int, topics: TopicTable) -> DataVersion:
    """Return the version of the topics: the term, and the number of their changes. A snapshot has the number."""
    return DataVersion(state_version=term, counter=topics.version)


def check_topic(config: TopicConfig) -> None:
    """Raise `InvalidParameter` unless a user may have a topic with this configuration."""
    validate_topic(config.topic_name)
    if is_system_topic(config.topic_name):
        raise InvalidParameter(f"The topic[{config.topic_name}] is conflict with system topic, choose another name")
    for field, queues in (("readQueueNums", config.read_queue_nums), ("writeQueueNums", config.write_queue_nums)):
        if not 1 <= queues <= MAX_QUEUES:
            raise InvalidParameter(f"{field} {queues} is outside 1..{MAX_QUEUES}")
    if not 0 <= config.perm <= MAX_PERM:
        raise InvalidParameter(f"perm {config.perm} is outside 0..{MAX_PERM}: 4 read + 2 write + 1 inherit")
    if config.topic_filter_type not in FILTER_TYPES:
        what = repr(config.topic_filter_type[:32])
        raise InvalidParameter(f"topicFilterType {what} is none of {', '.join(FILTER_TYPES)}")
    check_attributes(config.attributes)
    check_storage(config.attributes)


def check_storage(attributes: Mapping[str, str | None]) -> None:
    """Raise `InvalidParameter` if a topic's attributes ask for a store that this broker does not have."""
    for name, supported in ONLY_ATTRIBUTES.items():
        value = attributes.get(name)
        if value is not None and value != supported:
            raise InvalidParameter(
                f"attribute {name}={value[:32]} is not supported: leave it out, or set it to {supported}"
            )


def check_attributes(attributes: Mapping[str, str]) -> None:
    """Raise `InvalidParameter` if a topic's or group's attributes are too long."""
    size = sum(len(name.encode()) + len(value.encode()) for name, value in attributes.items())
    if size > MAX_ATTRIBUTES_BYTES:
        raise InvalidParameter(f"attributes have {size} bytes, the limit is {MAX_ATTRIBUTES_BYTES}")


def attribute_changes(text: str) -> list[tuple[str, str | None]]:
    """Return the changes in a text like `+key=value,-key`, each with its value or None. Raises `InvalidParameter`."""
    if len(text) > MAX_CHANGES_CHARS:
        raise InvalidParameter(f"attributes: a text of {len(text)} characters, the limit is {MAX_CHANGES_CHARS}")
    changes: list[tuple[str, str | None]] = []
    parts: Sequence[str] = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        name, separator, value = part[1:].partition("=")
        if part[0] == "+" and name and separator:
            changes.append((name, value))
        elif part[0] == "-" and name and not separator:
            changes.append((name, None))
        else:
            raise InvalidParameter(f"attributes {text!r}: {part!r} is neither +key=value nor -key")
    return changes


def require_few(count: int, what: str) -> None:
    """Raise `InvalidParameter` if a list that changes topics or groups is longer than can be checked in a turn."""
    if count > MAX_LISTED:
        raise InvalidParameter(f"the list has {count} {what}, the limit is {MAX_LISTED}: send several")


def signed_changes(attributes: Mapping[str, str]) -> list[tuple[str, str | None]]:
    """Return the changes in a request's body, where tools write `+key` to set and `-key` to remove a key.

    A key without a sign is set. RocketMQ's tools do not write keys without a sign, but a copied configuration has them.
    Raises `InvalidParameter` for a sign without a key, and for a key that is named twice.
    """
    changes: dict[str, str | None] = {}
    for signed, value in attributes.items():
        name = signed[1:] if signed[:1] in ("+", "-") else signed
        if not name or name in changes:
            what = "names no key" if not name else f"names the key {name[:32]!r} twice"
            raise InvalidParameter(f"attributes: {signed[:33]!r} {what}")
        changes[name] = None if signed.startswith("-") else value
    return list(changes.items())


def changed_attributes(current: dict[str, str], changes: AttributeChanges) -> dict[str, str]:
    """Return the attributes after the changes."""
    attributes = current | dict(changes)
    return {name: value for name, value in attributes.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ConfigChange(Generic[Configured]):
    """Requested change of one topic or group: settings without attributes, and the changes of attributes."""

    config: Configured
    changes: AttributeChanges

    def apply(self, refusals: list[InvalidParameter], current: Configured | None) -> Configured:
        """Return the configuration after this change.

        If an earlier change leaves too little room for attributes, nothing changes, and the refusal is added to
        `refusals`.
        """
        attributes = changed_attributes({} if current is None else current.attributes, self.changes)
        try:
            check_attributes(attributes)
        except InvalidParameter as refusal:
            refusals.append(refusal)
            return current or self.config
        return msgspec.structs.replace(self.config, attributes=attributes)


def outcome_of_all(outcomes: Sequence[LogError | None]) -> LogError | None:
    """Return the outcome of several changes. The request may be handled again elsewhere only if all were refused."""
    errors = [error for error in outcomes if error is not None]
    unknown = sum(isinstance(error, OutcomeUnknownError) for error in errors)
    if not errors or (len(errors) == len(outcomes) and unknown in (0, len(errors))):
        return errors[0] if errors else None
    return OutcomeUnknownError(f"some of the changes may have taken effect, others not: {errors[0]}")
