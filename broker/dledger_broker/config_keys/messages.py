"""Topics, groups and what sends may ask for: idempotent and delayed sends, transactions, filters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger.config_keys.declared import Alias, ConfigValue, key
from dledger_broker.broker_conf import as_text
from dledger_broker.errors import ConfigError
from dledger_broker.filter_process.targets import split_target
from dledger_remoting.delays import DEFAULT_LEVELS, parse_delay_levels
from dledger_remoting.errors import SubscriptionParseFailed
from dledger_remoting.filters.classes import class_name
from dledger_remoting.topics import DEFAULT_TOPIC_QUEUES

MIB: Final = 1 << 20
_DAY_MS: Final = 86_400_000
_REGION: Final = re.compile(r"[\w.-]{1,127}", re.ASCII)


def _class_filters(_name: str, value: ConfigValue, _base: Path) -> dict[str, str]:
    if not isinstance(value, dict):
        raise ConfigError(f'class_filters = {value!r}, expected a table [class_filters] of name = "module:function"')
    for name, target in value.items():
        try:
            split_target(str(target))
            class_name(name)
        except (ValueError, SubscriptionParseFailed) as error:
            raise ConfigError(f"class_filters.{name} = {target!r}: {error}") from error
    return {name: str(target) for name, target in value.items()}


def _region(_name: str, value: str) -> None:
    if value and not _REGION.fullmatch(value):
        raise ValueError("expected at most 127 letters, digits, '-', '_' and '.'")


@dataclass(frozen=True, kw_only=True)
class TopicsAndGroups:
    """What is there without being created, and how groups consume."""

    auto_create_topic: bool = key(
        True,
        "a send to an unknown topic creates it, on the broker group that the message goes to; `dledger topic create` "
        "creates it on all",
        aliases=(Alias("autoCreateTopicEnable"),),
        live=True,
    )
    region_id: str = key(
        "",
        "stored with every message as the property `MSG_REGION`, as RocketMQ's `regionId` is (`DefaultRegion` there): "
        "consumers of Java's clients 5.x [trace](guides/traces.md) no message without it. About 25 bytes a message; "
        'the same on every node; `""` stores none',
        aliases=(Alias("regionId", as_text),),
        check=_region,
    )
    trace_topic: bool = key(
        True,
        "there is a topic for the [traces](guides/traces.md) of clients, `RMQ_SYS_TRACE_TOPIC`, with one queue: "
        "clients cannot make it by themselves, as RocketMQ has it, nor does Go's write a trace without it. What is "
        "there stays when this becomes `false`",
        aliases=(Alias("traceTopicEnable"),),
    )
    auto_create_group: bool = key(
        True,
        "a heartbeat or pull of an unknown consumer group creates it",
        aliases=(Alias("autoCreateSubscriptionGroup"),),
        live=True,
    )
    property_filter: bool = key(
        True,
        "consumers may filter by what properties hold, with expressions in SQL92",
        aliases=(Alias("enablePropertyFilter"),),
        live=True,
    )
    class_filters: Mapping[str, str] = key(
        {},
        "a table `[class_filters]` of code that consumers may name as their filter: [class filters](#class-filters)",
        takes='a table of `"module:function"`',
        read=_class_filters,
    )
    class_filter_timeout_ms: int = key(
        1_000,
        "how long such code may look at the messages of one answer, at most 800",
        consequence="then its process is replaced",
        bounds=(10, 20_000),
    )
    class_filter_memory_bytes: int = key(
        256 * MIB,
        "address space of such a process, Python itself included",
        consequence="one that wants more is replaced",
        bounds=(64 * MIB, 1 << 40),
    )
    write_aliases: bool = key(
        False,
        "topics have [write aliases](wire.md#write-aliases) unless their attribute `write.aliases` is `false`; the "
        "leader's counts, so set it alike on all nodes of a group. Topics whose attribute is `true` have them anyhow",
    )
    follower_reads: str = key(
        "off",
        "who is [told to pull from followers](wire.md#reading-from-followers): nobody (`off`), consumers whose next "
        "message lies more than `follower_reads_behind_bytes` before the end of the log (`lagging`), or all, spread "
        "over the leader and the followers (`spread`)",
        consequence="with `spread` a node that dies holds up only the queues that are read from it, until clients ask "
        "for the route again",
        choices=("off", "lagging", "spread"),
        expected="'off', 'lagging' or 'spread': who is told to pull from followers",
        live=True,
    )
    follower_reads_behind_bytes: int = key(
        1 << 30,
        "how far before the end of the log the next message of a consumer that lags lies",
        bounds=(0, 1 << 40),
        live=True,
    )
    pop_retry_topic_v2: bool = key(
        False,
        "popped messages come again in `%RETRY%group+topic`, as they always do with access control, not in "
        "`%RETRY%group_topic`, whose name two groups may share",
        aliases=(Alias("enableRetryTopicV2"),),
    )
    default_request_mode: str = key(
        "pull",
        "how consumers whose queues [the broker assigns](wire.md#assignments) get messages, as far as nobody has set "
        "that for their group and topic (401)",
        choices=("pull", "pop"),
        expected="'pull' or 'pop': how consumers whose queues the broker assigns get messages",
        aliases=(Alias("defaultMessageRequestMode", words={"PULL": "pull", "POP": "pop"}),),
        live=True,
    )
    default_topic_queues: int = key(
        DEFAULT_TOPIC_QUEUES,
        "most queues of a topic that a send creates; fewer if the client asks for fewer, as RocketMQ's clients do: 4. "
        "Our client asks for 8, as many as `dledger topic create` makes. It is the number of `TBW102`, which is made "
        "when a group is founded, and changed when this is set live; in the file of a founded group it changes nothing",
        bounds=(1, 1_024),
        aliases=(Alias("defaultTopicQueueNums"),),
        live=True,
    )
    max_message_bytes: int = key(
        4 * MIB,
        "largest body",
        bounds=(1, 4 * MIB),
        below=("max_frame_bytes", "the largest message would not fit into a frame"),
        aliases=(Alias("maxMessageSize"),),
        live=True,
    )


@dataclass(frozen=True, kw_only=True)
class IdempotentSends:
    """How long, and how many, sends are remembered so that a repetition is not stored."""

    idempotent_window_ms: int = key(
        120_000,
        "how long an [opted-in send](wire.md#idempotent-sends) is remembered at least, so that a repetition is "
        "answered and not stored; 0 = not at all",
        bounds=(0, 3_600_000),
    )
    max_idempotent_keys: int = key(
        5_000_000,
        "how many rows remember them, each one send, or up to 16 that follow each other and whose unique keys do; 15 "
        "bytes of memory each on followers and 27 on the leader: 2 minutes of 35,000 sends/s are at most 4.2 million. "
        "Beyond, sends are stored only",
        bounds=(1, 1 << 30),
    )


@dataclass(frozen=True, kw_only=True)
class Transactions:
    """When halves are checked, and how many may be open."""

    transaction_timeout_ms: int = key(
        6_000,
        "how long after its send a half is checked first, unless it says so itself (`CHECK_IMMUNITY_TIME_IN_SECONDS`, "
        "at most an hour)",
        bounds=(0, _DAY_MS),
        live=True,
    )
    transaction_check_interval_ms: int = key(
        30_000,
        "pause between two checks of a half; longer if more are due, for a leader checks at most 500 a second",
        bounds=(100, _DAY_MS),
        live=True,
    )
    transaction_check_max: int = key(
        15,
        "how often a half is checked, whether a producer of its group is connected or not, before it is given up",
        bounds=(1, 1_000),
        live=True,
    )
    max_open_halves: int = key(
        100_000,
        "transactions that are neither committed nor rolled back",
        consequence="one more is answered 2",
        bounds=(1, 10_000_000),
        live=True,
    )


def _delay_levels(_name: str, value: str) -> None:
    parse_delay_levels(value)


@dataclass(frozen=True, kw_only=True)
class DelayedMessages:
    """How far off, and how many, messages may wait."""

    delay_levels: str = key(
        DEFAULT_LEVELS,
        "the delays that [messages name by number](wire.md#delayed-messages), from 1 on; the same on every node",
        takes="1 to 64 numbers, each with s, m, h or d",
        aliases=(Alias("messageDelayLevel", as_text),),
        check=_delay_levels,
    )
    timer_max_delay_s: int = key(
        259_200,
        "how far off the time may be that a message names",
        bounds=(1, 40 * 86_400),
        aliases=(Alias("timerMaxDelaySec"),),
        live=True,
    )
    max_pending_timers: int = key(
        10_000_000,
        "how many messages may wait",
        consequence="one more is refused (1). What consumers send back may go beyond both limits by a quarter",
        bounds=(1, 1 << 40),
        live=True,
    )
    max_pending_timer_bytes: int = key(
        0,
        "how many bytes of log they may take, if that is to be less than a quarter of what the smallest node may keep "
        "of it (`retention_bytes`, and its disk up to `disk_max_used_ratio`, one segment in any case, nodes that have "
        "been silent for 20 s left out): before the log is trimmed where they wait they are written again at its end",
        bounds=(0, 1 << 60),
    )
