"""`python -m dledger_proxy`: run one proxy until SIGTERM or SIGINT."""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

from dledger_base.extras import install_command
from dledger_base.line_writer import LineWriter
from dledger_base.logs import STDOUT, LogFormatter, announce, log_start, open_log, set_levels
from dledger_base.printed import PrintedLines

try:
    import uvloop

    from .config import ConfigError, ProxyConfig, build_config, load_config
    from .process import Proxy, StartError
except ImportError as error:
    sys.exit(f"proxy: {error.name} is not installed: {install_command('proxy')}")

_log = logging.getLogger("dledger.proxy")

EXIT_CANNOT_START = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the proxy. Return 0 after a clean stop, 2 if it cannot start."""
    what = "Proxy for clients of RocketMQ 5 (gRPC), and for clients that speak HTTP."
    parser = argparse.ArgumentParser(prog="dledger-proxy", description=what)
    parser.add_argument("--config", type=Path, help="TOML file")
    parser.add_argument("--namesrv", help="name servers (default 127.0.0.1:9876)")
    parser.add_argument("--host", help="address to listen on (default 127.0.0.1)")
    parser.add_argument("--grpc-port", type=int, help="port for gRPC (default 8081, 0 = a free one)")
    parser.add_argument("--http-port", type=int, help="port for HTTP and JSON (default 0 = none)")
    parser.add_argument("--printed-to", type=Path, help="file that receives standard output; rotated as it grows")
    options = parser.parse_args(arguments)
    flags = {
        "namesrv": options.namesrv,
        "host": options.host,
        "grpc_port": options.grpc_port,
        "http_port": options.http_port,
    }
    overrides = {name: value for name, value in flags.items() if value is not None}
    try:
        config = load_config(options.config, overrides) if options.config else build_config(overrides)
        _open_log(config, options.printed_to)
        for warning in config.ignored:
            _log.warning("event=warning text=%r", warning)
        uvloop.run(_run(config))
    except (ConfigError, StartError) as error:
        print(f"proxy: {error}", file=sys.stderr)
        return EXIT_CANNOT_START
    return 0


def _open_log(config: ProxyConfig, printed_to: Path | None) -> None:
    logging.raiseExceptions = False  # On a full disk every line would otherwise print a traceback.
    try:
        target = open_log(config.log_file) if config.log_file else PrintedLines(printed_to)
    except OSError as error:
        raise StartError(f"log_file {config.log_file} cannot be written: {error.strerror}") from error
    logging.basicConfig(handlers=[LineWriter(LogFormatter(config.log_format, "proxy")).write_to(target)], force=True)
    set_levels(config.log_level, config.log_levels)
    # It logs each request that a client cancels or breaks; the service has lines of its own, which are limited.
    logging.getLogger("grpclib").setLevel(logging.CRITICAL)


async def _run(config: ProxyConfig) -> None:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for signal_number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(signal_number, stopping.set)
    proxy = Proxy(config)
    await proxy.start()
    log_start(_log, {field.name: getattr(config, field.name) for field in fields(config)})
    host, port = proxy.port.address
    if config.log_file != STDOUT:
        announce(f"proxy ready on {host}:{port}")
    _log.info("event=ready host=%s port=%d", host, port)
    await stopping.wait()
    _log.info("event=stopping")
    await proxy.stop()
    _log.info("event=stopped")


if __name__ == "__main__":
    sys.exit(main())
