// Load generator for services other than ours: NATS and Kafka, each through its own client library.
//
// It is the twin of ../../gen.c, which uses RocketMQ's protocol: a closed loop that keeps a fixed number of requests in
// flight on each connection, with the same options and the same output.
//
//	prepare  creates the topic, and waits until a message to it is acknowledged
//	send     --connections × --window requests in flight
//	pull     one consumer reads the topic from its start, again and again until the time is over
//	latency  --rate messages a second; measures the time from when a send was due to the message's receipt
//
// Standard output: {"event":"start"} at the end of the warm-up, {"event":"end"} at the end of the measured time, then one
// JSON object. With --messages n a send stops after n acknowledged messages. Exit status: 0 measured, 1 the service failed,
// 2 bad arguments, 3 nothing was answered in time.
package main

import (
	"flag"
	"fmt"
	"math/rand"
	"os"
	"strings"
	"time"
)

var options struct {
	service, mode, addresses, topic string
	connections, window, batch      int
	bodyBytes, partitions, rate     int
	messages                        int64
	seconds, warmup, patience       float64
}

// service is the interface of a peer. Calls of answered and received come one at a time for each connection.
type service interface {
	makeTopic() error
	sender(index int, answered func(slot int, err error)) (sender, error)
	read(fromStart bool, received func(body []byte)) (stop func(), err error)
}

// sender is one connection. A request of a slot carries --batch messages with the same body.
type sender interface {
	send(slot int, body []byte)
}

func fail(status int, err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(status)
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func addresses() []string { return strings.Split(options.addresses, ",") }

func randomBody() []byte {
	body := make([]byte, options.bodyBytes)
	for i := range body {
		body[i] = byte(' ' + rand.Intn(95))
	}
	return body
}

func parseOptions() {
	flag.StringVar(&options.service, "service", "", "nats or kafka")
	flag.StringVar(&options.mode, "mode", "send", "prepare, send, pull or latency")
	flag.StringVar(&options.addresses, "addresses", "", "HOST:PORT,…")
	flag.StringVar(&options.topic, "topic", "bench", "")
	flag.IntVar(&options.connections, "connections", 1, "")
	flag.IntVar(&options.window, "window", 64, "requests in flight on each connection")
	flag.IntVar(&options.batch, "batch", 1, "messages of a request")
	flag.IntVar(&options.bodyBytes, "body", 1024, "")
	flag.IntVar(&options.partitions, "partitions", 4, "of a topic, where the service has them")
	flag.IntVar(&options.rate, "rate", 1000, "latency: messages a second")
	flag.Int64Var(&options.messages, "messages", 0, "send: stop after so many")
	flag.Float64Var(&options.seconds, "seconds", 5, "")
	flag.Float64Var(&options.warmup, "warmup", 1, "")
	flag.Float64Var(&options.patience, "patience", 60, "prepare: how long the service may take")
	flag.Parse()
	if options.connections < 1 || options.window < 1 || options.batch < 1 || options.bodyBytes < 8 || options.rate < 1 {
		fail(2, fmt.Errorf("--connections, --window, --batch and --rate are at least 1, --body is at least 8"))
	}
}

func main() {
	parseOptions()
	peer, known := map[string]func() service{"nats": newNats, "kafka": newKafka}[options.service]
	if !known {
		fail(2, fmt.Errorf("--service must be nats or kafka"))
	}
	modes := map[string]func(service) int{"prepare": prepare, "send": send, "pull": pull, "latency": latency}
	mode, known := modes[options.mode]
	if !known {
		fail(2, fmt.Errorf("--mode must be prepare, send, pull or latency"))
	}
	os.Exit(mode(peer()))
}
