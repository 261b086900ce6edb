'use strict';

// Drive npm's ali-ons; see ../stock_clients.py for the lines it reads and writes.
//
//   NODE_PATH=<node_modules> node driver.js HOST:PORT      address of the name server

const readline = require('readline');
const { Producer, Consumer, Message } = require('ali-ons');

const nameServer = process.argv[2];
const retryPauseMs = 100;
const logger = { debug() {}, info() {}, warn() {}, error: complain };
const httpclient = { request: async () => { throw new Error('only cloud addresses need http'); } };
const account = process.env.DRIVER_ACCESS_KEY
  ? { accessKeyId: process.env.DRIVER_ACCESS_KEY, accessKeySecret: process.env.DRIVER_SECRET }
  : {};
const base = { httpclient, logger, nameSrv: nameServer, ...account };

const producers = new Map();
const consumers = new Map();
let streamsStop = false;

function say(fields) {
  process.stdout.write(JSON.stringify(fields) + '\n');
}

function complain(error) {
  process.stderr.write(`${new Date().toISOString()} ${error && error.stack || error}\n`);
}

function pause(milliseconds) {
  return new Promise(resolve => setTimeout(resolve, milliseconds));
}

// Returns the producer of a namespace, started at first use. With `whole` it sends bodies of any size uncompressed, so
// that the broker judges the size.
async function readyProducer(namespace = '', whole = false) {
  const name = `${namespace} ${whole}`;
  if (!producers.has(name)) {
    const limits = whole ? { compressMsgBodyOverHowmuch: Infinity, maxMessageSize: Infinity, sendMsgTimeout: 30000 } : {};
    const made = new Producer({ ...base, ...limits, namespace, producerGroup: whole ? 'ali-whole' : 'ali-producers' });
    made.on('error', complain);
    await made.ready();
    producers.set(name, made);
  }
  return producers.get(name);
}

function message({ topic, body, tag, keys, level, deliver_ms, shard }) {
  const made = new Message(topic, tag || '', body);
  if (keys) made.keys = [ keys ];
  if (level) made.delayTimeLevel = level;
  if (deliver_ms) made.setStartDeliverTime(deliver_ms);
  if (shard !== undefined) made.shardingKey = `shard ${shard}`;
  return made;
}

const calls = {
  async send(wanted) {
    const result = await (await readyProducer(wanted.namespace, wanted.whole)).send(message(wanted));
    return {
      status: result.sendStatus,
      message_id: result.msgId,
      broker_group: result.messageQueue.brokerName,
      queue_id: result.messageQueue.queueId,
      queue_offset: result.queueOffset,
    };
  },

  async send_within(wanted) {
    return calls.send(wanted);
  },

  async send_whole(wanted) {
    return calls.send({ ...wanted, whole: true });
  },

  // Sends numbered messages one after the other, each until it is acknowledged.
  async stream({ topic, prefix, count, pause_ms }) {
    const ready = await readyProducer();
    for (let number = 0; number < count; number++) {
      const body = `${prefix}${number}`;
      for (;;) {
        const started = Date.now();
        try {
          const result = await ready.send(message({ topic, body }));
          const group = result.messageQueue.brokerName;
          say({ sent: number, body, broker_group: group, ms: Date.now() - started });
          break;
        } catch (error) {
          say({ failed: number, error: String(error.message), ms: Date.now() - started });
          if (streamsStop) return number;
          await pause(retryPauseMs);
        }
      }
      if (streamsStop) return number + 1;
      await pause(pause_ms);
    }
    return count;
  },

  async stop_streams() {
    streamsStop = true;
    return null;
  },

  // Starts a push consumer that reports its messages, and fails for a body as often as `fails` says.
  async push({ name, group, topic, tag, fails, namespace, broadcast, from_last }) {
    const left = { ...fails };
    const made = new Consumer({
      ...base,
      namespace: namespace || '',
      consumerGroup: group,
      consumeFromWhere: from_last ? 'CONSUME_FROM_LAST_OFFSET' : 'CONSUME_FROM_FIRST_OFFSET',
      isBroadcast: Boolean(broadcast),
    });
    made.on('error', complain);
    made.subscribe(topic, tag || '*', async received => {
      say({
        received: name,
        topic: received.topic,
        body: received.body.toString(),
        tag: received.tags,
        keys: received.keys,
        queue_id: received.queueId,
        queue_offset: received.queueOffset,
        reconsume_times: received.reconsumeTimes,
      });
      const body = received.body.toString();
      left[body] = (left[body] || 0) - 1;
      // The client evaluates a listener's result (ACTION_RETRY) only at the first delivery.
      if (left[body] >= 0) throw new Error(`cannot handle ${body}`);
    });
    await made.ready();
    consumers.set(name, made);
    return null;
  },

  async close_push({ name }) {
    await consumers.get(name).close();
    consumers.delete(name);
    return null;
  },
};

const input = readline.createInterface({ input: process.stdin });
input.on('line', async line => {
  const { id, call, ...rest } = JSON.parse(line);
  try {
    say({ id, result: await calls[call](rest) });
  } catch (error) {
    say({ id, error: String(error && error.message || error) });
  }
});
input.on('close', () => process.exit(0));
process.on('unhandledRejection', complain);
