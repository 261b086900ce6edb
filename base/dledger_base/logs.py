"""Format and configuration keys of the logs of every process: UTC time, level, logger, node, event, fields.

    2026-11-25T14:52:35.559Z level=WARNING logger=dledger.node node=broker-a-n0 event=disconnected peer=broker-a-n1
    {"time":"2026-11-25T14:52:35.559Z","level":"WARNING","logger":"dledger.node","node":"broker-a-n0",
     "event":"disconnected","peer":"broker-a-n1"}                                       (as one line)

Code logs `event=… field=…`, and `node=…` before it if it knows the node better than the process does. Texts are written
with `%r`. A value of `%s` is quoted as well if it has blanks, quotes, or characters that control a terminal. A record
without an event, such as a library's, gets the event `message`, with its words as the field `text`.
"""

from __future__ import annotations

import ast
import contextlib
import json
import logging
import os
import platform
import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final, TextIO

from dledger_base import native_part
from dledger_base.config_keys.declared import ConfigValue, UnexpectedError, key
from dledger_base.extras import package_version, pysyncobj_version

FORMATS: Final = ("text", "json")
"""Values of `log_format`."""
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
"""Values of `log_level` and in `log_levels`."""
STDOUT: Final = "stdout"
"""Value of `log_file` for standard output."""
LOG_FILE_BYTES: Final = 16 << 20
LOG_FILES: Final = 5

_HEAD = re.compile(
    r"(?:node=(?P<node>\S+) )?(?P<before>(?:\w+=\S+ )*?)event=(?P<event>[\w-]+):? ?(?P<rest>.*)", re.DOTALL
)
_FIELD = re.compile(
    r"(?P<key>[A-Za-z_]\w*)=(?P<value>'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|.*?)(?=\s[A-Za-z_]\w*=|\s*$)", re.DOTALL
)


_SPECIFIER = re.compile(r"(?P<field>=?)%(?:\.[0-9]+)?(?P<kind>[a-z%])")
_PLAIN = re.compile(r"[^\s'\"]*")


class LogFormatter(logging.Formatter):
    """Formats each record as one line, followed by a traceback if there is one.

    `node` is used if a record names no node.
    """

    def __init__(self, log_format: str, node: str) -> None:
        super().__init__()
        self._as_json = log_format == "json"
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        message = _message(record)
        head = _HEAD.fullmatch(message)
        node, event, fields = (
            (head["node"] or self._node, head["event"].replace("-", "_"), head["before"] + head["rest"])
            if head is not None
            else (self._node, "message", f"text={message!r}")
        )
        trace = self.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""
        start = {
            "time": _utc(record.created),
            "level": record.levelname,
            "logger": record.name,
            "node": node,
            "event": event,
        }
        if self._as_json:
            return json.dumps(start | read_fields(fields) | ({"traceback": trace} if trace else {}), ensure_ascii=False)
        fields = fields.replace("\n", "\\n").replace("\r", "\\r")
        names = " ".join(f"{key}={value}" for key, value in start.items() if key != "time")
        return "\n".join(part for part in (f"{start['time']} {names} {fields}".rstrip(), trace) if part)


def _message(record: logging.LogRecord) -> str:
    """Return the words of a record, with values quoted so that none looks like a field: paths may have blanks."""
    kinds = [(match["field"], match["kind"]) for match in _SPECIFIER.finditer(str(record.msg)) if match["kind"] != "%"]
    if not isinstance(record.args, tuple) or len(kinds) != len(record.args):
        return record.getMessage()
    return str(record.msg) % tuple(
        _quoted(value) if kind == ("=", "s") else value for kind, value in zip(kinds, record.args, strict=True)
    )


def _quoted(value: object) -> str:
    text = str(value)
    return text if text.isprintable() and _PLAIN.fullmatch(text) else repr(text)


def read_fields(text: str) -> dict[str, str | int]:
    """Return the fields of a line, in order.

    Quoted values lose their quotes, whole numbers become int, other words `text`.
    """
    fields: dict[str, str | int] = {}
    if words := _FIELD.sub("", text).strip(" ,:;"):
        fields["text"] = words
    for field in _FIELD.finditer(text):
        fields[field["key"]] = _value(field["value"])
    return fields


def _value(text: str) -> str | int:
    if re.fullmatch(r"-?\d{1,18}", text):
        return int(text)
    if text[:1] in ("'", '"'):
        with contextlib.suppress(ValueError, SyntaxError):
            return str(ast.literal_eval(text))
    return text


def _utc(seconds: float) -> str:
    milliseconds = int(seconds * 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(milliseconds // 1000))}.{milliseconds % 1000:03d}Z"


class LogFile(RotatingFileHandler):
    """Log file that is rotated as it grows, and is opened again after another program has moved or removed it."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record. Programs such as logrotate may move the file between two records."""
        if self.stream is not None and not _is_open_at(self.baseFilename, self.stream):
            self.stream.close()
            self.stream = None  # the base class opens the file again
        super().emit(record)


def _is_open_at(path: str, stream: TextIO) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(stream.fileno()))
    except OSError:
        return False


def open_log(log_file: str | Path) -> logging.Handler:
    """Return the target for a `LogWriter`: a file, made if missing and rotated as it grows, or standard output.

    Raises `OSError`.
    """
    if log_file == STDOUT:
        return logging.StreamHandler(sys.stdout)
    path = Path(log_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    return LogFile(path, maxBytes=LOG_FILE_BYTES, backupCount=LOG_FILES - 1, encoding="utf-8")


def set_levels(level: str, by_logger: Mapping[str, str]) -> None:
    """Log from `level` on. The loggers in `by_logger`, and those below them, get their own level."""
    logging.getLogger().setLevel(level)
    for name, logger_level in by_logger.items():
        logging.getLogger(name).setLevel(logger_level)


def log_start(logger: logging.Logger, configuration: Mapping[str, object]) -> None:
    """Log the versions that run, and the configuration with its defaults."""
    system = platform.system()
    release, python = package_version(), platform.python_version()
    logger.info(
        "event=version release=%s native_part=%s pysyncobj=%s python=%s system=%s",
        release, native_part.version(), pysyncobj_version(), python, system,
    )  # fmt: skip
    values = " ".join(f"{key}={str(value)!r}" for key, value in configuration.items())
    logger.info("event=configuration %s", values)


def announce(line: str) -> None:
    """Print a line that a caller waits for. A full disk behind standard output must not cause a failure."""
    if sys.stdout is not None:
        with contextlib.suppress(OSError):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()


def _levels(_name: str, value: ConfigValue, _base: Path) -> dict[str, str]:
    if not isinstance(value, dict) or not all(level in LEVELS for level in value.values()):
        raise UnexpectedError(f"a table [log_levels] of logger = level, each level one of {', '.join(LEVELS)}")
    return {name: str(level) for name, level in value.items()}


@dataclass(frozen=True, kw_only=True)
class LogLevels:
    """Levels of the events that are logged."""

    log_level: str = key("INFO", "minimum level of the events that are logged", choices=LEVELS)
    log_levels: Mapping[str, str] = key(
        {},
        "minimum levels of single loggers and all below them, instead of `log_level`: `[log_levels]` with "
        '`"dledger.net" = "WARNING"`. The page about [logs](operations/logs.md) lists the names',
        takes="a table of loggers and levels",
        read=_levels,
    )
