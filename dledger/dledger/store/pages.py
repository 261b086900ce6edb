"""Writer of entries in whole pages of the page cache.

If a write covers a part of a page that is not cached, the system first reads that page from the disk. The event loop
would wait for that. The pages of a recycled segment are not cached, nor are zeros that memory pressure has evicted. So
a write begins at the start of its first page, with the bytes already there. It ends at the end of its last page, with
zeros, which the next entry overwrites.
"""

from __future__ import annotations

from typing import Final

from dledger.store.disk import Buffer, File

PAGE_BYTES: Final = 4096
"""Size in bytes of a page, and of a block of the usual file systems. A write of whole pages needs no read first."""
_ZEROS: Final = bytes(PAGE_BYTES)


class PageWriter:
    """Writes entries one after the other, and remembers the content of the page in which the last entry ends."""

    __slots__ = ("_known_end", "_page")

    def __init__(self) -> None:
        self._page = b""
        self._known_end = -1
        """Offset at which the remembered page's content ends; -1 if it is not known."""

    def forget(self) -> None:
        """Forget the last page: another thread has ended the file elsewhere."""
        self._known_end = -1

    def write(self, file: File, data: Buffer, offset: int, reserved: int) -> None:
        """Write entries at an offset; `reserved` is the offset up to which zeros may follow. Raises `OSError`."""
        end = offset + len(data)
        is_known = offset % PAGE_BYTES == 0 or offset == self._known_end
        prefix = self._page if is_known and offset % PAGE_BYTES else b""
        zeros = _ZEROS[: min(-end % PAGE_BYTES, max(0, reserved - end))]
        file.pwrite(b"".join((prefix, data, zeros)) if prefix or zeros else data, offset - len(prefix))
        size = end % PAGE_BYTES
        if len(data) >= size:
            self._page = bytes(data[len(data) - size :])
        elif is_known:
            self._page = prefix + data
        self._known_end = end if is_known or len(data) >= size else -1
