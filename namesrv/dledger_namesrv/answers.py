"""Answers of a name server to requests that succeed."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator

from dledger_remoting.bodies import TopicList, encode_body
from dledger_remoting.codes import ResponseCode
from dledger_remoting.command import RemotingCommand, make_response
from dledger_remoting.registration import Steps


class Behind(Coroutine[None, None, RemotingCommand]):
    """Coroutine for an answer that awaits another coroutine, `work`. If it is closed before it begins, so is `work`."""

    def __init__(
        self,
        work: Coroutine[None, None, RemotingCommand],
        go_on: Callable[[Coroutine[None, None, RemotingCommand]], Coroutine[None, None, RemotingCommand]],
    ) -> None:
        self._work = work
        self._combined = go_on(work)

    def __await__(self) -> Generator[None, None, RemotingCommand]:
        """Await the answer."""
        return self._combined.__await__()

    def send(self, value: None) -> None:
        """Continue, as `Coroutine.send` does."""
        return self._combined.send(value)

    def throw(self, *error: BaseException) -> None:  # type: ignore[override]  # its forms are handed on
        """Raise an error in the work, as `Coroutine.throw` does."""
        self._combined.throw(*error)  # type: ignore[call-overload]

    def close(self) -> None:
        """Close both coroutines, whether they have begun or not."""
        self._combined.close()
        self._work.close()


def success(request: RemotingCommand, body: bytes = b"", ext: dict[str, str] | None = None) -> RemotingCommand:
    """Return an answer with code 0."""
    return make_response(request, ResponseCode.SUCCESS, ext=ext, body=body)


def listed(request: RemotingCommand, topics: Steps[list[str]]) -> Steps[RemotingCommand]:
    """Run the steps that make a list of topics, and return the answer with it."""
    names = yield from topics
    return success(request, encode_body(TopicList(names)))
