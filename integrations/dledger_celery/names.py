"""Names of topics and groups that stand for queues and exchanges. They are reversible.

| of kombu | of the cluster |
|---|---|
| queue `celery` | topic `celery`, consumer group `celery` |
| queue `video.high` | `video%2ehigh`: characters other than `a-z A-Z 0-9 _ -` are escaped, byte by byte of UTF-8 |
| queue `TBW102` | `%54BW102`: a name of the service itself has its first character written so |
| queue `celery`, priority 7 | topic `celery%P7`, consumer group `celery` |
| exchange `celery.pidbox` | topic `celery%2epidbox%X` |
| anything in the virtual host `shop` | the same, behind `shop%-` |
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from dledger_remoting.topics import is_system_group, is_system_topic

MAX_NAME_CHARS: Final = 112
"""Maximum length of an escaped name with its virtual host: a group's name may have 120 characters."""
_OTHER: Final = re.compile(rb"[^A-Za-z0-9_-]")
_ESCAPED: Final = re.compile(rb"%([0-9a-f]{2})")
_EXCHANGE: Final = "%X"
_VIRTUAL_HOST: Final = re.compile(r"[A-Za-z0-9_-]*")


class Names(msgspec.Struct, frozen=True):
    """Names within a virtual host; the empty one has no prefix."""

    virtual_host: str = ""

    def __post_init__(self) -> None:
        """Refuse a virtual host with other characters than letters, digits, `_` and `-`."""
        if not _VIRTUAL_HOST.fullmatch(self.virtual_host):
            raise ValueError(f"virtual host {self.virtual_host!r}: use only letters, digits, '_' and '-'")

    def group(self, queue: str) -> str:
        """Return the consumer group of a queue. Raises `ValueError` for a name that is empty or too long."""
        return self._full(queue, "queue")

    def topic(self, queue: str, priority: int = 0) -> str:
        """Return the topic of a queue's messages of one priority. Raises `ValueError` as `group` does."""
        return self.group(queue) + (f"%P{priority}" if priority else "")

    def exchange(self, exchange: str) -> str:
        """Return the topic that all readers of an exchange read; the default exchange has an empty name."""
        return (self._full(exchange, "exchange") if exchange else self._prefix) + _EXCHANGE

    def queue(self, group: str) -> str:
        """Return the queue of a group, or of a topic of priority 0."""
        escaped = group.removeprefix(self._prefix).encode()
        return _ESCAPED.sub(lambda match: bytes.fromhex(match[1].decode()), escaped).decode()

    @property
    def _prefix(self) -> str:
        return f"{self.virtual_host}%-" if self.virtual_host else ""

    def _full(self, name: str, kind: str) -> str:
        escaped = _OTHER.sub(lambda match: b"%%%02x" % match[0][0], name.encode()).decode()
        if is_system_topic(escaped) or is_system_group(escaped):
            escaped = f"%{ord(escaped[0]):02x}{escaped[1:]}"
        full = self._prefix + escaped
        if not name or len(full) > MAX_NAME_CHARS:
            raise ValueError(
                f"{kind} {name!r}: its topic {full[:40]!r} has {len(full)} characters, choose a name for which it has "
                f"1 to {MAX_NAME_CHARS}"
            )
        return full
