"""Commands of Apache RocketMQ's `mqadmin`: the arguments of each, and the shape by which two outputs are compared.

A command is tried with words that contain names in braces, such as `{cluster}`, `{topic}` and `{group}`. `{broker}` is
the name of a broker group, and `{address}` that of its leader. The *shape* of its output is compared. In it names,
numbers, times, addresses and ids become placeholders, columns become single spaces, and equal lines become one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from dledger_broker.config import KEYS as BROKER_KEYS
from dledger_namesrv.config import KEYS as NAMESRV_KEYS

OLD: Final = "4.9.8"
NEW: Final = "5.3.3"


class Command(NamedTuple):
    """Command line, with the expectations about its output. `only` is the one release that has it, or None for both.

    - `refused`: part of the text with which our brokers refuse the command.
    - `says_nothing`: the reason why the output says nothing about brokers.
    - `pairs`: the output consists of keys with values, and only the keys are compared.
    - `settings`: these keys are settings. Settings that exist only here, or only in RocketMQ, are not compared.
    - `writes`: a JSON file below `{exports}` whose keys are compared too.
    - `about`: only lines that contain one of these texts are compared, since they are about the tests' own objects.
    - `more`: lines of the shape that only our output has, each with its reason beside it.
    - `fewer`: lines of the shape that only RocketMQ's output has, each with its reason beside it.
    """

    words: str
    only: str | None = None
    refused: str | None = None
    says_nothing: str = ""
    pairs: bool = False
    settings: bool = False
    writes: str = ""
    about: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    fewer: tuple[str, ...] = ()
    seconds: int = 40
    """Time limit in seconds, after which the command is interrupted. Some commands run until they are stopped."""

    @property
    def name(self) -> str:
        """Return the name in the list of `mqadmin help`."""
        return self.words.split()[0]


_CONTROLLER: Final = "a group elects its leader itself"
ACCOUNTS_OFF: Final = "access control is off on this node: set access_key_file"
_COLD: Final = "reads of what is not in memory hold up no send"
_COPIES: Final = "everything is in the log that nodes replicate"
_ROCKSDB: Final = "there is no RocksDB"
_FILES: Final = "it looks for files of RocketMQ's, and asks no broker"

_MADE: Final = ("<topic>", "<group>")
_NO_ROUTE: Final = (
    "org.apache.rocketmq.client.exception.MQClientException: CODE: 0 DESC: No topic route info in name server for the "
    "topic: %RETRY%<topic>"
)
_SEE: Final = (
    "See https://rocketmq.apache.org/docs/bestPractice/0FAQ for further details., "
    "org.apache.rocketmq.client.impl.MQClientAPIImpl.getTopicRouteInfoFromNameServer(MQClientAPIImpl.java:0)]"
)
_TRACK: Final = "MessageTrack [consumerGroup=<group>, trackType=CONSUMED, exceptionDesc=null]"
_NAMESAKE: Final = (
    f"MessageTrack [consumerGroup=<topic>, trackType=UNKNOWN, exceptionDesc={_NO_ROUTE}",
    _SEE,
    f"{_SEE}{_TRACK}",
)
"""Lines that only RocketMQ 5 prints, about a group with the topic's name that nobody has made (300).

In some outputs the next track follows on the last of these lines. Our output then has `_TRACK` on a line of its own.
"""

_REFUSED: Final = "Caused by: org.apache.rocketmq.client.exception.MQBrokerException: CODE: 0 DESC:"
_NULL_POINTER: Final = (
    'java.lang.NullPointerException: Cannot invoke "String.split(String)" because "getTransferedTps" is null'
)
_OLD_NAME: Final = (
    _NULL_POINTER,
    f"Caused by: {_NULL_POINTER}",
    "org.apache.rocketmq.tools.command.SubCommandException: ExportMetricsCommand command failed",
)
"""Error of the older release, which reads a figure that RocketMQ 5.3.3 no longer sends. Our brokers send it."""
_OWN_FIGURES: Final = (
    *(f"dledger{name} : <value>" for name in ("Addresses", "Draining", "Gauges", "Http", "Status", "UptimeMs")),
    "getTransferedTps : <value>",  # see _OLD_NAME
)
"""Figures that only our nodes report."""
_TLS_SETTINGS: Final = tuple(
    f"tls.server.{name} = <value>" for name in ("mode", "certPath", "keyPath", "trustCertPath", "need.client.auth")
)
"""Settings that RocketMQ takes from Java's command line only, and does not report."""
_NO_SUCH_SETTINGS: Final = tuple(
    f"configs.json.brokerConfigs.<broker>.{name}: text"
    for name in ("msgTraceTopicName", "slaveReadEnable", "traceOn", "useTLS")
)
_RUNTIME_ENVIRONMENT: Final = "metrics.json.evaluateReport.<broker>.runtimeEnv"
_PROCESS_QUEUE: Final = (
    "ProcessQueueInfo [commitOffset=0, cachedMsgMinOffset=0, cachedMsgMaxOffset=0, cachedMsgCount=0, "
    "cachedMsgSizeInMiB=0, transactionMsgMinOffset=0, transactionMsgMaxOffset=0, transactionMsgCount=0, locked=true, "
    "tryUnlockTimes=0, lastLockTimestamp=0, droped=false, lastPullTimestamp=0, lastConsumeTimestamp=0]"
)
_RETRY_QUEUE: Final = ("%RETRY%<group> <broker> 0 0", f"%RETRY%<group> <broker> 0 {_PROCESS_QUEUE}")
"""Line about the retry queue. A client shows this queue after its next route lookup, every 30 s."""

COMMANDS: Final = (
    Command("updateTopic -c {cluster} -t {topic} -r 4 -w 4"),
    Command("updateTopicPerm -c {cluster} -t {topic} -p 6"),
    Command("updateTopicList -c {cluster} -f {topics_file}", only=NEW),
    Command("topicList", about=_MADE),
    Command(
        "topicList -c",
        about=_MADE,
        more=("<cluster> <topic> <group>",),
        fewer=("<cluster> <topic> <topic>",),  # see _NAMESAKE
    ),
    Command("topicRoute -t {topic}"),
    Command("topicRoute -t {topic} -l", only=NEW),
    Command("topicStatus -t {topic}"),
    Command("topicClusterList -t {topic}"),
    Command("allocateMQ -t {topic} -i 10.0.0.1,10.0.0.2"),
    Command("updateOrderConf -t {topic} -m put -v {broker}:4"),
    Command("updateOrderConf -t {topic} -m get"),
    Command("updateOrderConf -t {topic} -m delete"),
    Command("updateSubGroup -c {cluster} -g {group}"),
    Command("updateSubGroupList -c {cluster} -f {groups_file}", only=NEW),
    Command("getConsumerConfig -g {group}"),
    Command("setConsumeMode -c {cluster} -t {topic} -g {group} -m PULL", only=NEW),
    Command(
        "consumerProgress -g {group}",  # the retry queue is shown before it has held a message
        more=("%RETRY%<group> <broker> 0 0 0 0 0 N/A", "%RETRY%<group> <broker> 0 0 0 0 N/A"),
    ),
    Command("consumerProgress -g {group} -t {topic}", only=NEW),
    Command("consumerProgress", about=("<group>",)),
    Command("consumerConnection -g {group}"),
    Command("consumerStatus -g {group}"),
    Command("consumerStatus -g {group} -i {client}", more=_RETRY_QUEUE, fewer=_RETRY_QUEUE),
    Command("producerConnection -g {producers} -t {topic}"),
    Command("producer -b {address}", about=("(<producers>)",)),
    Command("brokerConsumeStats -b {address}", about=("#Topic", "<group>", "Diff Total")),
    Command("statsAll -t {topic}", fewer=("<topic> <topic> 0 0 0 0 0",)),  # see _NAMESAKE
    Command("queryMsgById -i {offset_id} -t {topic}", only=NEW, fewer=_NAMESAKE),
    Command("queryMsgById -i {offset_id}", only=OLD, more=(_TRACK,), fewer=_NAMESAKE),
    Command("queryMsgByKey -t {topic} -k {key}"),
    Command("queryMsgByUniqueKey -t {topic} -i {unique_id}", more=(_TRACK,), fewer=_NAMESAKE),
    Command("queryMsgByOffset -t {topic} -b {broker} -i 0 -o 0", more=(_TRACK,), fewer=_NAMESAKE),
    Command("queryMsgTraceById -i {unique_id}"),
    Command("queryMsgTraceById -i {traced_id}"),
    Command("queryCq -t {topic} -q 0 -i 0 -c 2 -b {address}"),
    Command("queryCq -t {topic} -q 0 -i 0 -c 2 -b {address} -g {group}"),
    Command("printMsg -t {topic}"),
    Command("printMsgByQueue -t {topic} -a {broker} -i 0 -p true -d true"),
    Command("sendMessage -t {topic} -p hello -k {key} -b {broker} -i 0"),
    Command("consumeMessage -t {topic} -b {broker} -i 0 -o 0 -c 1"),
    Command("sendMsgStatus -b {broker} -c 2"),
    Command("checkMsgSendRT -t {topic} -a 2"),
    Command("clusterList", fewer=_OLD_NAME),
    Command("clusterList -m"),
    Command("brokerStatus -b {address}", pairs=True, more=_OWN_FIGURES),
    Command(
        "getBrokerConfig -b {address}",
        pairs=True,
        settings=True,
        more=(*_TLS_SETTINGS, "dLegerSelfId = <value>"),  # a single broker does not report its own id
    ),
    Command("updateBrokerConfig -b {address} -k fileReservedTime -v 48"),
    Command("updateBrokerConfig -c {cluster} -k autoCreateTopicEnable -v true"),
    Command("updateKvConfig -s TESTS -k a -v b"),
    Command("deleteKvConfig -s TESTS -k a"),
    Command("wipeWritePerm -b {broker}"),
    Command("addWritePerm -b {broker}"),
    Command("getNamesrvConfig", pairs=True, settings=True, more=_TLS_SETTINGS),
    Command("updateNamesrvConfig -k orderMessageEnable -v true"),
    Command("cleanExpiredCQ -b {address}"),
    Command("deleteExpiredCommitLog -b {address}"),
    Command("cleanUnusedTopic -b {address}"),
    Command("resetOffsetByTime -g {group} -t {topic} -s -1"),
    Command("skipAccumulatedMessage -g {group} -t {topic}"),
    Command(
        "cloneGroupOffset -s {group} -d {other_group} -t {topic} -o true",
        more=(f"{_REFUSED} consumer group <other_group> does not exist: create it first BROKER: <address>",),
        fewer=(f"{_REFUSED} Group <other_group> not exist! BROKER: <address>",),
    ),
    Command("updateSubGroup -c {cluster} -g {other_group}"),
    Command("cloneGroupOffset -s {group} -d {other_group} -o true -t {topic}"),
    Command(
        "exportMetadata -c {cluster} -f {exports}", writes="metadata.json", about=("export ", "exportTime", *_MADE)
    ),
    Command("exportConfigs -c {cluster} -f {exports}", writes="configs.json", fewer=_NO_SUCH_SETTINGS),
    Command(
        "exportMetrics -c {cluster} -f {exports}",
        only=NEW,
        writes="metrics.json",
        more=(f"{_RUNTIME_ENVIRONMENT}: empty",),
        fewer=(f"{_RUNTIME_ENVIRONMENT}.cpuNum: text",),  # RocketMQ reports a number of threads under this name
    ),
    Command(
        "exportMetrics -c {cluster} -f {exports}",
        only=OLD,
        more=("export <exports>/metrics.json success",),
        fewer=_OLD_NAME,
    ),
    Command(
        "updateStaticTopic -t {static_topic} -qn 2 -c {cluster}", only=NEW, refused="a queue stays in the broker group"
    ),
    Command("remappingStaticTopic -t {topic} -c {cluster}", only=NEW),
    Command("haStatus -b {address}", only=NEW, refused=_COPIES),
    Command("resetMasterFlushOffset -b {address} -o 0", only=NEW, refused=_COPIES),
    Command("addBroker -c {address} -b /etc/hosts", only=NEW, refused=_COPIES),
    Command("removeBroker -c {address} -b {cluster}:{broker}:0", only=NEW, refused=_COPIES),
    Command("getSyncStateSet -a {address} -b {broker}", only=NEW, refused=_CONTROLLER),
    Command("getBrokerEpoch -b {broker}", only=NEW, refused=_CONTROLLER),
    Command("getControllerMetaData -a {address}", only=NEW, refused=_CONTROLLER),
    Command("getControllerConfig -a {address}", only=NEW, refused=_CONTROLLER),
    Command("updateControllerConfig -a {address} -k a -v b", only=NEW, refused=_CONTROLLER),
    Command("electMaster -a {address} -b 1 -bn {broker} -c {cluster}", only=NEW, refused=_CONTROLLER),
    Command("cleanBrokerMetadata -a {address} -bn {broker} -c {cluster} -l", only=NEW, refused=_CONTROLLER),
    Command("getColdDataFlowCtrInfo -b {address}", only=NEW, refused=_COLD),
    Command("updateColdDataFlowCtrGroupConfig -b {address} -g {group} -v 1", only=NEW, refused=_COLD),
    Command("removeColdDataFlowCtrGroupConfig -b {address} -g {group}", only=NEW, refused=_COLD),
    Command("setCommitLogReadAheadMode -b {address} -m 0", only=NEW, refused=_COLD),
    Command("createUser -b {address} -u someone -p secret", only=NEW, refused=ACCOUNTS_OFF),
    Command("updateUser -b {address} -u someone -p secret", only=NEW, refused=ACCOUNTS_OFF),
    Command("getUser -b {address} -u someone", only=NEW, refused=ACCOUNTS_OFF),
    Command("listUser -b {address}", only=NEW, refused=ACCOUNTS_OFF),
    Command("copyUser -f {address} -t {address} -u someone", only=NEW, refused=ACCOUNTS_OFF),
    Command("createAcl -b {address} -s User:someone -r Topic:{topic} -a Pub -d Allow", only=NEW, refused=ACCOUNTS_OFF),
    Command("updateAcl -b {address} -s User:someone -r Topic:{topic} -a Pub -d Allow", only=NEW, refused=ACCOUNTS_OFF),
    Command("getAcl -b {address} -s User:someone", only=NEW, refused=ACCOUNTS_OFF),
    Command("listAcl -b {address}", only=NEW, refused=ACCOUNTS_OFF),
    Command("copyAcl -f {address} -t {address} -s User:someone", only=NEW, refused=ACCOUNTS_OFF),
    Command("deleteAcl -b {address} -s User:someone", only=NEW, refused=ACCOUNTS_OFF),
    Command("deleteUser -b {address} -u someone", only=NEW, refused=ACCOUNTS_OFF),
    Command("updateAclConfig -b {address} -a someone12 -s secret12", only=OLD, refused=ACCOUNTS_OFF),
    Command("deleteAclConfig -b {address} -a someone12", only=OLD, refused=ACCOUNTS_OFF),
    Command("clusterAclConfigVersion -b {address}", only=OLD, refused=ACCOUNTS_OFF),
    Command("updateGlobalWhiteAddr -b {address} -g 10.0.0.1", only=OLD, refused=ACCOUNTS_OFF),
    Command("checkRocksdbCqWriteProgress -c {cluster} -t {topic}", only=NEW, refused=_ROCKSDB),
    Command("rocksDBConfigToJson -c {cluster} -t topics", only=NEW, refused=_ROCKSDB),
    Command("exportMetadataInRocksDB -p {exports}/none -t topics", only=NEW, says_nothing=_FILES),
    Command("exportPopRecord -b {address} -d true", only=NEW),
    Command("dumpCompactionLog -f {exports}/none", only=NEW, says_nothing=_FILES),
    Command("startMonitoring", says_nothing="it prints nothing"),
    Command("clusterRT -c {cluster} -a 2 -s 10 -i 1", seconds=5),
    Command("deleteSubGroup -c {cluster} -g {other_group}"),
    Command("deleteTopic -c {cluster} -t {topic}"),
)
"""Commands in the order in which they are tried. The last commands delete what the others look at."""

_WITHOUT_ADDRESS: Final = ("User:<user> Custom Topic:A [Get] [] Deny",)
_WITHOUT_ADDRESS_THERE: Final = ("User:<user> Custom Topic:A [Get] null Deny",)
"""Rule without addresses, as RocketMQ prints it: its list is null there, and empty here."""


def _user(state: str) -> dict[str, tuple[str, ...]]:
    """Return the lines of a user. Our answers never contain the secret."""
    return {"more": (f"<user> null Normal {state}",), "fewer": (f"<user> <secret> Normal {state}",)}


ACCOUNT_COMMANDS: Final = (
    Command("createUser -b {address} -u {user} -p {secret}"),
    Command("createUser -b {address} -u {user} -p {secret} -t Normal"),
    Command("getUser -b {address} -u {user}", **_user("enable")),
    Command("listUser -b {address}", about=("#", "<user>"), **_user("enable")),
    Command("updateUser -b {address} -u {user} -s disable"),
    Command("getUser -u {user} -b {address}", **_user("disable")),
    Command("updateUser -b {address} -u {user} -p another-{secret}"),
    Command("updateUser -b {address} -u nobody -s enable"),
    Command(
        "getUser -b {address} -u nobody",  # RocketMQ prints nothing for an unknown user
        more=(
            "org.apache.rocketmq.tools.command.SubCommandException: GetUserSubCommand command failed",
            f"{_REFUSED} User:nobody is not found.",
            "For more information, please visit the url, https://rocketmq.apache.org/docs/bestPractice/0FAQ",
        ),
    ),
    Command("createAcl -b {address} -s User:{user} -r Topic:A,Topic:B -a Pub,Sub -d Allow -i 10.0.0.0/8"),
    Command("createAcl -b {address} -s User:nobody -r Topic:A -a Pub -d Allow"),
    Command("updateAcl -b {address} -s User:{user} -r Topic:A -a Get -d Deny"),
    Command("getAcl -b {address} -s User:{user}", more=_WITHOUT_ADDRESS, fewer=_WITHOUT_ADDRESS_THERE),
    Command(
        "getAcl -b {address} -s User:nobody",  # our answer names the subject
        more=(f"{_REFUSED} The subject of User:nobody is not exist.",),
        fewer=(f"{_REFUSED} The subject is not exist.",),
    ),
    Command("listAcl -b {address}", about=("#", "<user>"), more=_WITHOUT_ADDRESS, fewer=_WITHOUT_ADDRESS_THERE),
    Command("copyAcl -f {address} -t {address} -s User:{user}"),
    Command("copyUser -f {address} -t {address} -u {user}"),
    Command("deleteAcl -b {address} -s User:{user} -r Topic:A"),
    Command("getAcl -s User:{user} -b {address}"),
    Command("deleteAcl -b {address} -s User:{user}"),
    Command("deleteUser -b {address} -u {user}"),
    Command("deleteUser -b {address} -u nobody"),
)
"""Commands for accounts and rules of 5.3.3 again, for a group with access control."""

_PAIR: Final = re.compile(r"\s*([^\s:=]+)\s*([:=])")
_PATH_IN_KEY: Final = re.compile(r"(?<=_)/.*")
_OWN_SETTINGS: Final = BROKER_KEYS.by_name.keys() | NAMESRV_KEYS.by_name.keys()
_PROPERTIES: Final = re.compile(r"(\b[Pp]roperties(?:: |=))\{([^}]*)\}")
_TRACE: Final = re.compile(r"^\s*(?:at |\.\.\. \d+ more)")
"""A line of a Java stack trace."""
_ID: Final = r"\b[0-9A-F]{56}\b|\b[0-9A-F]{32}\b"
_PLACEHOLDERS: Final = tuple(
    (re.compile(pattern), placeholder)
    for pattern, placeholder in (
        (r"\d+\.\d+\.\d+\.\d+@[\w#@.-]+", "<client>"),
        (r"(?:\d+\.\d+\.\d+\.\d+):\d+", "<address>"),
        (r"\d+\.\d+\.\d+\.\d+", "<host>"),
        (r"(?<=[\s=:])(?:/[\w.<>-]+){2,}", "<path>"),
        (r"@[0-9a-f]+\b", "@0"),
        (_ID, "<id>"),
        (r"\b(?:V\d+_\d+_\d+\w*|\d+\.\d+\.\d+-?\w*)(?=\s|$)", "<version>"),
        (r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[,.:]\d+)?", "<time>"),
        (r"\d{17,}", "0"),
        (r"-?\d+(?:\.\d+)?(?:E-?\d+)?", "0"),
        (r"(0[:=]\"?<address>\"?)(?:, ?0[:=]\"?<address>\"?)+", r"\1"),
        (r"(?<=Driver\$\$Lambda\$0/)0x\w+", "0"),
        (r"-{3,}", "---"),
        (r"={3,}", "==="),
        (r"[ \t]+", " "),
    )
)


def shape_of(command: Command, printed: str, names: Mapping[str, str]) -> list[str]:
    """Return the shape of a command's output. `names` are the values of the names in braces."""
    for name in sorted(names, key=lambda name: -len(names[name])):
        printed = printed.replace(names[name], f"<{name}>")
    lines: list[str] = []
    for line in printed.splitlines():
        if _TRACE.match(line):
            continue
        if command.pairs and (pair := _PAIR.match(line)):
            line = f"{_PATH_IN_KEY.sub('<path>', pair[1])} {pair[2]} <value>"
        else:
            for pattern, placeholder in _PLACEHOLDERS:
                line = pattern.sub(placeholder, line)
        if line.strip() and line.strip() not in lines:
            lines.append(line.strip())
    return lines


def differences(
    command: Command, printed: str, recorded: Mapping[str, list[str]], names: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """Return the lines that only we have, and those that only RocketMQ has, without those that the command expects."""
    shape, expected = _compared(command, shape_of(command, printed, names)), _compared(command, recorded[command.words])
    more = [line for line in shape if line not in {*expected, *command.more}]
    fewer = [line for line in expected if line not in {*shape, *command.fewer}]
    return more, [] if command.settings else fewer


def _compared(command: Command, shape: Iterable[str]) -> list[str]:
    """Return the lines of a shape that are compared.

    Properties are sorted, since both sides print them in hash order. `TRACE_ON` is removed: only RocketMQ stores it.
    """
    lines = [_PROPERTIES.sub(_sorted_properties, line) for line in shape]
    if command.settings:
        lines = [line for line in lines if line.split()[0] not in _OWN_SETTINGS]
    return [line for line in lines if not command.about or any(part in line for part in command.about)]


def _sorted_properties(found: re.Match[str]) -> str:
    entries = sorted(entry for entry in found[2].split(", ") if entry != "TRACE_ON=true")
    return f"{found[1]}{{{', '.join(entries)}}}"


_KINDS: Final = {bool: "truth value", int: "number", float: "number", str: "text"}


def leaves(value: Any, path: str) -> Iterator[str]:
    """Yield the path and the kind of each value in JSON."""
    if isinstance(value, dict) and value:
        for name, one in value.items():
            yield from leaves(one, f"{path}.{name}")
    elif isinstance(value, list) and value:
        for one in value:
            yield from leaves(one, f"{path}[]")
    else:
        yield f"{path}: {_KINDS.get(type(value), 'empty')}"


def sections(tried: Iterable[tuple[str, list[str]]]) -> str:
    """Format shapes by command, as they are recorded."""
    return "".join(f"== {words}\n" + "".join(f"{line}\n" for line in shape) for words, shape in tried)


def read_sections(text: str) -> dict[str, list[str]]:
    """Parse recorded shapes."""
    found: dict[str, list[str]] = {}
    for section in text.split("== ")[1:]:
        words, *lines = section.splitlines()
        found[words] = lines
    return found
