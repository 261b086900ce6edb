"""Runner of the load generator, and reader of its results."""

import os
import selectors
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Final, Literal

import msgspec


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """A load of the generator: `connections` × `window` requests in flight (pull: one per queue).

    A connection sends to one queue. With `spread`, each of its requests in flight goes to another queue. With
    `delay_s`, the messages are due that many seconds later.
    """

    mode: Literal["send", "pull"] = "send"
    connections: int = 1
    window: int = 64
    batch: int = 1
    body_bytes: int = 1024
    queues: int = 4
    spread: bool = False
    messages_per_pull: int = 32
    delay_s: int = 0


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of the generator after its warm-up. Latencies are per request, from hand-over to answer.

    `errors` counts unsuccessful answers by response code. Its other keys are `opaque` (an answer to no request),
    `record` (a malformed or out of order record) and `other`. Unlike the rest it includes the warm-up.
    `messages_of_turn` counts the messages sent in each turn, if two topics took turns.
    """

    seconds: float
    requests: int
    messages: int
    messages_per_s: float
    acknowledged_total: int
    received_mb_per_s: float
    sent_mb_per_s: float
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    generator_cpu_s: float
    errors: dict[str, int]
    messages_of_turn: list[int] = []


class _Event(msgspec.Struct):
    event: Literal["start", "end"]


_LOOK_S: Final = 1.0
"""Maximum time until a Ctrl-C is noticed, in seconds."""


class GeneratorError(RuntimeError):
    """The generator ended without a usable measurement. The message carries the generator's own text."""


def run_load(
    program: Path,
    load: Load,
    *,
    port: int,
    topic: str,
    seconds: float,
    warmup_s: float = 0.0,
    messages: int | None = None,
    other_topic: str | None = None,
    on_start: Callable[[], None] = lambda: None,
    on_end: Callable[[], None] = lambda: None,
) -> LoadResult:
    """Put `load` on 127.0.0.1:`port` and return the result.

    The load ends after `warmup_s` + `seconds`, or as soon as `messages` have been acknowledged. Sends to `topic` and
    `other_topic` take turns of 100 ms, in the order topic, other, other, topic. `on_start` and `on_end` are called at
    the edges of the measured time, to sample the servers' usage. Raises `GeneratorError` when a connection fails,
    nothing is answered, or not all of `messages` are.
    """
    arguments = {
        "mode": load.mode,
        "port": port,
        "topic": topic,
        "connections": load.connections,
        "window": load.window,
        "batch": load.batch,
        "body": load.body_bytes,
        "queues": load.queues,
        "spread": int(load.spread),
        "per-pull": load.messages_per_pull,
        "seconds": seconds,
        "warmup": warmup_s,
    }
    if messages is not None:
        arguments["messages"] = messages
    if load.delay_s:
        arguments["delay-s"] = load.delay_s
    if other_topic is not None:
        arguments["other-topic"] = other_topic
    command = [str(program), *(f"--{name}={value}" for name, value in arguments.items())]
    return run_generator(command, on_start=on_start, on_end=on_end)


def run_generator(
    command: Sequence[str],
    *,
    on_start: Callable[[], None] | None = None,
    on_end: Callable[[], None] | None = None,
    timeout_s: float | None = None,
) -> LoadResult:
    """Run any program that reports as `gen.c` does, and return its result.

    A program that succeeds without a result has measured nothing: all figures are 0. Raises `GeneratorError` when it
    fails, or has not ended after `timeout_s`.
    """
    last_line = ""
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        timer = threading.Timer(timeout_s or 0.0, process.kill)
        if timeout_s is not None:
            timer.start()
        try:
            for line in _lines(process.stdout):
                if not line.startswith('{"event"'):
                    last_line = line
                elif msgspec.json.decode(line, type=_Event).event == "start":
                    if on_start is not None:
                        on_start()
                elif on_end is not None:
                    on_end()
            complaint = process.stderr.read().decode(errors="replace").strip()
        except BaseException:
            process.kill()
            raise
        finally:
            timer.cancel()
    if process.returncode != 0:
        raise GeneratorError(f"load generator: exit status {process.returncode}: {complaint or last_line.strip()}")
    return msgspec.json.decode(last_line or _NOTHING, type=LoadResult)


def _lines(pipe: IO[bytes]) -> Iterator[str]:
    """Yield a program's output line by line.

    Reads do not block, so that Ctrl-C is noticed soon. A signal may arrive after the interpreter's last look for
    signals and before the system call. A blocking read would then notice it at the program's next output, perhaps ten
    minutes later.
    """
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while True:
            if not selector.select(_LOOK_S):
                continue
            read = os.read(pipe.fileno(), 1 << 16)
            if not read:
                break
            *lines, rest = (rest + read).split(b"\n")
            yield from (line.decode() for line in lines)
    if rest:
        yield rest.decode()


_NOTHING = msgspec.json.encode(dict.fromkeys(LoadResult.__struct_fields__, 0) | {"errors": {}, "messages_of_turn": []})
