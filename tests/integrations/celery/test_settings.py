"""A connection's URL and options say where it goes and as whom. A wrong one is refused in one line, without secrets."""

import ssl
import subprocess
import sys

import pytest
from celery import Celery
from kombu import Connection

import dledger_celery
from dledger_base.extras import install_command
from dledger_celery.settings import masked, settings_of
from dledger_client import Credentials, Tls


def settings(url, **options):
    return settings_of(Connection(url, **options))


def test_a_url_names_name_servers_account_virtual_host_and_options():
    found = settings("dledger://app:s%2Fcret@one:1,two:2,three/shop?visibility_timeout=90&idempotent=false")
    assert found.name_servers == ("one:1", "two:2", "three:9876")
    assert found.credentials == Credentials("app", "s/cret")
    assert found.names.virtual_host == "shop"
    assert (found.visibility_timeout, found.idempotent, found.tls) == (90.0, False, None)


def test_options_and_celerys_own_settings_do_the_same():
    options = {"access_key": "app", "secret_key": "s", "tls": {"ca_file": "/ca"}, "max_retries": 3}
    app = Celery(broker="one:1", broker_transport="dledger_celery:Transport", broker_transport_options=options)
    found = settings_of(app.connection_for_write())
    assert (found.name_servers, found.credentials) == (("one:1",), Credentials("app", "s"))
    assert found.tls == Tls(ca_file="/ca")
    assert settings("dledger://one", userid="app", password=lambda: "s").credentials == Credentials("app", "s")


def test_tls_is_asked_for_by_the_scheme_or_by_kombus_ssl():
    assert settings("dledgers://one").tls == Tls()
    assert settings("dledger://one", ssl=True).tls == Tls()
    kombus = {"ca_certs": "/ca", "certfile": "/cert", "keyfile": "/key", "cert_reqs": ssl.CERT_REQUIRED}
    assert settings("dledger://one", ssl=kombus).tls == Tls("/ca", "/cert", "/key")


@pytest.mark.parametrize(
    ("url", "options", "words"),
    [
        ("dledger://one:x", {}, "name server 'one:x' is not host:port: expected dledger://"),
        ("dledger://one:1,", {}, "name server '' is not host:port"),
        ("dledger://one:0", {}, "is not host:port"),
        ("dledger://one?visibilty_timeout=1", {}, "is not known: did you mean 'visibility_timeout'"),
        ("dledger://one", {"zzz": 1}, "'zzz' is not known: known are visibility_timeout"),
        ("dledger://one", {"visibility_timeout": 1}, "visibility_timeout is 1, which is outside 3 to 43200"),
        ("dledger://one", {"visibility_timeout": "soon"}, "transport option visibility_timeout: Expected `float`"),
        ("dledger://one", {"longest_delay": 0}, "longest_delay is 0, which is outside"),
        ("dledger://one", {"timeout": 0}, "timeout is 0, which is outside"),
        ("dledger://one", {"topic_queues": 0}, "topic_queues is 0, which is outside"),
        ("dledger://one", {"max_deliveries": 0}, "max_deliveries is 0, which is outside"),
        ("dledger://app@one", {}, "an account needs a name and a secret: secret_key is missing"),
        ("dledger://app:/hidden@one", {}, "write /, .* of a secret as %2F"),
        ("dledger://app:#hidden@one", {}, "write /, .* of a secret as %2F"),
        ("dledger://one?access_key=a&secret_key=hidden", {}, "secret_key is no option of a URL"),
        ("dledger://one", {"tls": {"ca": "/x"}}, "tls: .*known are ca_file"),
        ("dledger://one/a.b", {}, "virtual host 'a.b'"),
    ],
)
def test_a_wrong_url_or_option_is_refused_by_name(url, options, words):
    with pytest.raises(ValueError, match=words) as refused:
        settings(url, transport_options=options)
    assert "hidden" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_unchecked_certificates_are_refused():
    with pytest.raises(ValueError, match="certificates of servers are always checked"):
        settings("dledger://one", ssl={"cert_reqs": ssl.CERT_NONE})


def test_a_url_of_another_broker_is_refused_without_its_secret():
    with pytest.raises(ValueError, match=r"'amqp://guest:\*\*@rabbit/' is no URL of a cluster") as refused:
        settings("amqp://guest:hidden@rabbit/", transport=dledger_celery.Transport)
    assert "hidden" not in str(refused.value)


def test_no_text_of_a_connection_shows_its_secret():
    connection = Connection("dledger://app:hidden@one:1,two:2/shop")
    assert connection.as_uri() == masked(connection.hostname) == "dledger://app:**@one:1,two:2/shop"
    assert connection.as_uri(include_password=True) == connection.hostname
    for text in (repr(connection), repr(settings_of(connection)), repr(connection.transport.link.settings)):
        assert "hidden" not in text
    for secret in ("hid/den", "hid@den", "hid?den", ":hidden"):
        assert masked(f"dledger://app:{secret}@one/shop") == "dledger://app:**@one/shop"
    assert masked("dledger://one:1,two:2/shop") == "dledger://one:1,two:2/shop"
    app = Celery(broker="dledger://app:hidden@one:1,two:2/shop")
    assert "hidden" not in app.bugreport()


def test_without_kombu_the_import_says_what_to_install():
    script = "import sys; sys.modules['kombu'] = None; import dledger_celery"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"ModuleNotFoundError: dledger_celery needs kombu, which is not installed: {install_command('celery')}"
    )


def test_the_client_does_not_load_it():
    script = "import sys, dledger_client; print([name for name in ('kombu', 'dledger_celery') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
