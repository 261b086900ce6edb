"""Running streams on machines that have much else to do.

Spark gives the process that plans a stream ten seconds to start, a limit that no configuration changes; a busy machine
may miss it, before the source had anything to do with it. Then the stream is started again.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.errors import StreamingQueryException
from pyspark.sql.streaming import StreamingQuery

_NOT_STARTED = "Python worker failed to connect back"
_ATTEMPTS = 4


def run_to_its_end(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query that ends, and wait for it. Raises what makes it fail."""
    for attempt in range(_ATTEMPTS):
        query = start()
        try:
            assert query.awaitTermination(120)
        except StreamingQueryException as error:
            if attempt + 1 == _ATTEMPTS or _NOT_STARTED not in str(error):
                raise
        else:
            return query
    raise AssertionError


def survives_the_start(start: Callable[[], StreamingQuery]) -> StreamingQuery:
    """Start a query that goes on, and wait until it has read what is there."""
    for attempt in range(_ATTEMPTS):
        query = start()
        try:
            query.processAllAvailable()
        except StreamingQueryException as error:
            if attempt + 1 == _ATTEMPTS or _NOT_STARTED not in str(error):
                raise
        else:
            return query
    raise AssertionError
