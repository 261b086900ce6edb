// Drives RocketMQ 5's Go client; see ../stock_clients.py for the lines it reads and writes.
//
//	driver HOST:PORT[;HOST:PORT]      addresses of proxies
//
// The client cannot recall messages.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	mq "github.com/apache/rocketmq-clients/golang/v5"
	"github.com/apache/rocketmq-clients/golang/v5/credentials"
	v2 "github.com/apache/rocketmq-clients/golang/v5/protocol/v2"
)

const (
	retryPause    = 100 * time.Millisecond
	awaitDuration = 2 * time.Second
)

type fields = map[string]any

type request struct {
	ID         int               `json:"id"`
	Call       string            `json:"call"`
	Topic      string            `json:"topic"`
	Body       string            `json:"body"`
	Tag        string            `json:"tag"`
	Keys       []string          `json:"keys"`
	Group      string            `json:"group"`
	DelayS     int               `json:"delay_s"`
	Properties map[string]string `json:"properties"`
	Prefix     string            `json:"prefix"`
	Count      int               `json:"count"`
	PauseMs    int               `json:"pause_ms"`
	Name       string            `json:"name"`
	Message    string            `json:"message"`
	Seconds    int               `json:"seconds"`
	Max        int32             `json:"max"`
	InvisibleS int               `json:"invisible_s"`
	Expression string            `json:"expression"`
	SQL        bool              `json:"sql"`
	Fails      map[string]int    `json:"fails"`
}

var (
	said        sync.Mutex
	streamsStop atomic.Bool

	producersMade sync.Mutex
	producers     = map[string]mq.Producer{}
	halves        sync.Map
	held          sync.Map
	simples       sync.Map
	pushes        sync.Map
)

func main() {
	mq.EnableSsl = os.Getenv("DRIVER_TLS") != ""
	os.Setenv(mq.CLIENT_LOG_ROOT, ".")
	os.Setenv(mq.CLIENT_LOG_LEVEL, "warn")
	mq.ResetLogger()
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
	switch wanted.Call {
	case "send":
		return send(wanted)
	case "begin":
		return begin(wanted)
	case "commit":
		return nil, half(wanted).Commit()
	case "rollback":
		return nil, half(wanted).RollBack()
	case "stream":
		stream(wanted)
		return nil, nil
	case "stop_streams":
		streamsStop.Store(true)
		return nil, nil
	case "simple":
		return nil, simple(wanted)
	case "receive":
		return receive(wanted)
	case "ack":
		return nil, simpleOf(wanted).Ack(context.Background(), heldOf(wanted))
	case "hide":
		return nil, simpleOf(wanted).ChangeInvisibleDuration(heldOf(wanted), time.Duration(wanted.Seconds)*time.Second)
	case "push":
		return nil, push(wanted)
	case "stop":
		made, _ := pushes.LoadAndDelete(wanted.Name)
		return nil, made.(mq.PushConsumer).GracefulStop()
	}
	return nil, fmt.Errorf("no such call: %s", wanted.Call)
}

func configuration(group string) *mq.Config {
	account := &credentials.SessionCredentials{
		AccessKey: os.Getenv("DRIVER_ACCESS_KEY"), AccessSecret: os.Getenv("DRIVER_SECRET"),
	}
	return &mq.Config{Endpoint: os.Args[1], ConsumerGroup: group, Credentials: account}
}

func check(message *mq.MessageView) mq.TransactionResolution {
	say(fields{"checked": string(message.GetBody())})
	return mq.COMMIT
}

// Returns the producer of a topic, started at first use.
func producer(topic string) (mq.Producer, error) {
	producersMade.Lock()
	defer producersMade.Unlock()
	if made, ok := producers[topic]; ok {
		return made, nil
	}
	checker := mq.WithTransactionChecker(&mq.TransactionChecker{Check: check})
	made, err := mq.NewProducer(configuration(""), mq.WithTopics(topic), checker)
	if err != nil {
		return nil, err
	}
	if err = made.Start(); err != nil {
		return nil, err
	}
	producers[topic] = made
	return made, nil
}

func message(wanted request) *mq.Message {
	made := &mq.Message{Topic: wanted.Topic, Body: []byte(wanted.Body)}
	if wanted.Tag != "" {
		made.SetTag(wanted.Tag)
	}
	if len(wanted.Keys) > 0 {
		made.SetKeys(wanted.Keys...)
	}
	if wanted.Group != "" {
		made.SetMessageGroup(wanted.Group)
	}
	if wanted.DelayS > 0 {
		made.SetDelayTimestamp(time.Now().Add(time.Duration(wanted.DelayS) * time.Second))
	}
	for name, value := range wanted.Properties {
		made.AddProperty(name, value)
	}
	return made
}

func send(wanted request) (any, error) {
	sender, err := producer(wanted.Topic)
	if err != nil {
		return nil, err
	}
	receipts, err := sender.Send(context.Background(), message(wanted))
	if err != nil {
		return nil, err
	}
	return fields{"message_id": receipts[0].MessageID, "offset": receipts[0].Offset}, nil
}

func begin(wanted request) (any, error) {
	sender, err := producer(wanted.Topic)
	if err != nil {
		return nil, err
	}
	transaction := sender.BeginTransaction()
	receipts, err := sender.SendWithTransaction(context.Background(), message(wanted), transaction)
	if err != nil {
		return nil, err
	}
	halves.Store(receipts[0].MessageID, transaction)
	return fields{"message_id": receipts[0].MessageID}, nil
}

func half(wanted request) mq.Transaction {
	found, _ := halves.LoadAndDelete(wanted.Message)
	return found.(mq.Transaction)
}

// Sends numbered messages one after the other, each until it is acknowledged.
func stream(wanted request) {
	for number := 0; number < wanted.Count && !streamsStop.Load(); number++ {
		wanted.Body = wanted.Prefix + strconv.Itoa(number)
		for !streamsStop.Load() {
			started := time.Now()
			_, err := send(wanted)
			if err == nil {
				ms := float64(time.Since(started).Microseconds()) / 1000
				say(fields{"sent": number, "body": wanted.Body, "ms": ms})
				break
			}
			say(fields{"failed": number, "error": err.Error()})
			time.Sleep(retryPause)
		}
		time.Sleep(time.Duration(wanted.PauseMs) * time.Millisecond)
	}
}

func subscriptions(wanted request) map[string]*mq.FilterExpression {
	expression, kind := wanted.Expression, mq.TAG
	if expression == "" {
		expression = "*"
	}
	if wanted.SQL {
		kind = mq.SQL92
	}
	return map[string]*mq.FilterExpression{wanted.Topic: mq.NewFilterExpressionWithType(expression, kind)}
}

func simple(wanted request) error {
	made, err := mq.NewSimpleConsumer(configuration(wanted.Group),
		mq.WithSimpleAwaitDuration(awaitDuration), mq.WithSimpleSubscriptionExpressions(subscriptions(wanted)))
	if err != nil {
		return err
	}
	simples.Store(wanted.Name, made)
	return made.Start()
}

func simpleOf(wanted request) mq.SimpleConsumer {
	found, _ := simples.Load(wanted.Name)
	return found.(mq.SimpleConsumer)
}

func heldOf(wanted request) *mq.MessageView {
	found, _ := held.Load(wanted.Message)
	return found.(*mq.MessageView)
}

func receive(wanted request) (any, error) {
	most, invisible := wanted.Max, wanted.InvisibleS
	if most == 0 {
		most = 16
	}
	if invisible == 0 {
		invisible = 10
	}
	found, err := simpleOf(wanted).Receive(context.Background(), most, time.Duration(invisible)*time.Second)
	var status *mq.ErrRpcStatus
	if errors.As(err, &status) && v2.Code(status.Code) == v2.Code_MESSAGE_NOT_FOUND {
		return []fields{}, nil
	}
	if err != nil {
		return nil, err
	}
	all := []fields{}
	for _, one := range found {
		held.Store(one.GetMessageId(), one)
		all = append(all, shown(one))
	}
	return all, nil
}

func push(wanted request) error {
	var counted sync.Mutex
	listen := func(message *mq.MessageView) mq.ConsumerResult {
		what := shown(message)
		what["received"] = wanted.Name
		say(what)
		counted.Lock()
		defer counted.Unlock()
		wanted.Fails[string(message.GetBody())]--
		if wanted.Fails[string(message.GetBody())] >= 0 {
			return mq.FAILURE
		}
		return mq.SUCCESS
	}
	if wanted.Fails == nil {
		wanted.Fails = map[string]int{}
	}
	made, err := mq.NewPushConsumer(configuration(wanted.Group),
		mq.WithPushAwaitDuration(awaitDuration),
		mq.WithPushSubscriptionExpressions(subscriptions(wanted)),
		mq.WithPushMessageListener(&mq.FuncMessageListener{Consume: listen}))
	if err != nil {
		return err
	}
	pushes.Store(wanted.Name, made)
	return made.Start()
}

func shown(message *mq.MessageView) fields {
	keys := append([]string{}, message.GetKeys()...)
	sort.Strings(keys)
	properties := message.GetProperties()
	if properties == nil {
		properties = map[string]string{}
	}
	return fields{
		"id":         message.GetMessageId(),
		"topic":      message.GetTopic(),
		"body":       strings.Clone(string(message.GetBody())),
		"tag":        message.GetTag(),
		"keys":       keys,
		"group":      message.GetMessageGroup(),
		"properties": properties,
		"attempt":    message.GetDeliveryAttempt(),
		"corrupted":  false,
	}
}
