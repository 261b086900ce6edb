"""Retention of a log in which nothing waits until it is due."""


class NothingWaits:
    """See `dledger_broker.features.retention.job.WaitsInTheLog`; `wanted` is what it was told."""

    def __init__(self) -> None:
        self.wanted: list[tuple[int, bool]] = []
        self.free_below = 1 << 62

    def is_free_below(self, position: int) -> bool:
        return position <= self.free_below

    def want(self, position: int, *, disk_full: bool) -> None:
        self.wanted.append((position, disk_full))
