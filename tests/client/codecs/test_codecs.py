"""Each codec reads what it writes, and refuses everything else without showing it."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec
import pydantic
import pytest

from dledger_base.extras import install_command
from dledger_client import Codec, InvalidArgumentError, Producer
from dledger_client.codecs import BytesCodec, JsonCodec, PydanticCodec, TextCodec


class Order(msgspec.Struct, forbid_unknown_fields=True):
    number: int
    at: datetime


@dataclass
class Cancelled:
    number: int


class Paid(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    number: int = pydantic.Field(alias="orderNumber", gt=0)

    @pydantic.computed_field
    def shown(self) -> str:
        return f"order {self.number}"


NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PAID = Paid(orderNumber=17)


@pytest.mark.parametrize(
    ("codec", "value", "body"),
    [
        (JsonCodec(Order), Order(17, NOON), b'{"number":17,"at":"2026-01-01T12:00:00Z"}'),
        (JsonCodec(Cancelled), Cancelled(17), b'{"number":17}'),
        (JsonCodec(list[int]), [1, 2], b"[1,2]"),
        (JsonCodec(int | None), None, b"null"),
        (PydanticCodec(Paid), PAID, b'{"orderNumber":17}'),
        (PydanticCodec(list[Paid]), [PAID], b'[{"orderNumber":17}]'),
        (TextCodec(), "grün", "grün".encode()),
        (BytesCodec(), b"\xff", b"\xff"),
    ],
)
def test_a_codec_reads_what_it_writes(codec, value, body):
    assert isinstance(codec, Codec)
    assert codec.encode(value) == body
    assert codec.decode(body) == value


@pytest.mark.parametrize(
    ("codec", "value"),
    [
        (JsonCodec(Order), Cancelled(17)),
        (JsonCodec(Order), Order("seventeen", NOON)),
        (JsonCodec(Order), Order(17, object())),
        (JsonCodec(float), float("nan")),
        (PydanticCodec(Paid), "order 17"),
        (PydanticCodec(Paid), Paid.model_construct(number=-1)),
        (PydanticCodec(Paid), Paid.model_construct(number="seventeen")),
        (TextCodec(), b"bytes"),
        (TextCodec(), "\ud800"),
        (BytesCodec(), "text"),
    ],
)
async def test_a_value_that_its_own_type_refuses_is_refused_before_anything_is_sent(codec, value):
    producer = Producer("127.0.0.1:1", codec=codec)  # not started: whatever gets as far is another error
    with pytest.raises(InvalidArgumentError, match=rf"^body of type \w+: {type(codec).__name__} cannot encode it: .+"):
        await producer.send("T", value)
    with pytest.raises(InvalidArgumentError, match=r"^messages\[0\] of type \w+: "):
        await producer.send_batch("T", [value])


@pytest.mark.parametrize(
    ("codec", "body", "reason"),
    [
        (JsonCodec(Order), b'{"number":"secret"}', "Expected `int`, got `str` - at `$.number`"),
        (PydanticCodec(Paid), b'{"orderNumber":"secret"}', "orderNumber: Input should be a valid integer"),
        (PydanticCodec(Paid), b"secret", "body: Invalid JSON: "),
        (TextCodec(), b"secret\xff", "'utf-8' codec can't decode byte 0xff "),
    ],
)
def test_the_reason_for_which_a_body_does_not_decode_names_its_place(codec, body, reason):
    with pytest.raises(ValueError, match=f"^{re.escape(reason)}") as refused:
        codec.decode(body)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize("codec", [JsonCodec, PydanticCodec])
def test_a_type_that_no_value_has_is_refused_when_the_codec_is_made(codec):
    with pytest.raises(InvalidArgumentError, match=r"^kind=.* is no type of "):
        codec(subprocess.Popen[bytes] if codec is PydanticCodec else dict[bytes, set[list[int]]] | list[str] | set[int])


LOADED = "import sys, dledger_client; print(*sys.modules)"
WITHOUT_PYDANTIC = """
import sys
sys.modules["pydantic"] = None
from dledger_client.codecs import JsonCodec, PydanticCodec
JsonCodec(int)
try:
    PydanticCodec(int)
except ModuleNotFoundError as error:
    print(error)
"""


def run(program: str) -> str:
    return subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True).stdout


def test_codecs_load_on_first_use_and_without_pydantic_the_error_says_what_to_install():
    loaded = run(LOADED).split()
    assert "dledger_client.messages" in loaded
    assert {"dledger_client.codecs", "pydantic"}.isdisjoint(loaded)
    assert run(WITHOUT_PYDANTIC) == f"PydanticCodec needs pydantic: {install_command('pydantic')}\n"
