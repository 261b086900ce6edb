"""What a broker counts about its clients: plain integers, read by the exporter when somebody asks."""

from __future__ import annotations

from dataclasses import asdict, dataclass


@dataclass(slots=True)
class BrokerCounters:
    """Numbers that only grow. Limits are counted each time they act, under the name of their configuration key."""

    requests: int = 0
    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    errors: int = 0
    outcomes_unknown: int = 0
    connections_accepted: int = 0
    frames_refused: int = 0
    forwarded: int = 0
    forward_refusals: int = 0
    forward_held: int = 0
    forward_expired: int = 0
    cold_reads: int = 0
    range_reads: int = 0
    range_reads_refused: int = 0
    range_bytes_leader: int = 0
    range_bytes_follower: int = 0
    range_bytes_learner: int = 0
    pins_overridden: int = 0
    idempotent_repeats: int = 0
    idempotent_waits: int = 0
    idempotent_overflow: int = 0
    max_connections: int = 0
    max_in_flight: int = 0
    max_held_pulls: int = 0
    max_frame_bytes: int = 0
    pause_outgoing_bytes: int = 0
    max_outgoing_bytes: int = 0
    slow_reader_timeout: int = 0
    idle_timeout: int = 0
    max_forward_bytes: int = 0

    def count_range_read(self, role: str, size: int) -> None:
        """A range read was answered by this node in the role of leader, follower or learner."""
        self.range_reads += 1
        if role == "leader":
            self.range_bytes_leader += size
        elif role == "follower":
            self.range_bytes_follower += size
        else:
            self.range_bytes_learner += size

    def as_dict(self) -> dict[str, int]:
        """All of them by name."""
        return asdict(self)
