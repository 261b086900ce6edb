"""Configuration of a subject's process: one file, TOML or JSON by its ending.

```toml
node_id = "a"
data_dir = "run/a"
client = ["127.0.0.1", 7000]      # the port for lines of JSON
bind = ["127.0.0.1", 7001]        # the port for its peers
bootstrap = true                  # register_node: this node founds the group (exactly one does)
segment_bytes = 1073741824        # register_node: largest file of the log

[peers]                           # the address at which this node dials each peer, which may be a proxy's
b = ["127.0.0.1", 7011]
c = ["127.0.0.1", 7021]
```
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated

import msgspec

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Address = tuple[str, Port]


class SubjectConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One node of a subject's group."""

    node_id: str
    data_dir: str
    client: Address
    bind: Address
    peers: dict[str, Address]
    bootstrap: bool = False
    segment_bytes: int = 1 << 30


def read_config(path: Path) -> SubjectConfig:
    """Read a file.  Raises `OSError`, and `ValueError` naming the key that is wrong."""
    if path.suffix == ".toml":
        return msgspec.convert(tomllib.loads(path.read_text()), SubjectConfig)
    return msgspec.json.decode(path.read_bytes(), type=SubjectConfig)
