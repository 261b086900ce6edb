"""Faults of files that are derived from the log. A node makes them again, and no client may notice."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from dledger_sim.log.group import SimGroup

HowViewsRot = Literal["bit", "sector", "lost", "unreadable"]
SECTOR_BYTES: Final = 512
ROWS: Final = "timeindex"
"""Name of the database that is damaged: a row rots, or the file is cut short, lost or unreadable."""


@dataclass(frozen=True, slots=True)
class RotView:
    """Rotten view of a running node: a file has a flipped bit, a lost sector or an unreadable page, or is gone.

    `where` selects the place.
    """

    node: str
    where: float
    path: str
    """Directory of the view."""
    how: HowViewsRot
    duration_s: float

    def inject(self, group: SimGroup) -> bool:
        node = group.nodes[self.node]
        if node.life is None or node.disk.faults:
            return False
        if self.path == ROWS:
            rotten = node.life.service.rot_rows(self.where, self.how)
        else:
            rotten = self._rot_file(group)
        if rotten:
            group.say(f"{self.path} of {self.node}: {self.how}")
            group.witness.happened[f"rot in {self.path}"] += 1
            group.witness.happened["view unreadable"] += self.how == "unreadable"
        return rotten

    def _rot_file(self, group: SimGroup) -> bool:
        disk = group.nodes[self.node].disk
        contents = {path: raw for path, raw in disk.image().files.items() if path.startswith(self.path + "/")}
        nonzero_bytes = [(path, byte) for path, raw in contents.items() for byte, value in enumerate(raw) if value]
        if not nonzero_bytes:
            return False
        path, byte = nonzero_bytes[int(self.where * len(nonzero_bytes))]
        if self.how == "lost":
            disk.lose(path)
        elif self.how == "unreadable":
            disk.spoil(path, byte)
        elif self.how == "bit":
            disk.flip_bit(path, byte * 8 + int(self.where * 1e9) % 8)
        else:
            begin = byte - byte % SECTOR_BYTES
            for place, value in enumerate(contents[path][begin : begin + SECTOR_BYTES], begin):
                for bit in range(8):
                    if value >> bit & 1:
                        disk.flip_bit(path, place * 8 + bit)
        return True

    def heal(self, group: SimGroup) -> None:
        """Do nothing: only the node itself repairs its views."""
