"""Signal handler that ends a benchmark before its time."""

import signal


def stop_on_sigterm() -> None:
    """Have SIGTERM raise `KeyboardInterrupt`, as Ctrl-C does: no process of a cluster outlives its benchmark."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
