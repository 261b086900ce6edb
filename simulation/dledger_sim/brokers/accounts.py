"""Administrators who make, change and delete accounts (50, 51) and query them (54), and producers that sign.

Their judge is `account_truth`.

No message is stored for an account once a change that takes its right away is applied, under any leader.
"""

from __future__ import annotations

from random import Random

from dledger_broker.features.accounts.table import DeleteAccount
from dledger_remoting.bodies import decode_body
from dledger_remoting.codes import RequestCode, ResponseCode
from dledger_remoting.plain_accounts import PlainAccounts
from dledger_remoting.signatures import Credentials
from dledger_sim.brokers.account_truth import ACCOUNTS, SECRETS, Grant, Send, change_of
from dledger_sim.brokers.clients import Client
from dledger_sim.brokers.connection import Answer
from dledger_sim.brokers.setters import Setter


def any_secret(random: Random) -> str:
    """Return one of two secrets, more often the first."""
    return random.choices(SECRETS, (6, 1))[0]


class AccountSetter(Setter):
    """Administrator who makes and deletes accounts, grants and revokes rights, and changes secrets."""

    def act(self) -> None:
        """Change an account, delete an account, or query all."""
        choice = self.random.random()
        if choice < 0.2:
            self.ask(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, self._judge_list)
        elif choice < 0.85:
            self._change_account(self.random.choice(ACCOUNTS))
        else:
            self._delete_account(self.random.choice(ACCOUNTS))

    def _change_account(self, name: str) -> None:
        truth, number = self.workload.truth.expected.accounts, self.next_number()
        topics = {topic: self.random.random() < 0.8 for topic in sorted(self.workload.lasting)}
        address = f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
        grant = Grant(any_secret(self.random), topics, self.random.random() < 0.5, address)
        truth.grants[address] = grant

        def done(answer: Answer) -> None:
            self.require_known(truth.accounts[name], grant, answer, "an account is changed once it is applied")
            self.workload.counts["account changed"] += 1

        perms = ",".join(f"{topic}={'PUB' if may else 'DENY'}" for topic, may in topics.items())
        ext = {"accessKey": name, "secretKey": grant.secret, "whiteRemoteAddress": address, "topicPerms": perms}
        ext |= {"admin": "false", "defaultTopicPerm": "PUB" if grant.others else "DENY"}
        code = RequestCode.UPDATE_AND_CREATE_ACL_CONFIG
        self.change(code, ("account", name, address), done, ext=ext)

    def _delete_account(self, name: str) -> None:
        history = self.workload.truth.expected.accounts.accounts[name]

        def done(answer: Answer) -> None:
            self.require_known(history, None, answer, "an account is deleted once it is applied")
            self.workload.counts["account deleted"] += 1

        change = change_of(DeleteAccount(name))
        self.change(RequestCode.DELETE_ACL_CONFIG, change, done, ext={"accessKey": name})

    def _judge_list(self, answer: Answer) -> None:
        truth = self.workload.truth.expected.accounts
        rows = decode_body(PlainAccounts, answer.body, "accounts").plain_access_configs
        found = {row.access_key: truth.grants[row.white_remote_address] for row in rows}
        for name in ACCOUNTS:
            promise = "an account is shown as it was last set"
            self.require_known(truth.accounts[name], found.get(name), answer, promise, name=name)
        self.workload.counts["accounts told"] += 1


class Signer(Client):
    """Producer that signs for one of the accounts, with its first secret or with its second."""

    def act(self) -> None:
        """Send a message."""
        workload, random = self.workload, self.random
        topic, queue_id = workload.any_topic(), random.randrange(workload.settings.queues)
        operation = workload.next_operation()
        account = random.choice(ACCOUNTS), any_secret(random)
        self.credentials = Credentials(*account)
        truth = workload.truth.expected.accounts
        truth.sends[operation] = Send(*account, topic, workload.group.scheduler.now)
        code, ext, body = workload.make_send(topic, queue_id, [operation], batch=False)

        def done(answer: Answer | None) -> None:
            workload.sent([operation], queue_id, answer)
            if answer is not None and answer.code == ResponseCode.NO_PERMISSION:
                workload.counts["send refused to an account"] += 1
                if answer.seen is not None and answer.seen.steady and not answer.seen.passed_on:
                    truth.check_refused(operation, answer.seen.first_index, answer.seen.last_index)
            self.pause()

        if not self.call(code, ext, done, body=body):
            workload.not_sent([operation])
            self.pause()
