// Drives Apache RocketMQ's Go client; see ../stock_clients.py for the lines it reads and writes.
//
//	driver HOST:PORT      address of the name server
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
	"github.com/apache/rocketmq-client-go/v2/rlog"
)

const retryPause = 100 * time.Millisecond

type fields = map[string]any

type request struct {
	ID         int      `json:"id"`
	Call       string   `json:"call"`
	Topic      string   `json:"topic"`
	Body       string   `json:"body"`
	Bodies     []string `json:"bodies"`
	Tag        string   `json:"tag"`
	SQL        string   `json:"sql"`
	Keys       string   `json:"keys"`
	Shard      int      `json:"shard"`
	Prefix     string   `json:"prefix"`
	Count      int      `json:"count"`
	PauseMs    int      `json:"pause_ms"`
	Name       string   `json:"name"`
	Group      string   `json:"group"`
	Broadcast  bool     `json:"broadcast"`
	FailsFirst string   `json:"fails_first"`
}

var (
	nameServer  primitive.NamesrvAddr
	said        sync.Mutex
	streamsStop atomic.Bool
	consumers   sync.Map
	failsFirst  sync.Map
	ready       = sync.OnceValues(startProducer)
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
	}
	sender, err := ready()
	if err != nil {
		return nil, err
	}
	switch wanted.Call {
	case "send":
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
		return stream(sender, wanted), nil
	}
	return nil, fmt.Errorf("no such call: %s", wanted.Call)
}

func startProducer() (rocketmq.Producer, error) {
	made, err := rocketmq.NewProducer(
		producer.WithNameServer(nameServer),
		producer.WithGroupName("go-producers"),
		producer.WithQueueSelector(producer.NewHashQueueSelector()),
	)
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

// Numbered messages one after the other, each until it is acknowledged.
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

// A push consumer that says what it receives; it fails for the body `fails_first` once.
func push(wanted request) error {
	options := []consumer.Option{
		consumer.WithNameServer(nameServer),
		consumer.WithGroupName(wanted.Group),
		consumer.WithInstance(wanted.Name),
		consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}
	if wanted.Broadcast {
		options = append(options, consumer.WithConsumerModel(consumer.BroadCasting))
	}
	made, err := rocketmq.NewPushConsumer(options...)
	if err != nil {
		return err
	}
	if wanted.FailsFirst != "" {
		failsFirst.Store(wanted.Name+"/"+wanted.FailsFirst, true)
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
			for _, one := range messages {
				say(fields{
					"received":     wanted.Name,
					"topic":        one.Topic,
					"body":         string(one.Body),
					"tag":          one.GetTags(),
					"keys":         one.GetKeys(),
					"queue_id":     one.Queue.QueueId,
					"queue_offset": one.QueueOffset,
				})
			}
			if _, fails := failsFirst.LoadAndDelete(wanted.Name + "/" + string(messages[0].Body)); fails {
				return consumer.ConsumeRetryLater, nil
			}
			return consumer.ConsumeSuccess, nil
		})
	if err != nil {
		return err
	}
	consumers.Store(wanted.Name, made)
	return made.Start()
}
