'use strict';

// Drive npm's rocketmq-client-nodejs; see ../stock_clients.py for the lines it reads and writes.
//
//   NODE_PATH=<node_modules> node driver.js HOST:PORT[;HOST:PORT]      addresses of proxies

const readline = require('readline');
const { Producer, SimpleConsumer, PushConsumer, FilterExpression, ConsumeResult } = require('rocketmq-client-nodejs');
const { FilterType, TransactionResolution } = require('rocketmq-client-nodejs/proto/apache/rocketmq/v2/definition_pb');

const retryPauseMs = 100;
const logger = { debug() {}, info() {}, warn() {}, error: complain, close() {} };
const account = process.env.DRIVER_ACCESS_KEY
  ? { sessionCredentials: { accessKey: process.env.DRIVER_ACCESS_KEY, accessSecret: process.env.DRIVER_SECRET } }
  : {};
const base = { endpoints: process.argv[2], namespace: '', logger, sslEnabled: Boolean(process.env.DRIVER_TLS), ...account };

const producers = new Map();
const consumers = new Map();
const halves = new Map();
const held = new Map();
let streamsStop = false;

function say(fields) {
  process.stdout.write(JSON.stringify(fields) + '\n');
}

function complain(...words) {
  process.stderr.write(`${new Date().toISOString()} ${words.map(word => word && word.stack || word).join(' ')}\n`);
}

function pause(milliseconds) {
  return new Promise(resolve => setTimeout(resolve, milliseconds));
}

function shown(message) {
  return {
    id: message.messageId,
    topic: message.topic,
    body: message.body.toString(),
    tag: message.tag,
    keys: [ ...message.keys ].sort(),
    group: message.messageGroup,
    properties: Object.fromEntries(message.properties),
    attempt: message.deliveryAttempt,
    corrupted: Boolean(message.corrupted),
  };
}

async function producer(topic) {
  if (!producers.has(topic)) {
    const checker = {
      async check(message) {
        say({ checked: message.body.toString() });
        return TransactionResolution.COMMIT;
      },
    };
    const made = new Producer({ ...base, topic, checker });
    producers.set(topic, made.startup().then(() => made));
  }
  return producers.get(topic);
}

function message({ topic, body, tag, keys, group, delay_s, properties }) {
  const made = { topic, body: Buffer.from(body) };
  if (tag) made.tag = tag;
  if (keys) made.keys = keys;
  if (group) made.messageGroup = group;
  if (delay_s) made.deliveryTimestamp = new Date(Date.now() + delay_s * 1000);
  if (properties) made.properties = new Map(Object.entries(properties));
  return made;
}

function subscriptions({ topic, expression, sql }) {
  return new Map([ [ topic, new FilterExpression(expression || '*', sql ? FilterType.SQL : FilterType.TAG) ] ]);
}

const calls = {
  async send(wanted) {
    const receipt = await (await producer(wanted.topic)).send(message(wanted));
    return { message_id: receipt.messageId, offset: receipt.offset, recall_handle: receipt.recallHandle };
  },

  async begin(wanted) {
    const ready = await producer(wanted.topic);
    const transaction = ready.beginTransaction();
    const receipt = await ready.send(message(wanted), transaction);
    halves.set(receipt.messageId, transaction);
    return { message_id: receipt.messageId };
  },

  async commit({ message: id }) {
    await halves.get(id).commit();
    return null;
  },

  async rollback({ message: id }) {
    await halves.get(id).rollback();
    return null;
  },

  async recall({ topic, handle }) {
    return (await (await producer(topic)).recallMessage(topic, handle)).messageId;
  },

  async stream(wanted) {
    for (let number = 0; number < wanted.count; number++) {
      const body = `${wanted.prefix}${number}`;
      while (!streamsStop) {
        const started = Date.now();
        try {
          await calls.send({ ...wanted, body });
          say({ sent: number, body, ms: Date.now() - started });
          break;
        } catch (error) {
          say({ failed: number, error: String(error.message) });
          await pause(retryPauseMs);
        }
      }
      await pause(wanted.pause_ms);
    }
    return null;
  },

  async stop_streams() {
    streamsStop = true;
    return null;
  },

  async simple(wanted) {
    const made = new SimpleConsumer({
      ...base, consumerGroup: wanted.group, subscriptions: subscriptions(wanted), awaitDuration: 2000,
    });
    await made.startup();
    consumers.set(wanted.name, made);
    return null;
  },

  async receive({ name, max, invisible_s }) {
    const found = await consumers.get(name).receive(max || 16, (invisible_s || 10) * 1000);
    for (const one of found) held.set(one.messageId, one);
    return found.map(shown);
  },

  async ack({ name, message: id }) {
    await consumers.get(name).ack(held.get(id));
    return null;
  },

  async hide({ name, message: id, seconds }) {
    await consumers.get(name).changeInvisibleDuration(held.get(id), seconds * 1000);
    return null;
  },

  async push(wanted) {
    const left = { ...wanted.fails };
    const made = new PushConsumer({
      ...base,
      consumerGroup: wanted.group,
      subscriptions: subscriptions(wanted),
      messageListener: {
        async consume(received) {
          const said = shown(received);
          say({ received: wanted.name, ...said });
          const fails = left[said.body] > 0;
          left[said.body] -= 1;
          return fails ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
        },
      },
    });
    await made.startup();
    consumers.set(wanted.name, made);
    return null;
  },

  async stop({ name }) {
    const made = consumers.get(name);
    consumers.delete(name);
    await made.shutdown();
    return null;
  },
};

process.on('unhandledRejection', complain);
const lines = readline.createInterface({ input: process.stdin });
lines.on('line', async line => {
  const asked = JSON.parse(line);
  try {
    say({ id: asked.id, result: await calls[asked.call](asked) || null });
  } catch (error) {
    say({ id: asked.id, error: String(error && error.message || error) });
  }
});
lines.on('close', () => process.exit(0));
