"""Class filters that tests have their nodes run: one that works, and some that fail, in each way."""

import os
import signal
import sys
import time

from dledger_broker.filter_process import FilteredMessage


def large(message: FilteredMessage) -> bool:
    return int(message.body) > 100


def of_red_customers(message: FilteredMessage) -> object:
    return message.tags == "red" and message.properties.get("customer")


def says_much(message: FilteredMessage) -> bool:
    print("not an answer", message.topic)
    sys.stdout.flush()
    return sys.stdin.read() == ""


def loops(message: FilteredMessage) -> bool:
    while message.body == b"loop":
        pass
    return True


def sleeps_without_alarm(message: FilteredMessage) -> bool:
    signal.signal(signal.SIGALRM, signal.SIG_IGN)
    while message.body == b"loop":
        time.sleep(60)
    return True


def eats(message: FilteredMessage) -> bool:
    if message.body == b"eat":
        return bool([bytearray(1 << 20) for _ in range(1 << 14)])
    return True


def dies(message: FilteredMessage) -> bool:
    if message.body == b"die":
        os._exit(3)
    return True


def raises(message: FilteredMessage) -> bool:
    raise KeyError("customer")
