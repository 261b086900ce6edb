"""Every command that connects to a cluster works with TLS and with access control."""

from __future__ import annotations

import os
import subprocess
import sys
from base64 import b64encode
from pathlib import Path

import pytest
from command_tree import leaves

from dledger_base.access_keys import KEY_BYTES, access_keys
from dledger_remoting.accounts import root_credentials

DLEDGER = Path(sys.executable).with_name("dledger")
LOCAL = {
    *("broker", "namesrv", "completion", "demo", "account new-key", "config check", "config show"),
    *(f"context {name}" for name in ("add", "list", "remove", "show", "use")),
    *("log export", "log inspect", "log verify", "node convert", "node recover", "node rescue"),
    *(f"chaos {name}" for name in ("campaign", "check", "faults", "figures", "mutants", "run", "workloads")),
}
"""Commands that connect to no cluster, or create one of their own."""
TESTED_ELSEWHERE = {"console", "proxy", *(f"spark {name}" for name in ("archive", "lag", "replay", "stats", "verify"))}
"""Commands tested by `tests/spark/test_spark_signing.py`, since a job needs a Java machine, `tests/console` and
`tests/proxy`.
"""
REFUSALS = ("username cannot", "no permission", "TLS server", "speaks TLS")
STEPS = """
status --data DATA
cluster health
cluster info
top --once
bench send --messages 10
bench consume --messages 10
bench end-to-end --messages 10
debug bundle --data DATA --into BUNDLE
topic create T1
topic list
topic describe T1
produce --topic T1 --key k < one
consume --topic T1 --group g --from-beginning --exit-eof
group create g2
group list
group describe g
group pause g
group resume g
group clone g g2 --topic T1
group reset g --topic T1 --to beginning --yes
group skip g --topic T1 --yes
message get --topic T1 --key k
message trace MISSING : 1
message recall --topic T1 MISSING : 1
dlq list
dlq show g
dlq export g
dlq resend g --all
pin list
pin release nobody : 1
quota set topic T1 --messages 100000
quota list
quota delete topic T1
account create app
account list
account rotate app --keep-earlier
account drop-earlier app
account rotate app
account reseal
account disable app
account enable app
account import ACCOUNTS
acl grant app Topic:T1 Pub
acl list
acl test app Pub Topic:T1
acl revoke app
config live
config set retention_hours=48
config unset retention_hours
node lead FOLLOWER
node status --data DATA
node stop --data DATA --now FOLLOWER
node remove FOLLOWER --yes
node start --data DATA --detach FOLLOWER
group delete g2 --yes
topic delete T1 --yes
account delete app --yes
cluster forget nobody --yes : 1
down --data DATA
up --data DATA --detach
"""
SHORT = """
cluster health
topic create T1
produce --topic T1 < one
consume --topic T1 --group g --from-beginning --exit-eof
account create app
node lead FOLLOWER
cluster forget nobody --yes : 1
"""
"""One command of each kind of connection."""


class Cluster:
    """A cluster of real processes, and commands with the variables that `client.env` sets."""

    def __init__(self, folder: Path, ports: tuple[int, int], *, with_tls: bool) -> None:
        self.data = folder / "data"
        base_port, namesrv_port = ports
        self.environment = {name: text for name, text in os.environ.items() if not name.startswith("DLEDGER_")}
        places = ["--groups", "1", "--nodes", "3", "--namesrv-port", str(namesrv_port), "--base-port", str(base_port)]
        self.environment |= {"DLEDGER_NAMESRV": f"127.0.0.1:{namesrv_port}", "DLEDGER_DATA": ""}
        if with_tls:
            self.founding = ["up", "--data", str(self.data), *places, "--secure", "--detach"]
            keys = self.data / "secure" / "access.keys"
            self.environment["DLEDGER_TLS_CA"] = str(self.data / "secure" / "ca.pem")
        else:
            keys = folder / "access.keys"
            keys.write_text(f"{b64encode(bytes(range(KEY_BYTES))).decode()}\n")
            keys.chmod(0o600)
            named = f'access_key_file = "{keys}"\n'
            (folder / "extra.toml").write_text(f"{named}[namesrv]\n{named}")
            self.founding = [
                "up",
                "--data",
                str(self.data),
                *places,
                "--config",
                str(folder / "extra.toml"),
                "--detach",
            ]
        self.keys = keys
        self.environment |= {"DLEDGER_KEY_FILE": str(keys), "DLEDGER_CREDENTIALS": str(folder / "credentials")}
        self.environment["DLEDGER_SECRET_FILE"] = str(self.data / "secret")
        self.credentials = folder / "credentials"

    def run(self, *words: str, text: str = "") -> tuple[int, str]:
        done = subprocess.run(
            [str(DLEDGER), *words], input=text, capture_output=True, text=True, env=self.environment, check=False
        )
        return done.returncode, done.stdout + done.stderr

    def found(self) -> None:
        code, printed = self.run(*self.founding)
        assert code == 0, printed
        account = root_credentials(access_keys(self.keys))
        self.credentials.write_text(f"{account.access_key}\n{account.secret}\n")
        self.credentials.chmod(0o600)

    def follower(self) -> str:
        _, printed = self.run("node", "status", "--data", str(self.data))
        return next(line.split()[0] for line in printed.splitlines() if " follower " in line)


def failures(cluster: Cluster, folder: Path, steps: str) -> list[str]:
    """Found a cluster, run commands one after another, and return those that did not do what they should."""
    accounts = folder / "plain_acl.yml"
    accounts.write_text("accounts:\n- accessKey: imported\n  secretKey: secret-of-imported\n")
    failed = []
    cluster.found()
    try:
        words = {"DATA": str(cluster.data), "ACCOUNTS": str(accounts), "MISSING": "00" * 16}
        words["BUNDLE"] = str(folder / "bundle.tar.gz")
        for line in steps.strip().splitlines():
            command, _, code = line.partition(" : ")
            command, _, text = command.partition(" < ")
            if "FOLLOWER" in command and not command.startswith("node remove") and "start" not in command:
                words["FOLLOWER"] = cluster.follower()
            found, printed = cluster.run(*(words.get(word, word) for word in command.split()), text=text)
            if found != int(code or 0) or any(part in printed for part in REFUSALS):
                failed.append(f"{line}: exit code {found}\n{printed}")
    finally:
        cluster.run("down", "--data", str(cluster.data))
    return failed


def test_commands_of_each_kind_work_on_a_secured_cluster(tmp_path, ports):
    assert failures(Cluster(tmp_path, ports, with_tls=True), tmp_path, SHORT) == []


@pytest.mark.long
@pytest.mark.parametrize("with_tls", [True, False], ids=["up --secure", "access control alone"])
def test_every_command_of_the_reference_works(tmp_path, ports, with_tls):
    known = {" ".join(path) for path, _ in leaves()}
    reached = {name for name in known if any(line.startswith(name) for line in STEPS.strip().splitlines())}
    assert known - reached - LOCAL - TESTED_ELSEWHERE == set()
    assert failures(Cluster(tmp_path, ports, with_tls=with_tls), tmp_path, STEPS) == []
