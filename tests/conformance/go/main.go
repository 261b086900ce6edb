// Drives Apache RocketMQ's Go client; see ../stock_clients.py for the lines it reads and writes.
//
//	driver HOST:PORT      address of the name server
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const (
	retryPause   = 100 * time.Millisecond
	pullPatience = 20 * time.Second
)

type fields = map[string]any

type request struct {
	ID        int      `json:"id"`
	Call      string   `json:"call"`
	Topic     string   `json:"topic"`
	Body      string   `json:"body"`
	Bodies    []string `json:"bodies"`
	Tag       string   `json:"tag"`
	SQL       string   `json:"sql"`
	Keys      string   `json:"keys"`
	Shard     int      `json:"shard"`
	Prefix    string   `json:"prefix"`
	Count     int      `json:"count"`
	PauseMs   int      `json:"pause_ms"`
	Name      string   `json:"name"`
	Group     string   `json:"group"`
	Namespace string   `json:"namespace"`
	Broadcast bool     `json:"broadcast"`
	Orderly   bool     `json:"orderly"`
	Trace     bool     `json:"trace"`
	FromLast  bool     `json:"from_last"`
	Replies   string   `json:"replies"`
	TimeoutMs int      `json:"timeout_ms"`
	Level     int      `json:"level"`
	Retries   int      `json:"retries"`

	Properties map[string]string `json:"properties"`
	Fails      map[string]int    `json:"fails"`
}

var (
	nameServer  primitive.NamesrvAddr
	said        sync.Mutex
	streamsStop atomic.Bool
	consumers   sync.Map

	selectingMade sync.Mutex
	selectingOne  rocketmq.Producer
	withinMade    sync.Mutex
	withinOne     rocketmq.Producer
	ready         = sync.OnceValues(func() (rocketmq.Producer, error) { return startProducer("go-producers") })
	traced        = sync.OnceValues(func() (rocketmq.Producer, error) {
		return startProducer("go-tracers", producer.WithTrace(traces()), producer.WithInstanceName("tracers"))
	})
	// Sends bodies of any size uncompressed, so that the broker judges the size.
	whole = sync.OnceValues(func() (rocketmq.Producer, error) {
		return startProducer("go-whole", producer.WithCompressMsgBodyOverHowmuch(math.MaxInt),
			producer.WithSendMsgTimeout(30*time.Second), producer.WithInstanceName("whole"))
	})
)

func main() {
	rlog.SetLogLevel("error")
	rlog.SetOutputPath(os.DevNull)
	nameServer = primitive.NamesrvAddr{os.Args[1]}
	input := bufio.NewScanner(os.Stdin)
	input.Buffer(nil, 16<<20)
	for input.Scan() {
		var wanted request
		if err := json.Unmarshal(input.Bytes(), &wanted); err != nil {
			panic(err)
		}
		go answer(wanted)
	}
}

func answer(wanted request) {
	if result, err := call(wanted); err != nil {
		say(fields{"id": wanted.ID, "error": err.Error()})
	} else {
		say(fields{"id": wanted.ID, "result": result})
	}
}

func say(what fields) {
	line, err := json.Marshal(what)
	if err != nil {
		panic(err)
	}
	said.Lock()
	defer said.Unlock()
	fmt.Printf("%s\n", line)
}

func call(wanted request) (any, error) {
	background := context.Background()
	switch wanted.Call {
	case "stop_streams":
		streamsStop.Store(true)
		return nil, nil
	case "push":
		return nil, push(wanted)
	case "close_push":
		made, _ := consumers.LoadAndDelete(wanted.Name)
		return nil, made.(rocketmq.PushConsumer).Shutdown()
	case "transaction":
		return transaction(wanted)
	case "lite_pull":
		return litePull(wanted)
	case "send_within":
		sender, err := within(wanted.Namespace)
		if err != nil {
			return nil, err
		}
		return shown(sender.SendSync(background, message(wanted)))
	}
	begin := ready
	if wanted.Trace {
		begin = traced
	}
	if wanted.Call == "send_whole" {
		begin = whole
	}
	sender, err := begin()
	if err != nil {
		return nil, err
	}
	switch wanted.Call {
	case "request":
		reply, err := sender.Request(background, time.Duration(wanted.TimeoutMs)*time.Millisecond, message(wanted))
		if err != nil {
			return nil, err
		}
		return string(reply.Body), nil
	case "send", "send_whole":
		return shown(sender.SendSync(background, message(wanted)))
	case "send_async":
		answered := make(chan func() (any, error), 1)
		err = sender.SendAsync(background, func(_ context.Context, sent *primitive.SendResult, err error) {
			answered <- func() (any, error) { return shown(sent, err) }
		}, message(wanted))
		if err != nil {
			return nil, err
		}
		return (<-answered)()
	case "send_oneway":
		return nil, sender.SendOneWay(background, message(wanted))
	case "send_orderly":
		sharded := message(wanted).WithShardingKey(strconv.Itoa(wanted.Shard))
		return shown(sender.SendSync(background, sharded))
	case "send_batch":
		var batch []*primitive.Message
		for _, body := range wanted.Bodies {
			batch = append(batch, primitive.NewMessage(wanted.Topic, []byte(body)))
		}
		return shown(sender.SendSync(background, batch...))
	case "stream":
		if wanted.Retries > 0 {
			if sender, err = selecting(wanted.Retries); err != nil {
				return nil, err
			}
		}
		return stream(sender, wanted), nil
	}
	return nil, fmt.Errorf("no such call: %s", wanted.Call)
}

// Returns the producer of a namespace, started at first use.
func within(namespace string) (rocketmq.Producer, error) {
	withinMade.Lock()
	defer withinMade.Unlock()
	if withinOne != nil {
		return withinOne, nil
	}
	made, err := startProducer("go-within", producer.WithNamespace(namespace), producer.WithInstanceName(namespace))
	if err == nil {
		withinOne = made
	}
	return made, err
}

func traces() *primitive.TraceConfig {
	return &primitive.TraceConfig{Access: primitive.Local, NamesrvAddrs: nameServer}
}

// Returns the producer for streams that set their retries, with the default selector of producers.
func selecting(retries int) (rocketmq.Producer, error) {
	selectingMade.Lock()
	defer selectingMade.Unlock()
	if selectingOne != nil {
		return selectingOne, nil
	}
	made, err := rocketmq.NewProducer(
		producer.WithNameServer(nameServer),
		producer.WithGroupName("go-selecting"),
		producer.WithInstanceName("selecting"),
		producer.WithRetry(retries),
	)
	if err != nil {
		return nil, err
	}
	selectingOne = made
	return made, made.Start()
}

// signing returns the environment's account for signatures. An empty account signs nothing.
func signing() primitive.Credentials {
	return primitive.Credentials{AccessKey: os.Getenv("DRIVER_ACCESS_KEY"), SecretKey: os.Getenv("DRIVER_SECRET")}
}

func startProducer(group string, more ...producer.Option) (rocketmq.Producer, error) {
	options := append([]producer.Option{
		producer.WithCredentials(signing()),
		producer.WithNameServer(nameServer),
		producer.WithGroupName(group),
		producer.WithQueueSelector(producer.NewHashQueueSelector()),
	}, more...)
	made, err := rocketmq.NewProducer(options...)
	if err != nil {
		return nil, err
	}
	return made, made.Start()
}

func message(wanted request) *primitive.Message {
	made := primitive.NewMessage(wanted.Topic, []byte(wanted.Body))
	if wanted.Tag != "" {
		made.WithTag(wanted.Tag)
	}
	if wanted.Keys != "" {
		made.WithKeys([]string{wanted.Keys})
	}
	if wanted.Level != 0 {
		made.WithDelayTimeLevel(wanted.Level)
	}
	for name, value := range wanted.Properties {
		made.WithProperty(name, value)
	}
	return made
}

func shown(sent *primitive.SendResult, err error) (any, error) {
	if err != nil {
		return nil, err
	}
	return fields{
		"status":            map[bool]string{true: "SEND_OK", false: strconv.Itoa(int(sent.Status))}[sent.Status == primitive.SendOK],
		"message_id":        sent.MsgID,
		"offset_message_id": sent.OffsetMsgID,
		"broker_group":      sent.MessageQueue.BrokerName,
		"queue_id":          sent.MessageQueue.QueueId,
		"queue_offset":      sent.QueueOffset,
	}, nil
}

// Sends numbered messages one after the other, each until it is acknowledged.
func stream(sender rocketmq.Producer, wanted request) int {
	for number := 0; number < wanted.Count; number++ {
		body := wanted.Prefix + strconv.Itoa(number)
		for {
			started := time.Now()
			sent, err := sender.SendSync(context.Background(), primitive.NewMessage(wanted.Topic, []byte(body)))
			ms := float64(time.Since(started).Microseconds()) / 1000
			if err == nil {
				say(fields{"sent": number, "body": body, "broker_group": sent.MessageQueue.BrokerName, "ms": ms})
			} else {
				say(fields{"failed": number, "error": err.Error(), "ms": ms})
			}
			if streamsStop.Load() {
				return number + 1
			}
			if err == nil {
				break
			}
			time.Sleep(retryPause)
		}
		time.Sleep(time.Duration(wanted.PauseMs) * time.Millisecond)
	}
	return wanted.Count
}

var (
	transactionsMade sync.Mutex
	transactions     rocketmq.TransactionProducer
)

func transaction(wanted request) (any, error) {
	sender, err := readyForTransactions(wanted.Group)
	if err != nil {
		return nil, err
	}
	sent, err := sender.SendMessageInTransaction(context.Background(), message(wanted))
	if err != nil {
		return nil, err
	}
	return shown(sent.SendResult, nil)
}

func readyForTransactions(group string) (rocketmq.TransactionProducer, error) {
	transactionsMade.Lock()
	defer transactionsMade.Unlock()
	if transactions != nil {
		return transactions, nil
	}
	made, err := rocketmq.NewTransactionProducer(
		ends{},
		producer.WithNameServer(nameServer),
		producer.WithGroupName(group),
		producer.WithInstanceName(group), // if producers share an instance, only the first gets check-backs
	)
	if err == nil {
		err = made.Start()
	}
	if err == nil {
		transactions = made
	}
	return made, err
}

// Ends a transaction as its body says: commit, rollback, unknown-commit or unknown-rollback.
type ends struct{}

func (ends) ExecuteLocalTransaction(one *primitive.Message) primitive.LocalTransactionState {
	if strings.HasPrefix(string(one.Body), "unknown-") {
		return primitive.UnknowState
	}
	return outcome(one.Body)
}

func (ends) CheckLocalTransaction(one *primitive.MessageExt) primitive.LocalTransactionState {
	say(fields{"checked": string(one.Body)})
	return outcome(one.Body)
}

func outcome(body []byte) primitive.LocalTransactionState {
	if strings.Contains(string(body), "commit") {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

// Replies to a message with a prefix and the message's own text.
func reply(one *primitive.MessageExt, before string) error {
	sender, err := ready()
	if err != nil {
		return err
	}
	answer, err := consumer.CreateReplyMessage(one, nil)
	if err != nil {
		return err
	}
	answer.Body = append([]byte(before), one.Body...) // CreateReplyMessage takes a body for properties
	_, err = sender.SendSync(context.Background(), answer)
	return err
}

// Starts a push consumer that reports its messages, and fails for a body as often as `fails` says.
func push(wanted request) error {
	from := consumer.ConsumeFromFirstOffset
	if wanted.FromLast {
		from = consumer.ConsumeFromLastOffset
	}
	options := []consumer.Option{
		consumer.WithCredentials(signing()),
		consumer.WithNameServer(nameServer),
		consumer.WithGroupName(wanted.Group),
		consumer.WithInstance(wanted.Name),
		consumer.WithConsumeFromWhere(from),
	}
	if wanted.Namespace != "" {
		options = append(options, consumer.WithNamespace(wanted.Namespace))
	}
	if wanted.Broadcast {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	if wanted.Orderly {
		options = append(options, consumer.WithConsumerOrder(true))
	}
	if wanted.Trace {
		options = append(options, consumer.WithTrace(traces()))
	}
	made, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return err
	}
	var counting sync.Mutex
	left := wanted.Fails
	if left == nil {
		left = map[string]int{}
	}
	selector := consumer.MessageSelector{}
	if wanted.Tag != "" {
		selector = consumer.MessageSelector{Type: consumer.TAG, Expression: wanted.Tag}
	}
	if wanted.SQL != "" {
		selector = consumer.MessageSelector{Type: consumer.SQL92, Expression: wanted.SQL}
	}
	err = made.Subscribe(wanted.Topic, selector,
		func(_ context.Context, messages ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
			counting.Lock()
			defer counting.Unlock()
			result := consumer.ConsumeSuccess
			for _, one := range messages {
				say(fields{
					"received":     wanted.Name,
					"topic":        one.Topic,
					"body":         string(one.Body),
					"tag":          one.GetTags(),
					"keys":         one.GetKeys(),
					"queue_id":     one.Queue.QueueId,
					"queue_offset": one.QueueOffset,

					"reconsume_times": one.ReconsumeTimes,
				})
				if wanted.Replies != "" && reply(one, wanted.Replies) != nil {
					result = consumer.ConsumeRetryLater
				}
				left[string(one.Body)]--
				if left[string(one.Body)] >= 0 && wanted.Orderly {
					result = consumer.SuspendCurrentQueueAMoment
				} else if left[string(one.Body)] >= 0 {
					result = consumer.ConsumeRetryLater
				}
			}
			return result, nil
		})
	if err != nil {
		return err
	}
	consumers.Store(wanted.Name, made)
	return made.Start()
}

// Returns the bodies of the wanted number of messages, or of those that came in time, and commits them.
func litePull(wanted request) (any, error) {
	made, err := rocketmq.NewPullConsumer(
		consumer.WithCredentials(signing()),
		consumer.WithNameServer(nameServer),
		consumer.WithGroupName(wanted.Group),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	)
	if err == nil {
		err = made.Subscribe(wanted.Topic, consumer.MessageSelector{})
	}
	if err == nil {
		err = made.Start()
	}
	if err != nil {
		return nil, err
	}
	bodies := []string{}
	for deadline := time.Now().Add(pullPatience); len(bodies) < wanted.Count && time.Now().Before(deadline); {
		polled, err := made.Poll(context.Background(), time.Second)
		if consumer.IsNoNewMsgError(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, one := range polled.GetMsgList() {
			bodies = append(bodies, string(one.Body))
		}
		made.ACK(context.Background(), polled, consumer.ConsumeSuccess)
	}
	return bodies, made.Shutdown()
}
