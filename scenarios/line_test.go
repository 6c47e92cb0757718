package scenarios

import (
	"strings"
	"testing"
)

func TestParseStep(t *testing.T) {
	for line, want := range map[string]string{
		"offline 2-3":                   "offline 2-3",
		"offline: 2-3":                  "offline 2-3",
		" settle ":                      "settle",
		"hold vector:2":                 "hold at vector:2 as vector-2",
		"hold event:any":                "hold at event:any as event-any",
		"hold request:QUERY_DEV_CONFIG": "hold at request:QUERY_DEV_CONFIG as query-dev-config",
		"hold request:QUERY_DEV_CONFIG nth=2 as=window": "hold at request:QUERY_DEV_CONFIG, occurrence 2 as window",
		"hold nth=2 at=request:QUERY_DEV_CONFIG":        "hold at request:QUERY_DEV_CONFIG, occurrence 2 as query-dev-config",
		"hold {at: vector:3, as: third}":                "hold at vector:3 as third",
		"delay for=200ms response:CREATE_QUEUE":         "delay at response:CREATE_QUEUE for 200ms as delay response:CREATE_QUEUE",
		"wait-for held=window":                          "wait for held window",
		"wait-for {log: 'IRQ indices', within: 5s}":     `wait for log "IRQ indices"`,
		"storm offline=2-3 rounds=5":                    "storm on CPUs 2-3, 5 rounds",
		"fire":                                          "fire vectors all",
		"fire rounds=3":                                 "fire vectors all, 3 rounds",
		"post channel-timeout=5000":                     "post channel-timeout=5000",
		"probe {wait: false}":                           "probe, without waiting",
		"reset-service":                                 "reset-service",
	} {
		s, err := ParseStep(line)
		if err != nil || s.String() != want {
			t.Errorf("%q: %q, %v; want %q", line, s, err, want)
		}
	}
	for line, want := range map[string]string{
		"":                        `unknown verb ""`,
		"offlien 2":               "offline",
		"offline":                 "offline: LIST",
		"offline x":               "offline: LIST",
		"settle now":              "takes no argument",
		"hold request:QUERY_DEV":  "request:QUERY_DEV_CONFIG",
		"hold register-read":      "hold is not possible",
		"hold":                    "needs an argument",
		"hold vector:1 as=a\n- x": "hold",
		"sleep {":                 "sleep",
	} {
		if s, err := ParseStep(line); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v; want an error with %q", line, s, err, want)
		}
	}
}

// A caller says which verb the error is about, so the error does not, and how the verb is written is said once.
func TestParseStepSaysItOnce(t *testing.T) {
	const form = "hold: {at: STEP, nth: N, as: NAME}"
	for line, want := range map[string]string{
		"hold":                   "needs an argument: " + form,
		"hold vector:1 nth=0":    `"0" is no count; allowed: 1 to 1000000 (` + form + ")",
		"hold requst:FENCE_RQ":   `step "requst:FENCE_RQ": no such step: see ` + "`irqlab list steps`; did you mean \"request:FENCE_RQ\"?",
		"hold register-read@0x8": "hold is not possible at register-read@0x8: ",
		"settle now":             "takes no argument; write it as a plain word (settle)",
	} {
		if _, err := ParseStep(line); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v; want %s", line, err, want)
		}
	}
}

func FuzzParseStep(f *testing.F) {
	for _, s := range []string{"offline 2-3", "hold request:any as=x", "together [[up], [down]]", "expect {queues: [0]}", "alter {at: register-read, offset: 8, size: 8, value: 1}", "wait-for {step: vector:1"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		if s, err := ParseStep(line); err == nil && s.Verb == "" {
			t.Errorf("%q is a step without a verb", line)
		}
	})
}
