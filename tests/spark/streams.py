"""Streams that run on busy machines.

Spark gives the process that plans a stream ten seconds to start, a limit that no configuration changes. A busy machine
may miss it before the source has done anything. Then the stream is started again.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

_NOT_STARTED = "Python worker failed to connect back"
_ATTEMPTS = 4


def run_to_its_end(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query that ends, wait for it, and raise its error."""

    def ends(query: StreamingQuery) -> None:
        assert query.awaitTermination(120)

    return _survives_the_start(start, ends)


def survives_the_start(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query without end, and wait until it has read the present messages."""
    return _survives_the_start(start, StreamingQuery.processAllAvailable)


def _survives_the_start(start: Callable[[], StreamingQuery], wait: Callable[[StreamingQuery], None]) -> StreamingQuery:
    for _ in range(_ATTEMPTS - 1):
        query = start()
        try:
            wait(query)
        except StreamingQueryException as error:
            if _NOT_STARTED not in str(error):
                raise
        else:
            return query
    query = start()
    wait(query)
    return query
