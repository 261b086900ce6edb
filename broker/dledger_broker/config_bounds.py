"""Bounds of the configuration's numbers, and which of two must be the smaller one."""

from __future__ import annotations

from typing import Final

from dledger_remoting.filters.limits import MAX_DEPTH, MAX_EXPRESSION_CHARS

MIB: Final = 1 << 20
MAX_BROKER_ID: Final = 2**31 - 1
_DAY_MS: Final = 86_400_000
BOUNDS: Final[tuple[tuple[str, float, float], ...]] = (
    ("broker_id_when_follower", 1, MAX_BROKER_ID),
    ("group_ordinal", 0, 32_767),
    ("segment_bytes", MIB, 1 << 40),
    ("heartbeat_ms", 10, 60_000),
    ("election_min_ms", 50, 600_000),
    ("election_max_ms", 50, 600_000),
    ("max_uncommitted_bytes", MIB, 1 << 32),
    ("snapshot_interval_s", 1, 86_400),
    ("reserve_bytes", MIB, 1 << 40),
    ("default_topic_queues", 1, 1_024),
    ("max_message_bytes", 1, 4 * MIB),
    ("idempotent_window_ms", 0, 3_600_000),
    ("max_idempotent_keys", 1, 1 << 30),
    ("transaction_timeout_ms", 0, _DAY_MS),
    ("transaction_check_interval_ms", 100, _DAY_MS),
    ("transaction_check_max", 1, 1_000),
    ("max_open_halves", 1, 10_000_000),
    ("timer_max_delay_s", 1, 40 * 86_400),
    ("max_pending_timers", 1, 1 << 40),
    ("max_pending_timer_bytes", 0, 1 << 60),
    ("busy_range_bytes_per_s", 0, 1 << 40),
    ("retention_hours", 1, 24 * 365 * 100),
    ("retention_bytes", 0, 1 << 60),
    ("disk_max_used_ratio", 0.10, 0.95),
    ("drain_ms", 0, _DAY_MS),
    ("forward_hold_ms", 0, 60_000),
    ("quorum_timeout_ms", 100, 600_000),
    ("register_period_ms", 100, 60_000),
    ("register_timeout_ms", 1_000, 600_000),
    ("offset_flush_ms", 1, 10_000),
    ("max_connections", 1, 1_000_000),
    ("max_in_flight", 1, 1_000_000),
    ("max_held_pulls", 1, 1_000_000),
    ("max_frame_bytes", 1_024, 64 * MIB),
    ("max_partial_bytes", 2_048, 1 << 40),
    ("slow_sender_timeout_ms", 10, _DAY_MS),
    ("pause_outgoing_bytes", 1_024, 1 << 30),
    ("max_outgoing_bytes", 1_024, 1 << 32),
    ("slow_reader_timeout_ms", 10, _DAY_MS),
    ("idle_timeout_ms", 10, _DAY_MS),
    ("max_forward_bytes", 1_024, 1 << 32),
    ("max_relayed_calls", 1, 1_000_000),
    ("max_locks_per_group", 1, 100_000),
    ("max_pop_in_flight", 32, 1_000_000),
    ("max_request_modes", 1, 10_000_000),
    ("class_filter_timeout_ms", 10, 20_000),
    ("class_filter_memory_bytes", 64 * MIB, 1 << 40),
    ("max_filter_chars", 1, MAX_EXPRESSION_CHARS),
    ("max_filter_depth", 1, MAX_DEPTH),
    ("max_filter_operands", 1, 32_767),
    ("max_class_filter_waits", 1, 100_000),
)

ORDERED: Final = (
    ("heartbeat_ms", "election_min_ms", "followers would start elections between two heartbeats"),
    ("election_min_ms", "election_max_ms", "followers would start elections at the same moment"),
    ("register_period_ms", "register_timeout_ms", "name servers would drop this node between two registrations"),
    ("max_message_bytes", "max_frame_bytes", "the largest message would not fit into a frame"),
    ("pause_outgoing_bytes", "max_outgoing_bytes", "connections would be dropped before they are slowed down"),
)
