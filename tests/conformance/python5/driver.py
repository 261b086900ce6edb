"""Driver of PyPI's rocketmq-python-client; see `../stock_clients.py` for the lines it reads and writes.

    python driver.py HOST:PORT[;HOST:PORT]      addresses of proxies

It runs in an environment of its own: its package has the name of the C++ client's.
"""

import json
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

from rocketmq.grpc_protocol import FilterType, TransactionResolution
from rocketmq.v5.client import ClientConfiguration, Credentials
from rocketmq.v5.consumer import PushConsumer, SimpleConsumer
from rocketmq.v5.consumer.push.message_listener import ConsumeResult, MessageListener
from rocketmq.v5.model import FilterExpression, Message
from rocketmq.v5.producer import Producer, TransactionChecker

RETRY_PAUSE_S = 0.1
ACCOUNT = Credentials(os.environ.get("DRIVER_ACCESS_KEY", ""), os.environ.get("DRIVER_SECRET", ""))
TLS = bool(os.environ.get("DRIVER_TLS"))

lock = threading.Lock()
producers = {}
consumers = {}
halves = {}
held = {}
streams_stop = threading.Event()


def say(fields):
    with lock:
        print(json.dumps(fields), flush=True)


def configuration():
    return ClientConfiguration(sys.argv[1], ACCOUNT)


class Checker(TransactionChecker):
    def __init__(self, resolution):
        self.resolution = resolution

    def check(self, message):
        say({"checked": message.body.decode()})
        return self.resolution


class Listener(MessageListener):
    def __init__(self, name, fails):
        self.name = name
        self.fails = dict(fails or {})

    def consume(self, message):
        said = shown(message)
        with lock:
            left = self.fails.get(said["body"], 0)
            self.fails[said["body"]] = left - 1
        say({"received": self.name, **said})
        return ConsumeResult.FAILURE if left > 0 else ConsumeResult.SUCCESS


def shown(message):
    return {
        "id": message.message_id,
        "topic": message.topic,
        "body": message.body.decode(),
        "tag": message.tag,
        "keys": sorted(message.keys or []),
        "group": message.message_group,
        "properties": dict(message.properties or {}),
        "attempt": message.delivery_attempt,
        "corrupted": bool(message.corrupted),
    }


def message(wanted):
    made = Message()
    made.topic = wanted["topic"]
    made.body = wanted["body"].encode()
    if wanted.get("tag"):
        made.tag = wanted["tag"]
    if wanted.get("keys"):
        Message.keys.fset(made, *wanted["keys"])  # an assignment gives the setter one key only
    if wanted.get("group"):
        made.message_group = wanted["group"]
    if wanted.get("delay_s"):
        made.delivery_timestamp = int(time.time() + wanted["delay_s"])
    for name, value in (wanted.get("properties") or {}).items():
        made.add_property(name, value)
    return made


def filter_of(wanted):
    expression = wanted.get("expression") or "*"
    return FilterExpression(expression, FilterType.SQL if wanted.get("sql") else FilterType.TAG)


def producer(topic):
    with lock:
        if topic not in producers:
            checker = Checker(TransactionResolution.COMMIT)
            producers[topic] = Producer(configuration(), (topic,), checker, tls_enable=TLS)
            producers[topic].startup()
        return producers[topic]


class Calls:
    @staticmethod
    def send(wanted):
        receipt = producer(wanted["topic"]).send(message(wanted))
        return {"message_id": receipt.message_id, "offset": receipt.offset, "recall_handle": receipt.recall_handle}

    @staticmethod
    def begin(wanted):
        transaction = producer(wanted["topic"]).begin_transaction()
        receipt = producer(wanted["topic"]).send(message(wanted), transaction)
        halves[receipt.message_id] = transaction
        return {"message_id": receipt.message_id}

    @staticmethod
    def commit(wanted):
        halves.pop(wanted["message"]).commit()

    @staticmethod
    def rollback(wanted):
        halves.pop(wanted["message"]).rollback()

    @staticmethod
    def recall(wanted):
        return producer(wanted["topic"]).recall_message(wanted["topic"], wanted["handle"])

    @staticmethod
    def stream(wanted):
        for number in range(wanted["count"]):
            body = f"{wanted['prefix']}{number}"
            while not streams_stop.is_set():
                started = time.monotonic()
                try:
                    Calls.send({**wanted, "body": body})
                except Exception as error:
                    say({"failed": number, "error": str(error)})
                    time.sleep(RETRY_PAUSE_S)
                else:
                    say({"sent": number, "body": body, "ms": (time.monotonic() - started) * 1000})
                    break
            time.sleep(wanted["pause_ms"] / 1000)

    @staticmethod
    def stop_streams(_wanted):
        streams_stop.set()

    @staticmethod
    def simple(wanted):
        made = SimpleConsumer(configuration(), wanted["group"], {wanted["topic"]: filter_of(wanted)}, 2, tls_enable=TLS)
        made.startup()
        consumers[wanted["name"]] = made

    @staticmethod
    def receive(wanted):
        found = consumers[wanted["name"]].receive(wanted.get("max", 16), wanted.get("invisible_s", 10)) or []
        held.update({one.message_id: one for one in found})
        return [shown(one) for one in found]

    @staticmethod
    def ack(wanted):
        consumers[wanted["name"]].ack(held[wanted["message"]])

    @staticmethod
    def hide(wanted):
        consumers[wanted["name"]].change_invisible_duration(held[wanted["message"]], wanted["seconds"])

    @staticmethod
    def push(wanted):
        made = PushConsumer(
            configuration(),
            wanted["group"],
            Listener(wanted["name"], wanted.get("fails")),
            {wanted["topic"]: filter_of(wanted)},
            tls_enable=TLS,
        )
        made.startup()
        consumers[wanted["name"]] = made

    @staticmethod
    def stop(wanted):
        consumers.pop(wanted["name"]).shutdown()


def answer(asked):
    try:
        say({"id": asked["id"], "result": getattr(Calls, asked["call"])(asked)})
    except Exception as error:
        say({"id": asked["id"], "error": f"{type(error).__name__}: {error}"})


def main():
    with ThreadPoolExecutor(16) as pool:
        for line in sys.stdin:
            pool.submit(answer, json.loads(line))
        streams_stop.set()
    os._exit(0)  # its threads are not daemons


main()
