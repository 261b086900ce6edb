"""Reading slices of the log from a replica: few large reads of raw entries, each verified before a row is made of it.

Formats: `docs/wire.md`, "Reading the log". The next read is in flight while the rows of the last one are made. If one
replica fails, refuses or sends bytes that do not verify, the next replica continues at the same byte. The chain of
checksums proves that the two parts belong together.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from .batches import BatchCollector, replica_reader
from .entries import Span, verify_entries
from .errors import CorruptDataError, DataLossError
from .nodes import NameServers, ReplicaReader
from .partitions import LogSlice
from .plans import READ_PLAN, TRIMMED, identity_ext, parse_plan
from .throttle import Throttle
from .wire import Response

if TYPE_CHECKING:
    import pyarrow as pa

READ_RANGE: Final = 20011
READ_BYTES: Final = 4 << 20
_PIN_END_REASONS: Final = "its lease ended, or a disk was above its watermark, where pins yield"


def read_slice(part: LogSlice) -> Iterator[pa.RecordBatch]:
    """Yield the wanted rows of a slice, in the order of the log. Raises `SourceError` and its subclasses."""
    source = part.source
    collector = BatchCollector(source, part.topics, has_entries=part.has_entries)
    with (
        NameServers(source.namesrv, known=True) as name_servers,
        replica_reader(name_servers, source, part.preference) as replicas,
    ):
        for data, entries in _SliceReader(part, replicas):
            yield from collector.add(data, entries)
    yield from collector.rest()


class _SliceReader:
    """Goes through a slice, answer by answer."""

    def __init__(self, part: LogSlice, replicas: ReplicaReader) -> None:
        self._part = part
        self._replicas = replicas
        self._position = part.start
        self._index = part.index
        self._chain = part.previous_chain
        self._read_bytes = Throttle(part.source.max_bytes_per_second).request_bytes(READ_BYTES)
        self._verified: tuple[list[Span], int] = ([], 0)

    def __iter__(self) -> Iterator[tuple[bytes, list[Span]]]:
        self._submit()
        while self._position < self._part.end:
            response = self._replicas.result(self._refusal)
            if response.code == TRIMMED:
                self._skip_removed()
                continue
            entries, self._chain = self._verified
            self._index += len(entries)
            self._position = int(response.ext["end"])
            if self._position < self._part.end:
                self._submit()
            yield response.body, entries

    def _submit(self) -> None:
        self._replicas.submit(READ_RANGE, self._request())

    def _request(self) -> dict[str, str]:
        ext = {
            "start": str(self._position),
            "end": str(self._part.end),
            "roles": self._part.source.roles,
            "maxBytes": str(self._read_bytes),
            "minCommit": str(self._part.end),
            **identity_ext(self._part.source.group_identity),
        }
        if self._part.pin is not None:
            ext["pin"] = self._part.pin
        return ext

    def _refusal(self, response: Response) -> str | None:
        """Return the reason why an answer is unusable; None if it verifies, or says that the range is gone."""
        if response.code == TRIMMED:
            return None
        if response.code != 0:
            return f"code {response.code}: {response.remark}"
        try:
            if int(response.ext["start"]) != self._position or int(response.ext["end"]) <= self._position:
                return f"an answer for {response.ext['start']} to {response.ext['end']}, not from {self._position} on"
            self._verified = verify_entries(response.body, self._position, self._index, self._chain)
        except CorruptDataError as error:
            self._replicas.tell(READ_RANGE, self._request() | {"verify": "true"})
            return f"bytes that do not verify: {error}"
        except (KeyError, ValueError) as error:
            return f"bytes that do not verify: {error}"
        at_end = int(response.ext["end"]) >= self._part.end
        if at_end and self._part.end_chain is not None and self._verified[1] != self._part.end_chain:
            return f"a chain that ends in {self._verified[1]:08x}, not in {self._part.end_chain:08x}"
        return None

    def _skip_removed(self) -> None:
        """Continue with the first entry that is still kept, if losing the earlier entries is allowed."""
        part = self._part
        if part.source.fail_on_data_loss:
            pin = "" if part.pin is None else f", though pin {part.pin} was to keep them: {_PIN_END_REASONS}"
            raise DataLossError(f"positions {self._position} to {part.end} of {part.source.group}'s log are gone{pin}")
        ext = {"roles": part.source.roles, "topics": part.topics[0].name, "minCommit": str(part.end)}
        plan = parse_plan(self._replicas.request(READ_PLAN, ext).body)
        cut = next((cut for cut in plan.cuts if cut.position >= self._position), None)
        if cut is None or cut.position >= part.end:
            self._position = part.end
            return
        self._position, self._index, self._chain = cut.position, cut.log_index, cut.previous_chain
        self._submit()
