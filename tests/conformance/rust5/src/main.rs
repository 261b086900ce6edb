//! Drives RocketMQ 5's Rust client; see ../stock_clients.py for the lines it reads and writes.
//!
//!     driver HOST:PORT[;HOST:PORT]      addresses of proxies
//!
//! The client has no push consumer, changes no invisible time and recalls no message.

use std::collections::HashMap;
use std::env;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use rocketmq::conf::{ClientOption, ProducerOption, SimpleConsumerOption};
use rocketmq::model::common::{FilterExpression, FilterType};
use rocketmq::model::message::{Message, MessageBuilder, MessageView};
use rocketmq::model::transaction::{Transaction, TransactionResolution};
use rocketmq::{Producer, SimpleConsumer};
use serde_json::{json, Value};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::{mpsc, oneshot};

const RETRY_PAUSE: Duration = Duration::from_millis(100);
const POLL: Duration = Duration::from_secs(2);
const DEFAULT_BATCH: u64 = 16;
const DEFAULT_INVISIBLE_S: u64 = 10;

type Failure = Box<dyn std::error::Error + Send + Sync>;
type Answer = Result<Value, Failure>;
type Resolution = (TransactionResolution, oneshot::Sender<Result<(), String>>);

struct Consumer {
    client: SimpleConsumer,
    topic: String,
    expression: FilterExpression,
}

#[derive(Default)]
struct Driver {
    producers: tokio::sync::Mutex<HashMap<String, Arc<Producer>>>,
    consumers: Mutex<HashMap<String, Arc<Consumer>>>,
    held: Mutex<HashMap<String, Arc<MessageView>>>,
    halves: Mutex<HashMap<String, mpsc::Sender<Resolution>>>,
    streams_stop: AtomicBool,
}

#[tokio::main]
async fn main() {
    let driver = Arc::new(Driver::default());
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let wanted: Value = serde_json::from_str(&line).expect("a line of JSON");
        tokio::spawn(driver.clone().answer(wanted));
    }
}

fn say(what: Value) {
    println!("{what}");
}

fn text<'a>(wanted: &'a Value, name: &str) -> &'a str {
    wanted[name].as_str().unwrap_or_default()
}

impl Driver {
    async fn answer(self: Arc<Self>, wanted: Value) {
        let id = wanted["id"].clone();
        match self.attempt(wanted).await {
            Ok(result) => say(json!({"id": id, "result": result})),
            Err(error) => say(json!({"id": id, "error": error.to_string()})),
        }
    }

    /// Makes a call in a task of its own: the client panics if no proxy answers.
    async fn attempt(self: Arc<Self>, wanted: Value) -> Answer {
        tokio::spawn(async move { self.call(wanted).await }).await?
    }

    async fn attempt_send(self: Arc<Self>, wanted: Value) -> Answer {
        tokio::spawn(async move { self.send(&wanted).await }).await?
    }

    async fn call(self: Arc<Self>, wanted: Value) -> Answer {
        match text(&wanted, "call") {
            "send" => self.send(&wanted).await,
            "begin" => self.begin(&wanted).await,
            "commit" => self.end(&wanted, TransactionResolution::COMMIT).await,
            "rollback" => self.end(&wanted, TransactionResolution::ROLLBACK).await,
            "stream" => self.stream(wanted).await,
            "stop_streams" => {
                self.streams_stop.store(true, Ordering::Relaxed);
                Ok(Value::Null)
            }
            "simple" => self.simple(&wanted).await,
            "receive" => self.receive(&wanted).await,
            "ack" => self.ack(&wanted).await,
            other => Err(format!("no such call: {other}").into()),
        }
    }

    async fn producer(&self, topic: &str) -> Result<Arc<Producer>, Failure> {
        let mut producers = self.producers.lock().await;
        if let Some(made) = producers.get(topic) {
            return Ok(made.clone());
        }
        let mut option = ProducerOption::default();
        option.set_topics(vec![topic]);
        let check = |_id: String, message: MessageView| {
            say(json!({"checked": String::from_utf8_lossy(message.body())}));
            TransactionResolution::COMMIT
        };
        let mut made = Producer::new_transaction_producer(option, connection(), Box::new(check))?;
        made.start().await?;
        let made = Arc::new(made);
        producers.insert(topic.to_string(), made.clone());
        Ok(made)
    }

    async fn send(&self, wanted: &Value) -> Answer {
        let sender = self.producer(text(wanted, "topic")).await?;
        let receipt = sender.send(message(wanted, false)?).await?;
        Ok(json!({"message_id": receipt.message_id()}))
    }

    async fn begin(&self, wanted: &Value) -> Answer {
        let sender = self.producer(text(wanted, "topic")).await?;
        let half = sender.send_transaction_message(message(wanted, true)?).await?;
        let id = half.message_id().to_string();
        let (resolve, mut resolved) = mpsc::channel::<Resolution>(1);
        self.halves.lock().insert(id.clone(), resolve);
        // The client names no type for a transaction, so a task of its own keeps this one.
        tokio::spawn(async move {
            if let Some((resolution, answer)) = resolved.recv().await {
                let ended = match resolution {
                    TransactionResolution::COMMIT => half.commit().await,
                    _ => half.rollback().await,
                };
                let _ = answer.send(ended.map_err(|error| error.to_string()));
            }
        });
        Ok(json!({"message_id": id}))
    }

    async fn end(&self, wanted: &Value, resolution: TransactionResolution) -> Answer {
        let half = self.halves.lock().remove(text(wanted, "message")).ok_or("no such transaction")?;
        let (answer, answered) = oneshot::channel();
        half.send((resolution, answer)).await?;
        answered.await??;
        Ok(Value::Null)
    }

    /// Sends numbered messages one after the other, each until it is acknowledged.
    async fn stream(self: Arc<Self>, mut wanted: Value) -> Answer {
        let stopped = || self.streams_stop.load(Ordering::Relaxed);
        for number in 0..wanted["count"].as_u64().unwrap_or_default() {
            let body = format!("{}{number}", text(&wanted, "prefix"));
            wanted["body"] = json!(body);
            while !stopped() {
                let started = Instant::now();
                match self.clone().attempt_send(wanted.clone()).await {
                    Ok(_) => {
                        say(json!({"sent": number, "body": body, "ms": started.elapsed().as_secs_f64() * 1000.0}));
                        break;
                    }
                    Err(error) => say(json!({"failed": number, "error": error.to_string()})),
                }
                tokio::time::sleep(RETRY_PAUSE).await;
            }
            if stopped() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(wanted["pause_ms"].as_u64().unwrap_or_default())).await;
        }
        Ok(Value::Null)
    }

    async fn simple(&self, wanted: &Value) -> Answer {
        let topic = text(wanted, "topic").to_string();
        let mut option = SimpleConsumerOption::default();
        option.set_consumer_group(text(wanted, "group"));
        option.set_topics(vec![topic.clone()]);
        let mut client = SimpleConsumer::new(option, connection())?;
        client.start().await?;
        let kind = if wanted["sql"] == json!(true) { FilterType::Sql } else { FilterType::Tag };
        let expression = FilterExpression::new(kind, wanted["expression"].as_str().unwrap_or("*"));
        let made = Consumer { client, topic, expression };
        self.consumers.lock().insert(text(wanted, "name").to_string(), Arc::new(made));
        Ok(Value::Null)
    }

    fn consumer(&self, wanted: &Value) -> Result<Arc<Consumer>, Failure> {
        let found = self.consumers.lock().get(text(wanted, "name")).cloned();
        Ok(found.ok_or("no such consumer")?)
    }

    async fn receive(&self, wanted: &Value) -> Answer {
        let made = self.consumer(wanted)?;
        let most = wanted["max"].as_u64().unwrap_or(DEFAULT_BATCH) as i32;
        let invisible = Duration::from_secs(wanted["invisible_s"].as_u64().unwrap_or(DEFAULT_INVISIBLE_S));
        let found = made.client.receive_with(&made.topic, &made.expression, most, invisible).await?;
        let mut all = Vec::new();
        for one in found {
            all.push(shown(&one));
            self.held.lock().insert(one.message_id().to_string(), Arc::new(one));
        }
        Ok(json!(all))
    }

    async fn ack(&self, wanted: &Value) -> Answer {
        let held = self.held.lock().get(text(wanted, "message")).cloned().ok_or("no such message")?;
        self.consumer(wanted)?.client.ack(&*held).await?;
        Ok(Value::Null)
    }
}

fn connection() -> ClientOption {
    let mut option = ClientOption::default();
    let addresses = env::args().nth(1).expect("addresses of proxies");
    option.set_access_url(addresses.replace(';', ","));
    option.set_enable_tls(env::var_os("DRIVER_TLS").is_some());
    option.set_long_polling_timeout(POLL);
    if let (Ok(account), Ok(secret)) = (env::var("DRIVER_ACCESS_KEY"), env::var("DRIVER_SECRET")) {
        option.set_access_key(account);
        option.set_secret_key(secret);
    }
    option
}

fn message(wanted: &Value, transaction: bool) -> Result<impl Message, Failure> {
    let mut made =
        MessageBuilder::builder().set_topic(text(wanted, "topic")).set_body(text(wanted, "body").as_bytes().to_vec());
    if let Some(tag) = wanted["tag"].as_str() {
        made = made.set_tag(tag);
    }
    if let Some(keys) = wanted["keys"].as_array() {
        made = made.set_keys(keys.iter().filter_map(Value::as_str).collect());
    }
    if let Some(group) = wanted["group"].as_str() {
        made = made.set_message_group(group);
    }
    if let Some(delay) = wanted["delay_s"].as_i64() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs() as i64;
        made = made.set_delivery_timestamp(now + delay);
    }
    if let Some(properties) = wanted["properties"].as_object() {
        let named = properties.iter().map(|(name, value)| (name.as_str(), value.as_str().unwrap_or_default()));
        made = made.set_properties(named.collect());
    }
    if transaction {
        made = made.enable_transaction();
    }
    Ok(made.build()?)
}

fn shown(message: &MessageView) -> Value {
    let mut keys = message.keys().to_vec();
    keys.sort();
    json!({
        "id": message.message_id(),
        "topic": message.topic(),
        "body": String::from_utf8_lossy(message.body()),
        "tag": message.tag(),
        "keys": keys,
        "group": message.message_group(),
        "properties": message.properties(),
        "attempt": message.delivery_attempt(),
        "corrupted": false,
    })
}
