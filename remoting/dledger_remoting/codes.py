"""Request codes, response codes, language codes and client versions of the remoting protocol.

Every number is RocketMQ's own, except the numbers from 20001 on, which are ours.

Requests to name servers that only read need no signature, even with access control. Clients do not sign them, nor do
RocketMQ's. Someone who listens, or runs a foreign name server, could otherwise send an
administrator's signed request to a broker, as another request.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class RequestCode(IntEnum):
    """Code of a request. An answer 3 (not supported) tells the sender the name of its code."""

    SEND_MESSAGE = 10
    PULL_MESSAGE = 11
    QUERY_MESSAGE = 12
    QUERY_BROKER_OFFSET = 13
    QUERY_CONSUMER_OFFSET = 14
    UPDATE_CONSUMER_OFFSET = 15
    UPDATE_AND_CREATE_TOPIC = 17
    UPDATE_AND_CREATE_TOPIC_LIST = 18
    GET_ALL_TOPIC_CONFIG = 21
    GET_TOPIC_CONFIG_LIST = 22
    GET_TOPIC_NAME_LIST = 23
    UPDATE_BROKER_CONFIG = 25
    GET_BROKER_CONFIG = 26
    TRIGGER_DELETE_FILES = 27
    GET_BROKER_RUNTIME_INFO = 28
    SEARCH_OFFSET_BY_TIMESTAMP = 29
    GET_MAX_OFFSET = 30
    GET_MIN_OFFSET = 31
    GET_EARLIEST_MSG_STORETIME = 32
    VIEW_MESSAGE_BY_ID = 33
    HEART_BEAT = 34
    UNREGISTER_CLIENT = 35
    CONSUMER_SEND_MSG_BACK = 36
    END_TRANSACTION = 37
    GET_CONSUMER_LIST_BY_GROUP = 38
    CHECK_TRANSACTION_STATE = 39
    NOTIFY_CONSUMER_IDS_CHANGED = 40
    LOCK_BATCH_MQ = 41
    UNLOCK_BATCH_MQ = 42
    GET_ALL_CONSUMER_OFFSET = 43
    GET_ALL_DELAY_OFFSET = 45
    CHECK_CLIENT_CONFIG = 46
    GET_CLIENT_CONFIG = 47
    UPDATE_AND_CREATE_ACL_CONFIG = 50
    DELETE_ACL_CONFIG = 51
    GET_BROKER_CLUSTER_ACL_INFO = 52
    UPDATE_GLOBAL_WHITE_ADDRS_CONFIG = 53
    GET_BROKER_CLUSTER_ACL_CONFIG = 54
    GET_TIMER_CHECK_POINT = 60
    GET_TIMER_METRICS = 61
    PUT_KV_CONFIG = 100
    GET_KV_CONFIG = 101
    DELETE_KV_CONFIG = 102
    REGISTER_BROKER = 103
    UNREGISTER_BROKER = 104
    GET_ROUTEINFO_BY_TOPIC = 105
    GET_BROKER_CLUSTER_INFO = 106
    UPDATE_AND_CREATE_SUBSCRIPTION_GROUP = 200
    GET_ALL_SUBSCRIPTION_GROUP_CONFIG = 201
    GET_TOPIC_STATS_INFO = 202
    GET_CONSUMER_CONNECTION_LIST = 203
    GET_PRODUCER_CONNECTION_LIST = 204
    WIPE_WRITE_PERM_OF_BROKER = 205
    GET_ALL_TOPIC_LIST_FROM_NAMESERVER = 206
    DELETE_SUBSCRIPTION_GROUP = 207
    GET_CONSUME_STATS = 208
    SUSPEND_CONSUMER = 209
    RESUME_CONSUMER = 210
    RESET_CONSUMER_OFFSET_IN_CONSUMER = 211
    RESET_CONSUMER_OFFSET_IN_BROKER = 212
    ADJUST_CONSUMER_THREAD_POOL = 213
    WHO_CONSUME_THE_MESSAGE = 214
    DELETE_TOPIC_IN_BROKER = 215
    DELETE_TOPIC_IN_NAMESRV = 216
    REGISTER_TOPIC_IN_NAMESRV = 217
    GET_KVLIST_BY_NAMESPACE = 219
    RESET_CONSUMER_CLIENT_OFFSET = 220
    GET_CONSUMER_STATUS_FROM_CLIENT = 221
    INVOKE_BROKER_TO_RESET_OFFSET = 222
    INVOKE_BROKER_TO_GET_CONSUMER_STATUS = 223
    GET_TOPICS_BY_CLUSTER = 224
    UPDATE_AND_CREATE_SUBSCRIPTION_GROUP_LIST = 225
    QUERY_TOPIC_CONSUME_BY_WHO = 300
    REGISTER_FILTER_SERVER = 301
    REGISTER_MESSAGE_FILTER_CLASS = 302
    QUERY_CONSUME_TIME_SPAN = 303
    GET_SYSTEM_TOPIC_LIST_FROM_NS = 304
    GET_SYSTEM_TOPIC_LIST_FROM_BROKER = 305
    CLEAN_EXPIRED_CONSUMEQUEUE = 306
    GET_CONSUMER_RUNNING_INFO = 307
    QUERY_CORRECTION_OFFSET = 308
    CONSUME_MESSAGE_DIRECTLY = 309
    SEND_MESSAGE_V2 = 310
    GET_UNIT_TOPIC_LIST = 311
    GET_HAS_UNIT_SUB_TOPIC_LIST = 312
    GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST = 313
    CLONE_GROUP_OFFSET = 314
    VIEW_BROKER_STATS_DATA = 315
    CLEAN_UNUSED_TOPIC = 316
    GET_BROKER_CONSUME_STATS = 317
    UPDATE_NAMESRV_CONFIG = 318
    GET_NAMESRV_CONFIG = 319
    SEND_BATCH_MESSAGE = 320
    QUERY_CONSUME_QUEUE = 321
    QUERY_DATA_VERSION = 322
    RESUME_CHECK_HALF_MESSAGE = 323
    SEND_REPLY_MESSAGE = 324
    SEND_REPLY_MESSAGE_V2 = 325
    PUSH_REPLY_MESSAGE_TO_CLIENT = 326
    ADD_WRITE_PERM_OF_BROKER = 327
    GET_ALL_PRODUCER_INFO = 328
    DELETE_EXPIRED_COMMITLOG = 329
    GET_TOPICS_OF_GROUP = 343
    GET_SUBSCRIPTION_OF_GROUP = 345
    GET_TOPIC_CONFIG = 351
    GET_SUBSCRIPTION_GROUP_CONFIG = 352
    UPDATE_AND_GET_GROUP_FORBIDDEN = 353
    CHECK_ROCKSDB_CQ_WRITE_PROGRESS = 354
    EXPORT_ROCKSDB_CONFIG_TO_JSON = 355
    LITE_PULL_MESSAGE = 361
    RECALL_MESSAGE = 370
    QUERY_ASSIGNMENT = 400
    SET_MESSAGE_REQUEST_MODE = 401
    GET_ALL_MESSAGE_REQUEST_MODE = 402
    UPDATE_AND_CREATE_STATIC_TOPIC = 513
    GET_BROKER_MEMBER_GROUP = 901
    ADD_BROKER = 902
    REMOVE_BROKER = 903
    BROKER_HEARTBEAT = 904
    NOTIFY_MIN_BROKER_ID_CHANGE = 905
    EXCHANGE_BROKER_HA_INFO = 906
    GET_BROKER_HA_STATUS = 907
    RESET_MASTER_FLUSH_OFFSET = 908
    CONTROLLER_ALTER_SYNC_STATE_SET = 1001
    CONTROLLER_ELECT_MASTER = 1002
    CONTROLLER_REGISTER_BROKER = 1003
    CONTROLLER_GET_REPLICA_INFO = 1004
    CONTROLLER_GET_METADATA_INFO = 1005
    CONTROLLER_GET_SYNC_STATE_DATA = 1006
    GET_BROKER_EPOCH_CACHE = 1007
    NOTIFY_BROKER_ROLE_CHANGED = 1008
    UPDATE_CONTROLLER_CONFIG = 1009
    GET_CONTROLLER_CONFIG = 1010
    CLEAN_BROKER_DATA = 1011
    CONTROLLER_GET_NEXT_BROKER_ID = 1012
    CONTROLLER_APPLY_BROKER_ID = 1013
    UPDATE_COLD_DATA_FLOW_CTR_CONFIG = 2001
    REMOVE_COLD_DATA_FLOW_CTR_CONFIG = 2002
    GET_COLD_DATA_FLOW_CTR_INFO = 2003
    SET_COMMITLOG_READ_MODE = 2004
    AUTH_CREATE_USER = 3001
    AUTH_UPDATE_USER = 3002
    AUTH_DELETE_USER = 3003
    AUTH_GET_USER = 3004
    AUTH_LIST_USER = 3005
    AUTH_CREATE_ACL = 3006
    AUTH_UPDATE_ACL = 3007
    AUTH_DELETE_ACL = 3008
    AUTH_GET_ACL = 3009
    AUTH_LIST_ACL = 3010
    POP_MESSAGE = 200050
    ACK_MESSAGE = 200051
    PEEK_MESSAGE = 200052
    CHANGE_MESSAGE_INVISIBLETIME = 200053
    NOTIFICATION = 200054
    POLLING_INFO = 200055
    POP_ROLLBACK = 200056
    BATCH_ACK_MESSAGE = 200151

    DLEDGER_ROUTE_WATCH = 20001
    """Long poll at a name server: `RouteWatchHeader` names topics and the route version last seen.

    The answer comes when the route of one of these topics has changed since then, or after the poll's time limit. Its
    ext `version` is the present version.
    """
    DLEDGER_FORGET_GROUP = 20003
    """Tells a name server that a broker group is gone for good and has no node any more: `BrokerNameHeader`."""
    DLEDGER_QUEUE_READERS = 20004
    """Asks which clients read a group's queues from this node: `ConsumerGroupHeader`; the answer's body is
    `QueueReaders`.
    """
    DLEDGER_TOPIC_CHANGES = 20005
    """Tells a name server what has changed in a registered node's topics: `BrokerNodeHeader`, body `TopicChangesBody`.
    Only for name servers whose answer to 103 says `acceptsTopicChanges`. Any answer but success asks for a whole
    registration.
    """
    READ_PLAN = 20010
    """Asks what part of a group's log can be read, and where to cut it: `ReadPlanHeader`; the answer's body is a
    `ReadPlan`.
    """
    READ_RANGE = 20011
    """Reads raw committed bytes of the log: `ReadRangeHeader`, answered with `ReadRangeResponseHeader`."""
    READ_COMMIT = 20012
    """Asks a confirmed leader how far the log is committed: no header, answered with `ReadCommitResponseHeader`."""
    PIN_LOG = 20013
    """Pins the log, which is then kept from a position on for a while: `PinHeader`, answered with `PinResponseHeader`.
    """
    UNPIN_LOG = 20014
    """Removes a pin: `PinNameHeader`."""
    LIST_PINS = 20015
    """Lists all pins of a group; the answer's body is a `PinList`."""
    RELEASE_LOCKS = 20016
    """Releases the queue locks that a member of a consumer group was granted over this channel: the header of 35."""
    PUT_QUOTA = 20017
    """Sets or removes the quota of an account or a topic: the body is a `Quota`."""
    LIST_QUOTAS = 20018
    """Lists all quotas of a group; the answer's body is a `QuotaList`."""
    CHANNEL_GONE = 20019
    """Tells a leader that the client is gone whose requests the sending node passed on over this channel. No header."""
    LEASE_HEARD = 20020
    """Tells a leader that a client with a lease has sent another node a heartbeat, or left: `LeaseHeardHeader`."""
    CONFIRM_LEASE = 20021
    """Begins a lease of popped messages, because they have reached their client: `ConfirmLeaseHeader`."""
    LIST_LEADER_CHANGES = 20030
    """Asks a node which leaders it has seen since its start, with reasons: no header; the answer's body is
    `LeaderChanges`.
    """
    HAND_OVER = 20031
    """Has a leader hand over to another voter: `HandOverHeader`. The answer says that this has begun."""
    READ_AUDIT = 20032
    """Asks a node for the newest lines of its audit log: `AuditHeader`; the answer's body is `AuditLines`."""
    LIST_DELAYED = 20033
    """Lists the delayed messages that are due next: `ListDelayedHeader`; the answer's body is `DelayedRows`."""
    LIST_HALVES = 20034
    """Lists open halves of transactions: `ListHalvesHeader`; the answer's body is `HalfRows`."""


class ResponseCode(IntEnum):
    """Outcome of a request. `errors.error_from_response` turns every code but SUCCESS into an exception."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    BROKER_NOT_EXIST = 211
    BROKER_DISPATCH_NOT_COMPLETE = 212
    BROADCAST_CONSUMPTION = 213
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    USER_NOT_EXIST = 3001
    POLICY_NOT_EXIST = 3002

    READ_ROLE_REFUSED = 20110
    """A range read was refused: the reader does not accept this node's present role."""
    READ_BEHIND = 20111
    """A range read asked for a part of the log that this node has not applied yet."""
    READ_TRIMMED = 20112
    """A range read asked for a part of the log that this node no longer keeps."""


class LanguageCode(IntEnum):
    """Programming language of the sender: a number in the binary header, the member's name in the JSON header."""

    JAVA = 0
    CPP = 1
    DOTNET = 2
    PYTHON = 3
    DELPHI = 4
    ERLANG = 5
    RUBY = 6
    OTHER = 7
    HTTP = 8
    GO = 9
    PHP = 10
    OMS = 11
    RUST = 12
    NODE_JS = 13

    @classmethod
    def from_wire(cls, value: str | int | None) -> LanguageCode:
        """Return the language that a header names: JAVA if it names none, OTHER if it is unknown."""
        if value is None:
            return cls.JAVA
        known = _LANGUAGE_BY_NAME.get(value) if isinstance(value, str) else _LANGUAGE_BY_NUMBER.get(value)
        return cls.OTHER if known is None else known


_LANGUAGE_BY_NAME: Final = {language.name: language for language in LanguageCode}
_LANGUAGE_BY_NUMBER: Final = {language.value: language for language in LanguageCode}


class ClientVersion(IntEnum):
    """Ordinals of the RocketMQ releases on which some rule of the protocol depends."""

    V4_9_4 = 401
    V5_3_3 = 479


PROTOCOL_VERSION: Final = int(ClientVersion.V5_3_3)
"""The version that this implementation states in its requests and responses."""

STANDARD_JSON_VERSION: Final = int(ClientVersion.V4_9_4)
"""First client version that gets routes in standard JSON. Older clients get fastjson's unquoted integer keys."""


def request_code_name(code: int) -> str:
    """Return the name of a request code for a log line or a remark, `unknown` if it has none."""
    try:
        return RequestCode(code).name
    except ValueError:
        return "unknown"


OPEN_CODES: Final = frozenset(
    {
        RequestCode.GET_KV_CONFIG,
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_BROKER_CLUSTER_INFO,
        RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
        RequestCode.GET_TOPICS_BY_CLUSTER,
        RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
        RequestCode.GET_UNIT_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
        RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
        RequestCode.GET_KVLIST_BY_NAMESPACE,
        RequestCode.GET_BROKER_MEMBER_GROUP,
        RequestCode.GET_NAMESRV_CONFIG,
        RequestCode.DLEDGER_ROUTE_WATCH,
    }
)
"""Codes that need no signature. Every other code needs the key file, including codes that are added later."""
