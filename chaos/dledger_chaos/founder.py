"""Start of a node that founds its group, as a unit file with `--bootstrap` does."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from pathlib import Path

from dledger_admin.cluster.config_files import stored_overrides, write_broker_config
from dledger_admin.cluster.manifest import require_manifest
from dledger_admin.cluster.processes import broker_service


def start_founder(data_dir: Path, node_id: str, environment: Mapping[str, str]) -> None:
    """Write the node's configuration, start its process and write its pid file; blocks. The node may not serve yet."""
    manifest = require_manifest(data_dir)
    layout = manifest.layout(data_dir)
    place = layout.place(node_id)
    write_broker_config(layout, manifest, place, stored_overrides(layout))
    service = broker_service(place)
    service.stdout_file.parent.mkdir(parents=True, exist_ok=True)
    with service.stdout_file.open("ab") as output:
        process = subprocess.Popen(
            [*service.command(), "--bootstrap"],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    (place.directory / "pid").write_text(f"{process.pid}\n", encoding="ascii")
