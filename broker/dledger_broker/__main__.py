"""Command `python -m dledger_broker --config FILE`: runs one broker node until SIGTERM or SIGINT.

The first SIGTERM drains. A second signal, or SIGINT, stops at once. Exit codes: 0 stopped, 2 cannot start, 3 failed:
the log, its disk or an invariant, or the group has TLS that the node lacks.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 -- says so in one line instead of a syntax error
    sys.exit("broker: Python %d.%d is too old, at least 3.11 is needed" % sys.version_info[:2])  # noqa: UP031 -- old ones too

import argparse
import asyncio
import logging
import signal
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Final

from dledger.errors import ConfigError as LogConfigError
from dledger.errors import IdentityError, LogError
from dledger_base import native_part
from dledger_base.invariants import InvariantError
from dledger_base.logs import STDOUT, announce, log_start
from dledger_base.names import outlasts
from dledger_base.open_files import room_for_connections, too_few_files
from dledger_base.private_files import make_only_private_files, mend_modes
from dledger_base.room import FULL
from dledger_broker.config import KEYS, BrokerConfig, load_config
from dledger_broker.errors import BrokerError
from dledger_broker.node import Broker
from dledger_broker.process import IdleCollector, Logs, PidFile, StopReport, tune_interpreter, tune_memory

_logger = logging.getLogger("dledger_broker")

EXIT_CANNOT_START: Final = 2
EXIT_FAILED: Final = 3

_ASK: Final = "ask"
_ALONE: Final = "alone"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a broker node. Return the exit code."""
    parser = argparse.ArgumentParser(prog="dledger-broker", description="One node of a broker group.")
    parser.add_argument("--config", type=Path, required=True, help="TOML file, or RocketMQ's broker.conf")
    parser.add_argument(
        "--bootstrap",
        nargs="?",
        const=_ASK,
        choices=(_ASK, _ALONE),
        help="found a group of this one voter in an empty data directory, unless a peer is in a group: 'alone' founds "
        "without asking the peers",
    )
    parser.add_argument("--printed-to", type=Path, help="file that receives standard output; rotated as it grows")
    options = parser.parse_args(arguments)
    tune_memory()
    try:
        native_part.require_obeyed()
        config = load_config(options.config)
        for meaning in config.changed_meanings():
            print(f"broker: warning: {meaning}", file=sys.stderr)  # the log repeats this with the other warnings
        if config.access_key_file is not None:
            make_only_private_files()
        logs = Logs(config, options.printed_to)
        room = room_for_connections(config.max_connections)
        if room < config.max_connections:
            _logger.warning("event=few_open_files text=%r", too_few_files(config.max_connections, room))
            config = config.with_connections(room)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            return runner.run(_run(config, logs, bootstrap=options.bootstrap))
    except (BrokerError, LogConfigError, IdentityError) as error:
        print(f"broker: {' '.join(str(error).split())}", file=sys.stderr)
        return EXIT_CANNOT_START
    except (OSError, LogError) as error:
        text = " ".join(_describe(error).split())
        if _is_full_disk(error):
            print(
                f"broker: the disk of {config.data_dir} is full ({text}): make room there, then start the node again",
                file=sys.stderr,
            )
            return EXIT_CANNOT_START
        print(f"broker: {text}", file=sys.stderr)
        return EXIT_FAILED if isinstance(error, LogError) else EXIT_CANNOT_START


def _describe(error: Exception) -> str:
    """Return the text of an error. For an error of the system it begins with the file."""
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename} cannot be used: {error.strerror}"
    return str(error)


def _is_full_disk(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is that the disk is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        error = error.__cause__
    return False


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the loop factory of uvloop, None if uvloop is not installed."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _run(config: BrokerConfig, logs: Logs, *, bootstrap: str | None) -> int:
    loop = asyncio.get_running_loop()
    broken: asyncio.Future[BaseException] = loop.create_future()
    loop.set_exception_handler(lambda _, context: _on_loop_error(context, broken))
    log_start(_logger, {key: getattr(config, key) for key in KEYS.by_name})
    broker = Broker(config, bootstrap=bootstrap is not None, alone=bootstrap == _ALONE)
    stopping = _Signals(broker)
    if not await stopping.outlasts(broker.start()):
        _logger.info("event=stopped reason='a signal during the start'")
        return 0
    await asyncio.to_thread(logs.open)
    if config.access_key_file is not None:  # the start has verified that the directory is this node's
        log_file = () if config.log_file in ("", STDOUT) else (Path(config.log_file),)
        await asyncio.to_thread(mend_modes, (config.data_dir, *log_file))
    pid_file = PidFile(config.data_dir)
    await asyncio.to_thread(pid_file.write)
    report = StopReport(config.data_dir, lambda: broker.stop_waits_for)
    await report.forget()
    collector = IdleCollector(lambda: broker.counter.requests)
    collector.start()
    tune_interpreter()
    if config.log_file != STDOUT:
        announce(f"broker {config.node_id} ready on {config.host}:{broker.listener.port}")
    _logger.info("event=ready host=%s port=%d", config.host, broker.listener.port)
    failed = loop.create_task(broker.wait_failed())
    stopped = loop.create_task(stopping.wait(report))
    try:
        await asyncio.wait((failed, stopped, broken), return_when=asyncio.FIRST_COMPLETED)
        failure = failed.result() if failed.done() else broken.result() if broken.done() else None
        if failure is not None:
            _logger.error("node=%s event=failed error=%r", config.node_id, str(failure))
            return EXIT_FAILED
        return 0
    finally:
        _logger.info("event=stopping")
        collector.stop()
        for task in (failed, stopped):
            task.cancel()
        report.begin()
        await broker.stop()
        await report.end()
        await asyncio.to_thread(pid_file.remove)
        _logger.info("event=stopped")


class _Signals:
    """Handlers of the process's signals: the first SIGTERM drains, any other signal stops at once."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._stop_requested = asyncio.Event()
        self._at_once = False
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._on_term)
        loop.add_signal_handler(signal.SIGINT, self._on_interrupt)

    async def outlasts(self, start: Coroutine[object, object, None]) -> bool:
        """Run the start, and return True when it is done. Cancel it and return False if a signal comes first."""
        return await outlasts(start, self._stop_requested)

    async def wait(self, report: StopReport) -> None:
        """Wait until the broker has to stop. Drain it first, unless it has to stop at once."""
        await self._stop_requested.wait()
        report.begin()
        if not self._at_once:
            await self._broker.drain()

    def _on_term(self) -> None:
        if self._stop_requested.is_set():
            self._on_interrupt()
        self._stop_requested.set()

    def _on_interrupt(self) -> None:
        self._at_once = True
        self._broker.cut_drain()
        self._stop_requested.set()


def _on_loop_error(context: dict[str, object], broken: asyncio.Future[BaseException]) -> None:
    """Log an exception that a callback of the event loop raised. Let the process end if it was a broken invariant."""
    error = context.get("exception")
    _logger.error(
        "event=unhandled message=%r error=%r",
        context.get("message"),
        error,
        exc_info=error if isinstance(error, BaseException) else None,
    )
    if isinstance(error, InvariantError) and not broken.done():
        broken.set_result(error)


if __name__ == "__main__":
    sys.exit(main())
