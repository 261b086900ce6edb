"""Private files of a server with access control: only the server's user may read data that clients need a right for.

The process creates all files with mode 0600 and directories with mode 0700. Other users' rights on files of an earlier
version are removed when the server starts.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Final

OF_OTHERS: Final = 0o077
"""Permission bits of the file's group and of all others."""

_logger = logging.getLogger(__name__)


def make_only_private_files() -> None:
    """Give only the owner rights to files and directories that this process creates from now on."""
    os.umask(OF_OTHERS)


def mend_modes(places: Iterable[Path]) -> None:
    """Remove all rights but the owner's from files, and from directories with everything in them.

    Logs the number of changed modes. Another line counts the files whose modes cannot be changed, most often because
    they belong to another user, and names the first.
    """
    mended = 0
    unchanged: list[str] = []
    for path in _walk(places):
        try:
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode) or not status.st_mode & OF_OTHERS:
                continue
            os.chmod(path, stat.S_IMODE(status.st_mode) & ~OF_OTHERS)
            mended += 1
        except FileNotFoundError:
            continue
        except OSError:
            unchanged.append(path)
    if mended:
        _logger.info("event=modes_mended files=%d consequence='only their owner can read them from now on'", mended)
    if unchanged:
        _logger.warning(
            "event=readable_by_others path=%s files=%d remedy='chmod go= them, or chown them to this user'",
            unchanged[0],
            len(unchanged),
        )


def _walk(places: Iterable[Path]) -> Iterable[str]:
    for place in places:
        yield str(place)
        for folder, folders, files in os.walk(place):
            for name in (*folders, *files):
                yield os.path.join(folder, name)
