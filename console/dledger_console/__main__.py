"""`python -m dledger_console`: the console of a local cluster, as `dledger up` starts it."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from dledger_admin.operations.access import Access
from dledger_base.errors import ConfigError
from dledger_base.printed import PrintedLines
from dledger_client import Tls

from .command import serve

EXIT_CANNOT_START: Final = 2


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Keys of the configuration file. `tls_ca_file` has the authorities of the cluster, and turns TLS on."""

    namesrv: str
    host: str
    port: int
    tls_ca_file: str | None = None


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the console. Return 0 after a clean stop, 2 if it cannot start."""
    parser = argparse.ArgumentParser(prog="dledger-console", description="Console of a local cluster.")
    parser.add_argument("--config", type=Path, required=True, help="TOML file that `dledger up` writes")
    parser.add_argument("--printed-to", type=Path, help="file that receives standard output; rotated as it grows")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, handlers=[PrintedLines(options.printed_to)])
    try:
        settings = msgspec.toml.decode(options.config.read_bytes(), type=Settings)
        tls = None if settings.tls_ca_file is None else Tls(settings.tls_ca_file)
        asyncio.run(serve(Access(settings.namesrv, tls=tls), settings.host, settings.port))
    except (OSError, msgspec.MsgspecError, ConfigError) as error:
        print(f"console: {error}", file=sys.stderr)
        return EXIT_CANNOT_START
    return 0


if __name__ == "__main__":
    sys.exit(main())
