"""Reader of the files of a simulated disk."""

from dledger.testing.disk import SimDisk


def content(disk: SimDisk, path: str) -> bytes:
    file = disk.open(path)
    try:
        return file.pread(file.size(), 0)
    finally:
        file.close()
