"""Ext fields that a send carries beyond its own."""

from __future__ import annotations

from dledger_client.sending.wire import Outgoing, send_frame
from dledger_remoting.command import decode_command
from dledger_remoting.frame import FrameDecoder
from dledger_remoting.signatures import ACCESS_KEY_FIELD, SIGNATURE_FIELD, Credentials, signature_of

FIELDS = {"dledgerForAddress": "10.0.0.1:5"}
PLAIN = Outgoing("T", b"body", "a\x01b\x02", 0, 5, ("key",), idempotent=True)
SPOKEN = Outgoing(
    "T", b"body", "a\x01b\x02", 0, 5, ("key",), idempotent=True, fields={"dledgerForAddress": "10.0.0.1:5"}
)


def sent(outgoing, credentials=None):
    decoder = FrameDecoder()
    decoder.receive_data(send_frame(outgoing, "PG", 3, 7, credentials=credentials))
    return decode_command(decoder.next_frame())


def test_a_send_with_further_fields_has_them_beside_its_own_and_nothing_else_changes():
    plain, spoken = sent(PLAIN), sent(SPOKEN)
    assert spoken.ext == plain.ext | FIELDS
    assert (spoken.code, spoken.opaque, spoken.flag, spoken.body) == (plain.code, 7, plain.flag, b"body")


def test_further_fields_of_a_send_are_signed_with_it():
    command = sent(SPOKEN, Credentials("proxy", "secret"))
    assert command.ext[ACCESS_KEY_FIELD] == "proxy"
    assert command.ext[SIGNATURE_FIELD] == signature_of("secret", command.ext, command.body)
    without = {name: value for name, value in command.ext.items() if name != "dledgerForAddress"}
    assert command.ext[SIGNATURE_FIELD] != signature_of("secret", without, command.body)
