"""Keys about topics, consumer groups, and idempotent and delayed sends, transactions and filters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from dledger_base.config_keys.declared import Alias, ConfigValue, key, limit
from dledger_broker.broker_conf import as_text
from dledger_broker.errors import ConfigError
from dledger_broker.filter_process.messages import split_target
from dledger_remoting.errors import SubscriptionParseFailed
from dledger_remoting.filters.subscriptions import class_name
from dledger_remoting.recalls import DEFAULT_LEVELS, parse_delay_levels
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
    """Topics and consumer groups that exist or appear by themselves, and how consumer groups consume."""

    auto_create_topic: bool = key(
        True,
        "whether a send to an unknown topic creates the topic, on the broker group that gets the message; `dledger "
        "topic create` creates a topic on all groups",
        aliases=(Alias("autoCreateTopicEnable"),),
        live=True,
    )
    region_id: str = key(
        "",
        "value of the property `MSG_REGION` that is stored with every message, like RocketMQ's `regionId` "
        "(`DefaultRegion` there). Consumers of Java's clients 5.x do not [trace](guides/traces.md) messages without "
        'it. It takes about 25 bytes per message, and must be the same on every node; `""` stores none',
        aliases=(Alias("regionId", as_text),),
        check=_region,
    )
    trace_topic: bool = key(
        True,
        "whether there is a topic for the [traces](guides/traces.md) of clients: `RMQ_SYS_TRACE_TOPIC`, with one "
        "queue. As in RocketMQ, clients cannot create it, and Go's client writes no trace without it. An existing "
        "topic stays when this becomes `false`",
        aliases=(Alias("traceTopicEnable"),),
    )
    auto_create_group: bool = key(
        True,
        "whether a heartbeat or pull of an unknown consumer group creates the group",
        aliases=(Alias("autoCreateSubscriptionGroup"),),
        live=True,
    )
    property_filter: bool = key(
        True,
        "whether consumers may filter by the properties of messages, with expressions in SQL92",
        aliases=(Alias("enablePropertyFilter"),),
        live=True,
    )
    class_filters: Mapping[str, str] = key(
        {},
        "table `[class_filters]` of functions that consumers may name as their filter, see [class "
        "filters](#class-filters)",
        takes='a table of `"module:function"`',
        read=_class_filters,
    )
    class_filter_timeout_ms: int = limit(
        1_000,
        "time limit of a class filter for the messages of one answer, at most 800 messages",
        consequence="after it the process of the filter is replaced",
        bounds=(10, 20_000),
    )
    class_filter_memory_bytes: int = limit(
        256 * MIB,
        "maximum address space of a class filter's process, Python itself included",
        consequence="a process that needs more is replaced",
        bounds=(64 * MIB, 1 << 40),
    )
    write_aliases: bool = key(
        False,
        "whether topics have [write aliases](wire.md#write-aliases). A topic's attribute `write.aliases` (`true` or "
        "`false`) overrides it. The leader's value counts, so set the same value on all nodes of a group",
    )
    follower_reads: str = key(
        "off",
        "consumers that are [told to pull from followers](wire.md#reading-from-followers). `off`: none. `lagging`: "
        "those whose next message is more than `follower_reads_behind_bytes` before the end of the log. `spread`: "
        "all, spread over the leader and the followers",
        consequence="with `spread`, a dead node holds up only the queues that are read from it, until clients ask for "
        "the route again",
        choices=("off", "lagging", "spread"),
        expected="'off', 'lagging' or 'spread': the consumers that are told to pull from followers",
        live=True,
    )
    follower_reads_behind_bytes: int = limit(
        1 << 30,
        "minimum distance in the log, from the next message of a consumer to the end, at which the consumer is lagging",
        bounds=(0, 1 << 40),
    )
    pop_retry_topic_v2: bool = key(
        False,
        "whether popped messages are delivered again from `%RETRY%group+topic`, not from `%RETRY%group_topic`, whose "
        "name two groups may share. With access control it is always so",
        aliases=(Alias("enableRetryTopicV2"),),
    )
    default_request_mode: str = key(
        "pull",
        "whether consumers whose queues [the broker assigns](wire.md#assignments) pull or pop messages, unless a mode "
        "was set for their group and topic (401)",
        choices=("pull", "pop"),
        expected="'pull' or 'pop': the mode of consumers whose queues the broker assigns",
        aliases=(Alias("defaultMessageRequestMode", words={"PULL": "pull", "POP": "pop"}),),
        live=True,
    )
    default_topic_queues: int = key(
        DEFAULT_TOPIC_QUEUES,
        "maximum number of queues of a topic that a send creates. The topic has fewer queues if the client asks for "
        "fewer: RocketMQ's clients ask for 4, our client for 8. `dledger topic create` makes 8, too. The maximum is "
        "the number of queues of `TBW102`. That topic is made when a group is founded, and changed when this key is "
        "set live. Changing the file of a founded group has no effect",
        bounds=(1, 1_024),
        aliases=(Alias("defaultTopicQueueNums"),),
        live=True,
    )
    max_message_bytes: int = key(
        4 * MIB,
        "maximum size of a message body",
        bounds=(1, 4 * MIB),
        below=("max_frame_bytes", "the largest message would not fit into a frame"),
        aliases=(Alias("maxMessageSize"),),
        live=True,
    )


@dataclass(frozen=True, kw_only=True)
class IdempotentSends:
    """Time and number of sends that are remembered, so that a repeated send is not stored again."""

    idempotent_window_ms: int = key(
        120_000,
        "minimum time for which an [opted-in send](wire.md#idempotent-sends) is remembered. A repetition within it is "
        "answered and not stored. 0 = sends are not remembered",
        bounds=(0, 3_600_000),
    )
    max_idempotent_keys: int = limit(
        5_000_000,
        "maximum number of rows that remember sends. A row remembers one send, or up to 16 consecutive sends with "
        "consecutive unique keys. It takes 15 bytes of memory on a follower and 27 on the leader. In 2 minutes, "
        "35,000 sends/s make at most 4.2 million rows. Beyond the maximum, sends are stored but not remembered",
        bounds=(1, 1 << 30),
    )


@dataclass(frozen=True, kw_only=True)
class Transactions:
    """Times at which half messages are checked, and the maximum number of open half messages."""

    transaction_timeout_ms: int = key(
        6_000,
        "time from the send of a half message to its first check. The message may name another time "
        "(`CHECK_IMMUNITY_TIME_IN_SECONDS`, at most an hour)",
        bounds=(0, _DAY_MS),
        live=True,
    )
    transaction_check_interval_ms: int = key(
        30_000,
        "interval between two checks of a half message. It is longer if more checks are due, because a leader makes "
        "at most 500 a second",
        bounds=(100, _DAY_MS),
        live=True,
    )
    transaction_check_max: int = key(
        15,
        "maximum number of checks of a half message, with or without a connected producer of its group; then the "
        "message is given up",
        bounds=(1, 1_000),
        live=True,
    )
    max_open_halves: int = limit(
        100_000,
        "maximum number of transactions that are neither committed nor rolled back",
        consequence="a further one is answered 2",
        bounds=(1, 10_000_000),
    )


def _delay_levels(_name: str, value: str) -> None:
    parse_delay_levels(value)


@dataclass(frozen=True, kw_only=True)
class DelayedMessages:
    """Limits on the delay and the number of delayed messages."""

    delay_levels: str = key(
        DEFAULT_LEVELS,
        "delays that [messages name by number](wire.md#delayed-messages), from 1 on; must be the same on every node",
        takes="1 to 64 numbers, each with s, m, h or d",
        aliases=(Alias("messageDelayLevel", as_text),),
        check=_delay_levels,
    )
    timer_max_delay_s: int = key(
        259_200,
        "maximum time until delivery that a message may ask for",
        bounds=(1, 40 * 86_400),
        aliases=(Alias("timerMaxDelaySec"),),
        live=True,
    )
    max_pending_timers: int = limit(
        10_000_000,
        "maximum number of messages that wait for their delivery",
        consequence="a further one is refused (1). Messages that consumers send back may exceed this limit and the "
        "next by a quarter",
        bounds=(1, 1 << 40),
    )
    max_pending_timer_bytes: int = limit(
        0,
        "maximum size of the waiting messages in the log. 0 = a quarter of the log that the smallest node may keep, "
        "and no key can raise it. A node may keep the smaller of `retention_bytes` and the log that fits on its disk "
        "below `disk_max_used_ratio`. At least one segment always counts as fitting. Nodes that have been silent for "
        "20 s do not count. Before the log is trimmed, waiting messages in that part are written again at its end",
        bounds=(0, 1 << 60),
    )
