package main

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const retryAfter = 5 * time.Millisecond

// prepare creates the topic and sends to it until one message is acknowledged.
func prepare(peer service) int {
	deadline := time.Now().Add(seconds(options.patience))
	var err error
	for time.Now().Before(deadline) {
		if err = peer.makeTopic(); err == nil {
			answers := make(chan error, 1)
			var one sender
			if one, err = peer.sender(0, func(_ int, err error) { answers <- err }); err == nil {
				one.send(0, randomBody())
				select {
				case err = <-answers:
				case <-time.After(time.Second):
					err = fmt.Errorf("no answer within a second")
				}
				if err == nil {
					return 0
				}
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
	fail(1, fmt.Errorf("the service takes no message within %g s: %w", options.patience, err))
	return 1
}

func send(peer service) int {
	measured, body := newMeasurement(), randomBody()
	complete := make(chan struct{})
	var once sync.Once
	senders := make([]sender, options.connections)
	for index := range senders {
		sentAt := make([]time.Time, options.window)
		var one sender
		again := func(slot int) {
			sentAt[slot] = time.Now()
			one.send(slot, body)
		}
		one = connect(peer, index, func(slot int, err error) {
			if err != nil {
				measured.fault(err)
				time.AfterFunc(retryAfter, func() { again(slot) })
				return
			}
			total := measured.add(int64(options.batch), time.Since(sentAt[slot]))
			if options.messages > 0 && total >= options.messages {
				once.Do(func() { close(complete) })
				return
			}
			again(slot)
		})
		for slot := range options.window {
			sentAt[slot] = time.Now()
		}
		senders[index] = one
	}
	for _, one := range senders {
		for slot := range options.window {
			one.send(slot, body)
		}
	}
	if options.messages == 0 {
		time.Sleep(seconds(options.warmup))
	}
	measured.begin()
	select {
	case <-complete:
	case <-time.After(seconds(options.seconds)):
		if options.messages > 0 {
			fail(3, fmt.Errorf("not all of %d messages were acknowledged within %g s", options.messages, options.seconds))
		}
	}
	return measured.end()
}

func connect(peer service, index int, answered func(slot int, err error)) sender {
	one, err := peer.sender(index, answered)
	if err != nil {
		fail(1, err)
	}
	return one
}

// pull reads --messages messages from the topic's start, then again with another consumer, until the time is over.
func pull(peer service) int {
	measured := newMeasurement()
	go func() {
		for {
			var received atomic.Int64
			complete := make(chan struct{})
			stop, err := peer.read(true, func([]byte) {
				measured.add(1, 0)
				if received.Add(1) == options.messages {
					close(complete)
				}
			})
			if err != nil {
				fail(1, err)
			}
			<-complete
			stop()
		}
	}()
	time.Sleep(seconds(options.warmup))
	measured.begin()
	time.Sleep(seconds(options.seconds))
	return measured.end()
}

// latency sends at a fixed rate and does not wait: the time of a message that leaves late counts from when it was due.
func latency(peer service) int {
	measured, base := newMeasurement(), time.Now()
	_, err := peer.read(false, func(body []byte) {
		due := time.Duration(binary.LittleEndian.Uint64(body))
		measured.add(1, time.Since(base)-due)
	})
	if err != nil {
		fail(1, err)
	}
	one := connect(peer, 0, func(_ int, err error) {
		if err != nil {
			measured.fault(err)
		}
	})
	due, interval := time.Since(base), time.Second/time.Duration(options.rate)
	begins := due + seconds(options.warmup)
	ends := begins + seconds(options.seconds)
	for begun := false; due < ends; due += interval {
		if wait := due - time.Since(base); wait > 0 {
			time.Sleep(wait)
		}
		if !begun && due >= begins {
			begun = true
			measured.begin()
		}
		body := randomBody()
		binary.LittleEndian.PutUint64(body, uint64(due))
		one.send(0, body)
	}
	return measured.end()
}
