"""Finder of the secrets in use, so that no file of a bundle holds one.

Configuration files name files with secrets, and hold none. As a second defence, the contents of all these files are
looked for in every file of the bundle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

REMOVED: Final = b"[secret removed]"
MIN_CHARS: Final = 8
"""Minimum length of a secret. Shorter texts would be found everywhere."""
CREDENTIALS: Final = "credentials"
_MAX_FILE_BYTES: Final = 1 << 20
_KEY_BLOCK: Final = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)
_ASSIGNED: Final = re.compile(
    rb"""^(?P<name>[ \t]*["']?[\w.-]*(?:secret|password|passwd|token|credential)[\w.-]*["']?[ \t]*[=:][ \t]*)"""
    rb"""(?P<value>[^\r\n]+)""",
    re.IGNORECASE | re.MULTILINE,
)
_IS_PATH: Final = re.compile(rb"(?i)(_file|_path)[\"']?[ \t]*[=:][ \t]*$")
_PUBLIC: Final = re.compile(r"-----(BEGIN|END) ")


def secrets_in(files: Iterable[Path]) -> set[bytes]:
    """Return every word of these files that may be a secret, none of a file that cannot be read.

    The first line of a file called `credentials` is the name of an account, and no secret.
    """
    return {word for path in files for word in _words(path)}


def _words(path: Path) -> Iterator[bytes]:
    try:
        if path.stat().st_size > _MAX_FILE_BYTES:
            return
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return
    for line in text.splitlines()[path.name == CREDENTIALS :]:
        if _PUBLIC.match(line):
            continue
        for word in (line.strip(), *re.split(r"[\s:,'\"]+", line)):
            if len(word) >= MIN_CHARS:
                yield word.encode()


class Scrubber:
    """Removes known secrets, private keys, and values of keys that are called like a secret."""

    def __init__(self, secrets: Iterable[bytes]) -> None:
        longest_first = sorted(set(secrets), key=len, reverse=True)
        self._known = re.compile(b"|".join(map(re.escape, longest_first))) if longest_first else None

    def scrub(self, data: bytes) -> bytes:
        """Return the bytes without secrets."""
        data = _KEY_BLOCK.sub(REMOVED, data)
        data = _ASSIGNED.sub(_without_value, data)
        return data if self._known is None else self._known.sub(REMOVED, data)


def _without_value(found: re.Match[bytes]) -> bytes:
    """Keep the paths of files with secrets: they say what is configured. Keep JSON what it is."""
    if _IS_PATH.search(found["name"]):
        return found[0]
    comma = b"," if found["value"].endswith(b",") else b""
    return b'%s"%s"%s' % (found["name"], REMOVED, comma)
