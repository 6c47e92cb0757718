package truth

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"irqlab/guestagent/cpulist"
)

// Facts are what is known of a case before anybody judged it.
type Facts struct {
	Observations []Observation
	Storms       []Storm
	Log          []string // of the kernel: the console's lines, and those of the guest's own log
	Trace        []Event
}

// Observation is one reading of every vector.
type Observation struct {
	Label   string       `json:"label"`
	Online  cpulist.List `json:"online"`
	Vectors []Vector     `json:"vectors"`
}

// Vector is what was asked for a vector and what the kernel says of it.
type Vector struct {
	Index     int            `json:"index"`
	Role      string         `json:"role"`
	IRQ       int            `json:"irq"`
	Asked     cpulist.List   `json:"asked"`
	Requested cpulist.List   `json:"affinity"`
	Hint      cpulist.List   `json:"hint"`
	Effective cpulist.List   `json:"effective"`
	Counts    map[int]uint64 `json:"counts"`
}

// Storm is what was fired and handled in a storm.
type Storm struct {
	Rounds  int `json:"rounds"`
	Vectors []struct {
		Index   int    `json:"index"`
		Fired   uint64 `json:"fired"`
		Handled uint64 `json:"handled"`
		Own     uint64 `json:"own"`
		Ahead   uint64 `json:"ahead"` // the most by which handled has been above fired meanwhile
	} `json:"vectors"`
}

// Event is a line of the device's trace.
type Event struct {
	Kind      string `json:"kind"`
	Text      string `json:"text"`
	Vector    int    `json:"vector"`
	IRQ       int    `json:"irq"`
	CPU       int    `json:"cpu"`
	Handled   uint64 `json:"handled"`
	Effective int    `json:"effective"`
	Fired     uint64 `json:"fired"`
	Failed    int    `json:"failed"`
	Leaks     int    `json:"leaks"`
}

// Claim is what the lab made of it.
type Claim struct {
	Outcome      string   `json:"outcome"`
	Reasons      []string `json:"reasons"`
	Branch       string   `json:"branch"`
	Observations []struct {
		Clustered bool         `json:"clustered"`
		Idle      cpulist.List `json:"idle_cpus"`
		Vectors   []struct {
			Handled cpulist.List `json:"handled"`
			Dropped bool         `json:"dropped"`
			Pending bool         `json:"pending"`
		} `json:"vectors"`
	} `json:"observations"`
	KernelLog struct {
		Warnings []string `json:"warnings"`
	} `json:"kernel_log"`
	Artifacts struct {
		Console  string `json:"console"`
		Trace    string `json:"trace"`
		Timeline string `json:"timeline"`
	} `json:"artifacts"`
}

// Read takes apart a case of results.json (result) and the files below dir that go with it.
func Read(dir string, result []byte) (Facts, Claim, error) {
	var f Facts
	var c Claim
	var raw struct {
		Observations []Observation `json:"observations"`
		Steps        []struct {
			Storm *Storm `json:"storm"`
		} `json:"steps"`
	}
	if err := errors.Join(json.Unmarshal(result, &raw), json.Unmarshal(result, &c)); err != nil {
		return f, c, err
	}
	f.Observations = raw.Observations
	for _, s := range raw.Steps {
		if s.Storm != nil {
			f.Storms = append(f.Storms, *s.Storm)
		}
	}
	err := lines(dir, c.Artifacts.Console, func(line []byte) error {
		f.Log = append(f.Log, strings.TrimRight(string(line), "\r"))
		return nil
	})
	err = errors.Join(err, lines(dir, c.Artifacts.Trace, func(line []byte) error {
		var e Event
		err := json.Unmarshal(line, &e)
		f.Trace = append(f.Trace, e)
		return err
	}))
	err = errors.Join(err, lines(dir, c.Artifacts.Timeline, func(line []byte) error {
		var e struct {
			Source string `json:"source"`
			Text   string `json:"text"`
		}
		err := json.Unmarshal(line, &e)
		if e.Source == "guest-log" {
			f.Log = append(f.Log, e.Text)
		}
		return err
	}))
	return f, c, err
}

func lines(dir, name string, f func([]byte) error) error {
	if name == "" {
		return nil // that it is missing is judged
	}
	file, err := os.Open(filepath.Join(dir, name))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("an artifact that is named is not there: %w", err)
	}
	if err != nil {
		return err
	}
	defer file.Close()
	s := bufio.NewScanner(file)
	s.Buffer(nil, 1<<24)
	for s.Scan() {
		if err := f(s.Bytes()); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return s.Err()
}
