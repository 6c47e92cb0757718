package lab

import (
	"errors"
	"testing"
	"time"
)

func TestClockCompare(t *testing.T) {
	start := time.Now()
	at := func(after, before time.Duration, uptime float64) clockReading {
		return clockReading{start.Add(after), start.Add(before), time.Duration(uptime * float64(time.Second))}
	}
	const ms = time.Millisecond
	first := at(0, 20*ms, 7)
	for _, tc := range []struct {
		what  string
		later clockReading
		right bool
	}{
		{"alike", at(1020*ms, 1030*ms, 8.02), true},
		{"somewhere in a slow answer", at(1020*ms, 3000*ms, 9.5), true},
		{"a little fast", at(2000*ms, 2010*ms, 9.09), true},
		{"six times too fast", at(1020*ms, 1030*ms, 13.35), false},
		{"a tenth too fast", at(2000*ms, 2010*ms, 9.25), false},
		{"a tenth too slow", at(2020*ms, 2030*ms, 8.8), false},
		{"standing still", at(1020*ms, 5000*ms, 7), false},
	} {
		err := first.compare(tc.later)
		if (err == nil) != tc.right || err != nil && !errors.As(err, new(*clockError)) {
			t.Errorf("%s: %v", tc.what, err)
		}
	}
}
