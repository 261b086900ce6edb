"""The check of the client's blocking classes finds one that differs from its asynchronous class."""

import sys

import pytest

from tests.repo.ci_programs import ci_module


@pytest.mark.parametrize("thread", ["dledger admin", "another thread"])
def test_a_blocking_class_that_is_not_what_its_asynchronous_class_makes_of_it_is_found(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], thread: str
) -> None:
    facade = ci_module("facade")
    monkeypatch.setattr(sys, "argv", ["facade.py"])
    monkeypatch.setattr(facade, "FACADES", {"sync/admin": facade.FACADES["sync/admin"]._replace(thread=thread)})
    is_other = thread == "another thread"
    assert facade.main() == is_other
    found = "client/dledger_client/sync/admin.py: not what admin.py makes of it: `make fix` writes it\n"
    assert capsys.readouterr().out == (found if is_other else "")
