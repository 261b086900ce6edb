package main

import (
	"bytes"
	"context"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const replicas = 3
const prefetched = 5000
const heartbeat = 500 * time.Millisecond

type natsService struct{}

func newNats() service { return natsService{} }

func (natsService) dial() (*nats.Conn, jetstream.JetStream, error) {
	connection, err := nats.Connect("nats://" + strings.Join(addresses(), ",nats://"))
	if err != nil {
		return nil, nil, err
	}
	stream, err := jetstream.New(connection)
	return connection, stream, err
}

func (service natsService) makeTopic() error {
	connection, stream, err := service.dial()
	if err != nil {
		return err
	}
	defer connection.Close()
	limit, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = stream.CreateOrUpdateStream(limit, jetstream.StreamConfig{
		Name: options.topic, Subjects: []string{options.topic}, Replicas: replicas, Storage: jetstream.FileStorage,
		AllowAtomicPublish: true,
	})
	return err
}

// natsSender publishes with a reply subject of its own for each slot: the library's futures cost twice the processor time.
type natsSender struct {
	connection *nats.Conn
	inbox      string
	id         string
	batches    int
}

// sender connects to the node that leads the stream, as the consumer's and other services' generators do.
func (service natsService) sender(index int, answered func(slot int, err error)) (sender, error) {
	connection, err := service.dialLeader()
	if err != nil {
		return nil, err
	}
	one := &natsSender{connection: connection, inbox: nats.NewInbox(), id: nats.NewInbox()[7:]}
	_, err = connection.Subscribe(one.inbox+".*", func(answer *nats.Msg) {
		slot, err := strconv.Atoi(answer.Subject[len(one.inbox)+1:])
		if err == nil && (!bytes.HasPrefix(answer.Data, []byte(`{"stream":`)) || bytes.Contains(answer.Data, []byte(`"error"`))) {
			err = fmt.Errorf("%s%s", answer.Header.Get("Status"), answer.Data)
		}
		answered(slot, err)
	})
	return one, err
}

func (service natsService) dialLeader() (*nats.Conn, error) {
	connection, stream, err := service.dial()
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	info, err := stream.Stream(context.Background(), options.topic)
	if err != nil {
		return nil, err
	}
	number, err := strconv.Atoi(strings.TrimPrefix(info.CachedInfo().Cluster.Leader, "n"))
	if err != nil || number >= len(addresses()) {
		return nil, fmt.Errorf("the stream has no leader among n0 … n%d", len(addresses())-1)
	}
	return nats.Connect("nats://" + addresses()[number])
}

func (one *natsSender) send(slot int, body []byte) {
	reply := one.inbox + "." + strconv.Itoa(slot)
	if options.batch == 1 {
		if err := one.connection.PublishRequest(options.topic, reply, body); err != nil {
			fail(1, err)
		}
		return
	}
	one.batches++
	batch := one.id + strconv.Itoa(one.batches)
	for number := 1; number <= options.batch; number++ {
		message := nats.NewMsg(options.topic)
		message.Data = body
		message.Header["Nats-Batch-Id"] = []string{batch}
		message.Header["Nats-Batch-Sequence"] = []string{strconv.Itoa(number)}
		if number == options.batch {
			message.Header["Nats-Batch-Commit"] = []string{"1"}
			message.Reply = reply
		}
		if err := one.connection.PublishMsg(message); err != nil {
			fail(1, err)
		}
	}
}

func (service natsService) read(fromStart bool, received func(body []byte)) (func(), error) {
	connection, err := service.dialLeader()
	if err != nil {
		return nil, err
	}
	stream, err := jetstream.New(connection)
	if err != nil {
		return nil, err
	}
	policy := jetstream.DeliverNewPolicy
	if fromStart {
		policy = jetstream.DeliverAllPolicy
	}
	consumer, err := stream.CreateConsumer(context.Background(), options.topic, jetstream.ConsumerConfig{
		AckPolicy: jetstream.AckNonePolicy, DeliverPolicy: policy, MemoryStorage: true, Replicas: 1,
	})
	if err != nil {
		return nil, err
	}
	// The consumer may be on any node. A pull is lost if it comes before this connection's node knows the consumer's
	// subject. With the usual heartbeats it would be repeated only after the measurement.
	running, err := consumer.Consume(func(message jetstream.Msg) { received(message.Data()) },
		jetstream.PullMaxMessages(prefetched), jetstream.PullExpiry(time.Second), jetstream.PullHeartbeat(heartbeat))
	if err != nil {
		return nil, err
	}
	return func() { running.Stop(); connection.Close() }, nil
}
