"""The proxies of one cluster: the server's process and the mesh of links, without blocking the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from ..errors import TargetError
from .build import toxiproxy_server
from .mesh import Link, Mesh
from .server import ToxiproxyServer


class Proxies:
    """One toxiproxy in `directory`, started and stopped with a cluster; `seed` makes jitter and toxicity repeatable."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._seed = seed
        self._server: ToxiproxyServer | None = None
        self._mesh: Mesh | None = None

    @property
    def mesh(self) -> Mesh:
        """The links. Raises `TargetError` before the first start."""
        if self._mesh is None:
            raise TargetError("the cluster is not started")
        return self._mesh

    async def build(self) -> None:
        """Build toxiproxy's server if it is missing, which may take half a minute. Raises `BuildError`."""
        await asyncio.to_thread(toxiproxy_server)

    async def start(self, api_port: int, links: Sequence[Link]) -> Mesh:
        """Start the server and put a proxy into every link; raises `ChaosError`."""
        program = await asyncio.to_thread(toxiproxy_server)
        log_file = self._directory / "toxiproxy.log"
        self._server = ToxiproxyServer(program, api_port, log_file=log_file, seed=self._seed)
        await asyncio.to_thread(self._server.start)
        self._mesh = Mesh(self._server, links)
        await asyncio.to_thread(self._mesh.start)
        return self._mesh

    async def stop(self) -> None:
        """Stop the server, if it runs."""
        server, self._server = self._server, None
        if server is not None:
            await asyncio.to_thread(server.stop)
