package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

type kafkaService struct{}

func newKafka() service { return kafkaService{} }

func dialKafka(more ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(addresses()...)}, more...)...)
}

func (kafkaService) makeTopic() error {
	client, err := dialKafka()
	if err != nil {
		return err
	}
	defer client.Close()
	limit, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = options.topic, int32(options.partitions), replicas
	request := kmsg.NewPtrCreateTopicsRequest()
	request.Topics = append(request.Topics, topic)
	answer, err := request.RequestWith(limit, client)
	if err != nil {
		return err
	}
	err = kerr.ErrorForCode(answer.Topics[0].ErrorCode)
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return nil
	}
	return err
}

type kafkaSender struct {
	client    *kgo.Client
	partition int32
	answered  func(slot int, err error)
}

// sender lets the client gather sends in flight into requests, as for an application that does not wait.
func (kafkaService) sender(index int, answered func(slot int, err error)) (sender, error) {
	if options.batch != 1 {
		return nil, fmt.Errorf("--batch: Kafka's client makes its requests itself")
	}
	client, err := dialKafka(
		kgo.DefaultProduceTopic(options.topic), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RequiredAcks(kgo.AllISRAcks()), kgo.ProducerLinger(0), kgo.ProducerBatchCompression(kgo.NoCompression()),
	)
	return &kafkaSender{client, int32(index % options.partitions), answered}, err
}

func (one *kafkaSender) send(slot int, body []byte) {
	one.client.Produce(context.Background(), &kgo.Record{Value: body, Partition: one.partition},
		func(_ *kgo.Record, err error) { one.answered(slot, err) })
}

func (kafkaService) read(fromStart bool, received func(body []byte)) (func(), error) {
	offset := kgo.NewOffset().AtEnd()
	if fromStart {
		offset = kgo.NewOffset().AtStart()
	}
	from := map[int32]kgo.Offset{}
	for partition := range int32(options.partitions) {
		from[partition] = offset
	}
	client, err := dialKafka(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{options.topic: from}))
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			fetches := client.PollFetches(context.Background())
			if fetches.IsClientClosed() {
				return
			}
			if err := fetches.Err(); err != nil {
				fail(1, err)
			}
			fetches.EachRecord(func(record *kgo.Record) { received(record.Value) })
		}
	}()
	if !fromStart {
		time.Sleep(time.Second) // until the ends of all partitions have been looked up
	}
	return client.Close, nil
}
