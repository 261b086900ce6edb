// Lets porcupine, a linearizability checker by others, judge the registers of a run:
//
//	go run . < RUN/history.jsonl
//
// It prints the number of operations and the verdict; the exit code is 1 if they are not linearizable.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"reflect"
	"strings"

	"github.com/anishathalye/porcupine"
)

// A line of the history; see dledger_chaos.history.Operation.
type operation struct {
	Workload, Process, F, Key, Outcome string
	Value                              any
	Extras                             map[string]any
	InvokeNs                           int64 `json:"invoke_ns"`
	CompleteNs                         int64 `json:"complete_ns"`
}

var register = porcupine.Model{
	Partition: func(history []porcupine.Operation) [][]porcupine.Operation {
		byKey := map[string][]porcupine.Operation{}
		for _, each := range history {
			key := each.Input.(operation).Key
			byKey[key] = append(byKey[key], each)
		}
		parts := [][]porcupine.Operation{}
		for _, part := range byKey {
			parts = append(parts, part)
		}
		return parts
	},
	Init: func() any { return nil },
	Step: func(state, input, _ any) (bool, any) {
		op := input.(operation)
		switch op.F {
		case "read":
			return reflect.DeepEqual(state, op.Value), state
		case "write":
			return true, op.Value
		default: // cas
			pair := op.Value.([]any)
			matches := reflect.DeepEqual(state, pair[0])
			if op.Outcome == "ok" && op.Extras["swapped"] != matches {
				return false, state
			}
			if matches {
				return true, pair[1]
			}
			return true, state
		}
	},
	Equal: func(a, b any) bool { return reflect.DeepEqual(a, b) },
}

func main() {
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<26)
	clients := map[string]int{}
	history := []porcupine.Operation{}
	for lines.Scan() {
		var op operation
		if err := json.Unmarshal(lines.Bytes(), &op); err != nil {
			panic(err)
		}
		seen := op.Outcome == "ok" || (op.Outcome == "info" && op.F != "read")
		if op.Workload != "registers" || strings.HasPrefix(op.Key, "log") || !seen {
			continue
		}
		if _, known := clients[op.Process]; !known {
			clients[op.Process] = len(clients)
		}
		end := op.CompleteNs
		if op.Outcome == "info" {
			end = math.MaxInt64 // may take effect at any later time
		}
		history = append(history, porcupine.Operation{
			ClientId: clients[op.Process], Input: op, Call: op.InvokeNs, Return: end,
		})
	}
	linearizable := porcupine.CheckOperations(register, history)
	fmt.Println(len(history), "operations, linearizable:", linearizable)
	if !linearizable {
		os.Exit(1)
	}
}
