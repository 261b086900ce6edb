"""Names of a simulated disk: the directory tree that programs see, and the part that would survive a crash.

There are two ways to lose unsynced changes:

- In order: file systems that journal all directories together keep a prefix of the changes.
- One by one: POSIX only promises that a synced directory has its own entries. Each other change survives by itself. But
  it is lost if an earlier lost change concerned the same name, a directory above it, or a name below it.
"""

from __future__ import annotations

import posixpath
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from dledger.testing.inodes import Inode, Keep


@lru_cache(maxsize=1 << 14)
def normal(path: str) -> str:
    """Return a path as the tree stores it."""
    return posixpath.normpath(path.lstrip("/") or ".")


@lru_cache(maxsize=1 << 14)
def parent(path: str) -> str:
    """Return the directory of a path."""
    return posixpath.dirname(path) or "."


@dataclass(slots=True, frozen=True)
class Change:
    """One change of the directory tree; `inode` is for a new file, `target` for a rename."""

    kind: Literal["link", "mkdir", "rename", "unlink"]
    path: str
    target: str = ""
    inode: Inode | None = None

    def touches(self, directory: str) -> bool:
        return directory == parent(self.path) or (self.target != "" and directory == parent(self.target))

    @property
    def names(self) -> tuple[str, ...]:
        """Names that the change affects."""
        return (self.path, self.target) if self.target else (self.path,)

    def moves(self, earlier: Change) -> bool:
        """Return whether this removes or renames a directory in which an earlier change took place."""
        return self.kind in ("rename", "unlink") and earlier.path.startswith(self.path + "/")


def _above(path: str) -> Iterator[str]:
    """Yield the directories above a path."""
    while path != ".":
        path = parent(path)
        yield path


class _LostNames:
    """Names of lost changes. A later change of the same names, or of names above or below them, is lost as well."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._above: set[str] = set()

    def add(self, change: Change) -> None:
        for name in change.names:
            self._names.add(name)
            self._above.update(_above(name))

    def touches(self, change: Change) -> bool:
        return any(
            name in self._names or name in self._above or not self._names.isdisjoint(_above(name))
            for name in change.names
        )


class Tree:
    """Names of files, by path, and of directories."""

    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self.directories: set[str] = {"."}

    def copy(self) -> Tree:
        twin = Tree()
        twin.files = dict(self.files)
        twin.directories = set(self.directories)
        return twin

    def apply(self, change: Change) -> None:
        if change.kind == "link":
            assert change.inode is not None
            self.files[change.path] = change.inode
        elif change.kind == "mkdir":
            self.directories.add(change.path)
        elif change.kind == "unlink":
            self.files.pop(change.path, None)
            self.directories.discard(change.path)
        else:
            self._rename(change.path, change.target)

    def _rename(self, source: str, target: str) -> None:
        if source in self.files:
            self.files[target] = self.files.pop(source)
            return

        def moved(path: str) -> str:
            return target + path[len(source) :] if path == source or path.startswith(source + "/") else path

        moving = {path: inode for path, inode in self.files.items() if moved(path) != path}
        self.files = {path: inode for path, inode in self.files.items() if path not in moving}
        self.files.update({moved(path): inode for path, inode in moving.items()})
        self.directories = {moved(path) for path in self.directories}


class Names:
    """The tree that programs see, the tree that would survive any crash, and the changes between the two."""

    def __init__(self) -> None:
        self.seen = Tree()
        self.durable = Tree()
        self.in_order = True
        """True if unsynced changes survive in order, False if each survives by itself."""
        self._changes: list[Change] = []
        self._synced_changes: set[int] = set()
        """Identities of changes whose directory was synced. They still wait for other changes that they depend on."""

    def change(self, change: Change) -> None:
        """Apply a change, which a crash may lose."""
        self.seen.apply(change)
        self._changes.append(change)

    def sync(self, directory: str) -> None:
        """Make the entries of a directory durable."""
        if self.in_order:
            last = max((at for at, change in enumerate(self._changes) if change.touches(directory)), default=-1)
            self._settle(self._changes[: last + 1])
            return
        for at, change in enumerate(self._changes):
            if change.touches(directory):
                self._synced_changes.add(id(change))
                # A directory that is moved takes its entries along, synced or not.
                self._synced_changes.update(id(earlier) for earlier in self._changes[:at] if change.moves(earlier))
        self._settle(self._surviving(self._synced_changes))

    def crash(self, rng: random.Random, keep: Keep) -> None:
        """Lose unsynced changes, as `keep` says."""
        prefix = {"none": 0, "all": len(self._changes)}.get(keep, rng.randint(0, len(self._changes)))
        if self.in_order or keep != "random":
            kept = self._changes[:prefix]
        else:
            share = rng.choice((0.0, rng.random(), rng.random(), 1.0))
            surviving_by_chance = {id(change) for change in self._changes if rng.random() < share}
            kept = self._surviving(self._synced_changes | surviving_by_chance)
        self._settle(kept)
        self._forget()
        self.seen = self.durable.copy()

    def replace(self, tree: Tree) -> None:
        """Replace the tree, durably."""
        self._forget()
        self.seen = tree
        self.durable = tree.copy()

    def _surviving(self, chosen: set[int]) -> list[Change]:
        """Return the chosen changes that depend on no lost change."""
        lost_names, kept = _LostNames(), []
        for change in self._changes:
            if id(change) in chosen and not lost_names.touches(change):
                kept.append(change)
            else:
                lost_names.add(change)
        return kept

    def _settle(self, kept: list[Change]) -> None:
        for change in kept:
            self.durable.apply(change)
        settled = {id(change) for change in kept}
        self._changes = [change for change in self._changes if id(change) not in settled]
        self._synced_changes -= settled

    def _forget(self) -> None:
        self._changes.clear()
        self._synced_changes.clear()
