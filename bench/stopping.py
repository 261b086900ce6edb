"""Signal handler that ends a benchmark early."""

import signal


def stop_on_sigterm() -> None:
    """Let SIGTERM raise `KeyboardInterrupt`, as Ctrl-C does, so that no process of a cluster outlives its benchmark."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
