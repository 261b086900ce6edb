"""Applications on Spring, unmodified: Apache's Spring Boot starter, and Spring Cloud Stream's binder for RocketMQ."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import HERE, installed_jars
from guarded_groups import APP, GUARDED, TOPIC, issue_tls, make_accounts

from dledger_client import Tls
from dledger_client.testing import LocalCluster

RUN_SECONDS = 180
RECEIVED = "received [one, three, two]"
PROGRAMS = {"SpringApp": "spring.xml", "StreamApp": "stream.xml"}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Start a group that accepts only signed requests over TLS, with an account that may use one topic."""
    folder = tmp_path_factory.mktemp("tls")
    own, trusted = issue_tls(folder)
    with LocalCluster(config=f"{own}{trusted}{GUARDED}{own}") as cluster:
        make_accounts(cluster.namesrv, Tls(folder / "ca.pem"))
        yield cluster


@pytest.fixture(params=list(PROGRAMS))
def application(request: pytest.FixtureRequest) -> tuple[str, Path]:
    """Return the name of a program, and the folder of it and its jars."""
    return request.param, installed_jars(
        request, request.param, "", HERE / "java" / PROGRAMS[request.param], request.param
    )


def run(
    application: tuple[str, Path], namesrv: str, topic: str, home: Path, *, is_secured: bool
) -> subprocess.CompletedProcess[str]:
    """Run an application to its end. Only its configuration names the service."""
    program, jars = application
    settings = {"app.topic": topic, "app.group": f"{program}-readers", "app.tls": str(is_secured).lower()}
    if program == "SpringApp":
        settings |= {"rocketmq.name-server": namesrv, "rocketmq.producer.group": "senders"}
        if is_secured:
            for end in ("producer", "consumer"):
                settings[f"rocketmq.{end}.access-key"] = APP.access_key
                settings[f"rocketmq.{end}.secret-key"] = APP.secret
            settings["rocketmq.producer.tls-enable"] = "true"
    else:
        stream = "spring.cloud.stream"
        settings |= {
            f"{stream}.rocketmq.binder.name-server": namesrv,
            f"{stream}.bindings.out-0.destination": topic,
            f"{stream}.bindings.take-in-0.destination": topic,
            f"{stream}.bindings.take-in-0.group": "stream-readers",
            f"{stream}.rocketmq.bindings.out-0.producer.group": "senders",
        }
        if is_secured:
            settings[f"{stream}.rocketmq.binder.access-key"] = APP.access_key
            settings[f"{stream}.rocketmq.binder.secret-key"] = APP.secret
    options = ["-Dtls.enable=true"] if is_secured else []
    return subprocess.run(
        [
            *("java", "-Xmx256m", f"-Duser.home={home}", *options, "-cp", f"{jars}/classes:{jars}/lib/*", program),
            *(f"--{name}={value}" for name, value in settings.items()),
        ],
        cwd=home,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )


def test_the_client_sends_and_receives(
    one_group: LocalCluster, topic: str, application: tuple[str, Path], tmp_path: Path
) -> None:
    done = run(application, one_group.namesrv, topic, tmp_path, is_secured=False)
    assert (done.returncode, RECEIVED in done.stdout) == (0, True), (done.stdout + done.stderr)[-3000:]


def test_the_application_signs_requests_and_uses_tls(
    secured: LocalCluster, application: tuple[str, Path], tmp_path: Path
) -> None:
    done = run(application, secured.namesrv, TOPIC, tmp_path, is_secured=True)
    assert (done.returncode, RECEIVED in done.stdout) == (0, True), (done.stdout + done.stderr)[-3000:]
