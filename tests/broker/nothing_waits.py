"""Stand-in for the messages in a log that wait until they are due: there are none."""


class NothingWaits:
    """Stand-in for `dledger_broker.features.retention.job.WaitsInTheLog`. `wanted` is what it was told."""

    def __init__(self) -> None:
        self.wanted: list[tuple[int, bool]] = []
        self.gives_up = False
        self.free_below = 1 << 62

    def is_free_below(self, position: int) -> bool:
        return position <= self.free_below

    def room_needed(self) -> int:
        return 0

    def request(self, position: int, *, disk_full: bool, give_up: bool = False) -> None:
        self.gives_up = give_up
        self.wanted.append((position, disk_full))
