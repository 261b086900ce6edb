"""Format of the logs of every process: UTC time, level, logger, node, event, fields.

    2026-11-25T14:52:35.559Z level=WARNING logger=dledger.node node=broker-a-n0 event=disconnected peer=broker-a-n1
    {"time":"2026-11-25T14:52:35.559Z","level":"WARNING","logger":"dledger.node","node":"broker-a-n0",
     "event":"disconnected","peer":"broker-a-n1"}                                       (as one line)

Code logs `event=… field=…`, in front of it `node=…` where it knows better than the process; texts are written with
`%r`, and a value of `%s` that has blanks or quotes comes out so, too.  What libraries log without an event gets the
event `message` and its words as the field `text`.
"""

from __future__ import annotations

import ast
import contextlib
import json
import logging
import platform
import re
import sys
import time
from collections.abc import Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from dledger import native_part
from dledger.extras import package_version

FORMATS: Final = ("text", "json")
"""Values of `log_format`."""
LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
"""Values of `log_level`, and those in `log_levels`."""
STDOUT: Final = "stdout"
"""The `log_file` that stands for standard output."""
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
    """One line for each record, a traceback behind it; `node` names the process where a record does not."""

    def __init__(self, log_format: str, node: str) -> None:
        super().__init__()
        self._as_json = log_format == "json"
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter.format`."""
        message = _message(record)
        head = _HEAD.fullmatch(message)
        node, event, rest = (
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
            return json.dumps(start | read_fields(rest) | ({"traceback": trace} if trace else {}), ensure_ascii=False)
        rest = rest.replace("\n", "\\n").replace("\r", "\\r")
        names = " ".join(f"{key}={value}" for key, value in start.items() if key != "time")
        return "\n".join(part for part in (f"{start['time']} {names} {rest}".rstrip(), trace) if part)


def _message(record: logging.LogRecord) -> str:
    """The words of a record, in which no value can be taken for fields: paths have blanks, and clients send names."""
    kinds = [(one["field"], one["kind"]) for one in _SPECIFIER.finditer(str(record.msg)) if one["kind"] != "%"]
    if not isinstance(record.args, tuple) or len(kinds) != len(record.args):
        return record.getMessage()
    return str(record.msg) % tuple(
        _quoted(value) if kind == ("=", "s") else value for kind, value in zip(kinds, record.args, strict=True)
    )


def _quoted(value: object) -> str:
    text = str(value)
    return text if _PLAIN.fullmatch(text) else repr(text)


def read_fields(text: str) -> dict[str, str | int]:
    """The fields of a line, in order: quoted values without quotes, whole numbers as such, other words as `text`."""
    found: dict[str, str | int] = {}
    if words := _FIELD.sub("", text).strip(" ,:;"):
        found["text"] = words
    for field in _FIELD.finditer(text):
        found[field["key"]] = _value(field["value"])
    return found


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


def open_log(log_file: str | Path) -> logging.Handler:
    """What a `LogWriter` writes to: a file, which is made and turned over as it grows, or standard output.

    Raises `OSError`.
    """
    if log_file == STDOUT:
        return logging.StreamHandler(sys.stdout)
    path = Path(log_file)
    path.parent.mkdir(parents=True, exist_ok=True)
    return RotatingFileHandler(path, maxBytes=LOG_FILE_BYTES, backupCount=LOG_FILES - 1, encoding="utf-8")


def set_levels(level: str, by_logger: Mapping[str, str]) -> None:
    """Log from `level` on, and from another one on what certain loggers, and those below them, say."""
    logging.getLogger().setLevel(level)
    for name, own in by_logger.items():
        logging.getLogger(name).setLevel(own)


def log_start(logger: logging.Logger, configuration: Mapping[str, object]) -> None:
    """What runs, and with which configuration, defaults included."""
    system = platform.system()
    release, python = package_version(), platform.python_version()
    logger.info(
        "event=version release=%s native_part=%s python=%s system=%s", release, native_part.version(), python, system
    )
    values = " ".join(f"{key}={str(value)!r}" for key, value in configuration.items())
    logger.info("event=configuration %s", values)


def announce(line: str) -> None:
    """Print a line for whoever waits for it; a full disk behind standard output is no reason to fail."""
    if sys.stdout is not None:
        with contextlib.suppress(OSError):
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
