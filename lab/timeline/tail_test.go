package timeline

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// at makes an event; a vector of -1 is none.
func at(ms int, kind, text string, vector int, fields ...any) Event {
	e := Event{T: Time(time.Duration(ms) * time.Millisecond), Source: source(kind), Kind: kind, Text: text}
	if vector >= 0 {
		e.Vector = &vector
	}
	for i := 0; i < len(fields); i += 2 {
		if e.Fields == nil {
			e.Fields = map[string]json.Number{}
		}
		e.Fields[fields[i].(string)] = json.Number(fmt.Sprint(fields[i+1]))
	}
	return e
}

// asked is a request that was answered at once, with its completion's interrupt.
func asked(ms, message int, name string) []Event {
	return []Event{
		at(
			ms,
			kindRequest,
			name+" eq=0x1",
			-1,
			"message",
			message,
		), at(ms, kindResponse, name+" ok", -1, "message", message, "status", 0),
		at(ms, kindEQE, "completion", 0), at(ms, kindFire, "", 0, "delivered", 1),
	}
}

func TestTail(t *testing.T) {
	for name, tc := range map[string]struct {
		events  [][]Event
		until   int // ms
		rows    int
		want    []string
		awaited []string
	}{
		"a request that is not answered": {
			[][]Event{{at(1, kindStep, "probe", -1, "number", 1)}, asked(2, 1, "QUERY_MAX_RESOURCES"), {
				at(3, kindInject, "late: hold request:QUERY_DEV_CONFIG (occurrence 1)", -1), at(3, kindRequest, "QUERY_DEV_CONFIG a=1", -1, "message", 2), at(4, "doorbell-eq", "", -1, "id", 3)}},
			9000, 12,
			[]string{"step probe, under way", "device request QUERY_MAX_RESOURCES: ok", "inject late: hold request:QUERY_DEV_CONFIG (occurrence 1)", "device request QUERY_DEV_CONFIG"},
			[]string{"the end of “probe”, since 0.001000", "the device's answer to request QUERY_DEV_CONFIG, since 0.003000"},
		},
		"refused by the device": {
			[][]Event{{at(1, kindRequest, "CREATE_WQ_OBJ x=1", -1, "message", 7), at(2, kindResponse, "CREATE_WQ_OBJ failed", -1, "message", 7, "status", 4660)},
				{at(3, kindSMC, "establish", -1), at(4, kindSMCAnswer, "", -1, "status", 0)}},
			10, 12, []string{"device request CREATE_WQ_OBJ: status 0x1234", "device SMC establish: ok"}, nil,
		},
		"what repeats is one row, but for the last requests": {
			[][]Event{asked(1, 1, "A"), asked(2, 1, "B"), asked(3, 1, "A"), asked(4, 1, "C"), asked(5, 1, "D"), asked(6, 1, "E"),
				{at(7, kindAssign, "", 1), at(7, kindAssign, "", 2), at(8, kindFire, "", 1, "delivered", 1), at(9, kindFire, "", 0, "delivered", 1)}},
			10, 12,
			[]string{"device requests A (2), B: ok, until 0.003000", "device request C: ok", "device request D: ok", "device request E: ok", "vector vector 1-2 enabled", "vector vector 0-1 fired, 2 times until 0.009000"}, nil,
		},
		"not what came later": {
			[][]Event{asked(1, 1, "A"), {at(5, kindStep, "unload", -1)}}, 4, 12, []string{"device request A: ok"}, nil,
		},
		"a step that was not done": {
			[][]Event{{at(1, kindStep, "offline 3", -1, "number", 1), at(1, kindStep, "taking CPU 3 offline", -1, "number", 0), at(5, kindStepEnd, "0 refused: busy", -1, "number", 1)}}, 9, 12,
			[]string{"step 0 offline 3, 4ms", "step 0 refused: busy"}, nil,
		},
		"stages of a case without steps": {
			[][]Event{{at(1, kindStep, "loading mana", -1, "number", 0), at(5, kindStep, "settling", -1, "number", 0)}}, 9, 12,
			[]string{"step loading mana", "step settling"}, []string{"the end of “settling”, since 0.005000"},
		},
		"the stages before the steps are over": {
			[][]Event{{at(1, kindStep, "starting", -1, "number", 0), at(5, kindStep, "probe", -1, "number", 1)}}, 9, 12,
			[]string{"step starting", "step probe, under way"}, []string{"the end of “probe”, since 0.005000"},
		},
		"bounded, and the lab has its share": {
			[][]Event{{at(1, kindStep, "one", -1), at(2, kindStep, "two", -1), at(3, kindStep, "three", -1), at(4, kindStep, "four", -1)},
				{at(5, "gdma-state", "e1", -1), at(6, "gdma-state", "e2", -1), at(7, "gdma-state", "e3", -1), at(8, "gdma-state", "e4", -1), at(9, "gdma-state", "e5", -1)}},
			10, 5, []string{"step two", "step three", "step four", "device gdma-state  e4", "device gdma-state  e5"}, []string{"the end of “four”, since 0.004000"},
		},
		"the guest's log is not of it": {
			[][]Event{{at(1, KindLog, "words", -1)}}, 9, 12, nil, nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			tl := &Timeline{}
			for _, lot := range tc.events {
				tl.Events = append(tl.Events, lot...)
			}
			for i := range tl.Events {
				if tl.Events[i].Kind == KindLog {
					tl.Events[i].Source = SourceLog
				}
			}
			until := Time(time.Duration(tc.until) * time.Millisecond)
			lengths(tl.Events, until)
			tail := tl.Tail(until, tc.rows)
			var got []string
			for _, r := range tail.Rows {
				got = append(got, r.Source+" "+r.What)
			}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Errorf("-want +got:\n%s", d)
			}
			if d := cmp.Diff(tc.awaited, tail.Awaited); d != "" {
				t.Errorf("awaited, -want +got:\n%s", d)
			}
		})
	}
}

// TestTailIsForATerminal: what a guest or a device put into an event does not steer it.
func TestTailIsForATerminal(t *testing.T) {
	tl := &Timeline{
		Events: []Event{
			at(1, kindStep, "a\x1b[2J", -1, "number", 1),
			at(2, "gdma-state", "b\x1b[2J", -1),
			at(3, kindRequest, "c\x1b[2J", -1, "message", 1),
		},
	}
	tail := tl.Tail(maxTime, 9)
	if got := fmt.Sprintf("%v %v", tail.Rows, tail.Awaited); strings.ContainsRune(got, '\x1b') || len(tail.Rows) != 3 ||
		len(tail.Awaited) != 2 {
		t.Errorf("%q", got)
	}
}
