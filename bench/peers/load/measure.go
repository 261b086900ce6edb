package main

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"os"
	"sync"
	"syscall"
	"time"
)

// Number of buckets for a power of two: each is at most 1/64 wide.
const subBucketBits = 6
const subBuckets = 1 << subBucketBits

// measurement collects the answers between begin and end.
type measurement struct {
	mutex     sync.Mutex
	measuring bool
	begun     time.Time
	cpuBefore float64
	requests  int64
	messages  int64
	total     int64 // acknowledged since the start, warm-up included
	longest   time.Duration
	histogram [(64 - subBucketBits + 1) * subBuckets]int64
	errors    map[string]int64
}

func newMeasurement() *measurement { return &measurement{errors: map[string]int64{}} }

func bucketOf(ns uint64) int {
	if ns < subBuckets {
		return int(ns)
	}
	exponent := 63 - bits.LeadingZeros64(ns) - subBucketBits
	return (exponent+1)<<subBucketBits + int(ns>>exponent&(subBuckets-1))
}

func bucketTop(bucket int) float64 {
	if bucket < subBuckets {
		return float64(bucket)
	}
	exponent := bucket>>subBucketBits - 1
	return float64(uint64(subBuckets+bucket&(subBuckets-1))<<exponent + 1<<exponent - 1)
}

// add counts one success and returns the number of messages since the start.
func (m *measurement) add(messages int64, took time.Duration) int64 {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.total += messages
	if m.measuring {
		m.requests++
		m.messages += messages
		m.histogram[bucketOf(uint64(max(took, 0)))]++
		m.longest = max(m.longest, took)
	}
	return m.total
}

func (m *measurement) fault(err error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.errors[fmt.Sprintf("%.60s", err)]++
}

func (m *measurement) begin() {
	m.mutex.Lock()
	m.measuring, m.begun, m.cpuBefore = true, time.Now(), cpuSeconds()
	m.mutex.Unlock()
	announce("start")
}

// end stops counting, prints the result and returns the exit status.
func (m *measurement) end() int {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.measuring = false
	took, cpu := time.Since(m.begun).Seconds(), cpuSeconds()-m.cpuBefore
	announce("end")
	result, err := json.Marshal(map[string]any{
		"seconds": took, "requests": m.requests, "messages": m.messages, "messages_per_s": float64(m.messages) / took,
		"acknowledged_total": m.total, "received_mb_per_s": 0, "sent_mb_per_s": 0, "p50_us": m.quantile(0.5),
		"p99_us": m.quantile(0.99), "p999_us": m.quantile(0.999), "max_us": float64(m.longest) / 1e3,
		"generator_cpu_s": cpu, "errors": m.errors,
	})
	if err != nil {
		fail(1, err)
	}
	fmt.Println(string(result))
	if m.messages == 0 {
		return 3
	}
	return 0
}

func (m *measurement) quantile(q float64) float64 {
	rank, seen := int64(q*float64(m.requests)), int64(0)
	for bucket, count := range m.histogram {
		if seen += count; seen > rank {
			return min(bucketTop(bucket), float64(m.longest)) / 1e3
		}
	}
	return float64(m.longest) / 1e3
}

func announce(event string) { fmt.Fprintf(os.Stdout, "{\"event\":%q}\n", event) }

func cpuSeconds() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		fail(1, err)
	}
	return float64(usage.Utime.Nano()+usage.Stime.Nano()) / 1e9
}
