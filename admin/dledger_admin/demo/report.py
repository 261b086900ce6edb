"""Report of the demonstration: its findings, and whether all of them are as promised."""

from __future__ import annotations

import msgspec


class DemoReport(msgspec.Struct, frozen=True, kw_only=True):
    """All figures that the demonstration prints. The name of a time or size ends with its unit."""

    files: int
    files_identical: int
    files_different: list[str]
    startup_seconds: float
    total_seconds: float
    messages_sent: int
    megabytes_sent: float
    messages_received: int
    megabytes_received: float
    messages_per_second: float
    failover_gap_ms: float
    killed_node: str
    new_leader: str
    new_term: int
    duplicates: int
    out_of_order: int
    replicas: int
    replicas_identical: bool
    compared_bytes: int
    log_problems: list[str]

    @property
    def holds(self) -> bool:
        """True if every file came back unchanged and in order, no message is missing, and the replicas agree."""
        return (
            self.files_identical == self.files
            and self._replicas_hold
            and self.out_of_order == 0
            and self.messages_received == self.messages_sent + self.duplicates
        )

    @property
    def _replicas_hold(self) -> bool:
        """True if the replicas are identical over more bytes than were sent, and no log has a problem."""
        return self.replicas_identical and not self.log_problems and self.compared_bytes > self.megabytes_sent * 1e6

    def lines(self) -> list[tuple[str, str, bool]]:
        """Return label, value and whether the value is as promised, in the order of the story."""
        return [
            ("start to first acknowledged send", f"{self.startup_seconds:.2f} s", True),
            ("sent", f"{self.messages_sent:,} messages, {self.megabytes_sent:.1f} MB", True),
            (
                "received by two consumers",
                f"{self.messages_received:,} messages, {self.megabytes_received:.1f} MB",
                self.messages_received == self.messages_sent + self.duplicates,
            ),
            ("rate", f"{self.messages_per_second:,.0f} messages/s, sent and received", True),
            ("killed with SIGKILL", self.killed_node, True),
            ("new leader", f"{self.new_leader}, term {self.new_term}", True),
            ("longest pause of the client", f"{self.failover_gap_ms:.0f} ms", True),
            ("duplicates seen", f"{self.duplicates:,}", True),
            ("lines out of order", f"{self.out_of_order:,}", self.out_of_order == 0),
            (
                "files identical",
                f"{self.files_identical}/{self.files}" + _examples(self.files_different),
                self.files_identical == self.files,
            ),
            (
                "replicas' committed bytes",
                f"{'identical' if self.replicas_identical else 'DIFFERENT'} on {self.replicas} nodes, "
                f"{self.compared_bytes / 1e6:.1f} MB compared" + _examples(self.log_problems),
                self._replicas_hold,
            ),
            ("took", f"{self.total_seconds:.1f} s", True),
        ]


def _examples(names: list[str]) -> str:
    if not names:
        return ""
    return f" ({', '.join(names[:3])}{', ...' if len(names) > 3 else ''})"
