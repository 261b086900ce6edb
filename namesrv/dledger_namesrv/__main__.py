"""`python -m dledger_namesrv`: run one name server until SIGTERM or SIGINT."""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 -- says so in one line instead of a syntax error
    sys.exit("namesrv: Python %d.%d is too old, at least 3.11 is needed" % sys.version_info[:2])  # noqa: UP031 -- old ones too

import argparse
import asyncio
import logging
import signal
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from dledger_base.line_writer import LineWriter
from dledger_base.logs import STDOUT, LogFormatter, announce, log_start, open_log, set_levels
from dledger_base.names import outlasts
from dledger_base.open_files import room_for_connections, too_few_files
from dledger_base.printed import PrintedLines
from dledger_base.private_files import make_only_private_files, mend_modes

from .config import ConfigError, NameServerConfig, build_config, load_config
from .known import KnownGroupsError
from .kv import KVStoreError
from .places import within
from .server import NameServer, StartError

_log = logging.getLogger("dledger.namesrv")

EXIT_CANNOT_START = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the name server. Return 0 after a clean stop, 2 if the server cannot start."""
    parser = argparse.ArgumentParser(prog="dledger-namesrv", description="Name server: topics and their brokers.")
    parser.add_argument("--config", type=Path, help="TOML file, or RocketMQ's namesrv.conf")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--port", type=int, help="port to listen on (default 9876, 0 = a free one)")
    parser.add_argument("--data", type=Path, help="data directory (default ./namesrv-data)")
    parser.add_argument("--printed-to", type=Path, help="file that receives standard output; rotated as it grows")
    options = parser.parse_args(arguments)
    flags = {"host": options.host, "port": options.port, "data": options.data}
    overrides = {key: value for key, value in flags.items() if value is not None}
    try:
        config = load_config(options.config, overrides) if options.config else build_config(overrides)
        if config.access_key_file is not None:
            make_only_private_files()
        _open_log(config, options.printed_to)
        for warning in config.ignored:
            _log.warning("event=warning text=%r", warning)
        asyncio.run(_run(config))
    except (ConfigError, StartError, KVStoreError, KnownGroupsError) as error:
        print(f"namesrv: {error}", file=sys.stderr)
        return EXIT_CANNOT_START
    return 0


def _open_log(config: NameServerConfig, printed_to: Path | None) -> None:
    logging.raiseExceptions = False  # On a full disk every line would otherwise print a traceback.
    formatter = LogFormatter(config.log_format, "namesrv")
    try:
        target = open_log(config.log_file) if config.log_file else PrintedLines(printed_to)
    except OSError as error:
        raise StartError(f"log_file {config.log_file} cannot be written: {error.strerror}") from error
    logging.basicConfig(handlers=[LineWriter(formatter).write_to(target)], force=True)
    set_levels(config.log_level, config.log_levels)


async def _run(config: NameServerConfig) -> None:
    fitted = within(config, room_for_connections(config.max_connections + config.broker_places))
    if fitted != config:
        _log.warning("event=few_open_files text=%r", too_few_files(config.max_connections, fitted.max_connections))
        config = fitted
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stopping.set)
    server = NameServer(config)
    if not await outlasts(server.start(), stopping):
        _log.info("event=stopped reason='a signal during the start'")
        return
    if config.access_key_file is not None:  # From here on the directory is known to belong to this server.
        log_file = () if config.log_file in ("", STDOUT) else (Path(config.log_file),)
        await asyncio.to_thread(mend_modes, (config.data, *log_file))
    log_start(_log, {field.name: getattr(config, field.name) for field in fields(config)})
    if config.log_file != STDOUT:
        announce(f"namesrv ready on {config.host}:{server.port}")
    _log.info("event=ready host=%s port=%d", config.host, server.port)
    try:
        await stopping.wait()
    finally:
        _log.info("event=stopping")
        await server.stop()
        _log.info("event=stopped")


if __name__ == "__main__":
    sys.exit(main())
