package runner

import "time"

// kind is work that takes about as long each time.
type kind struct {
	boots bool // a boot that makes a snapshot; else a case
	cold  bool // a case that boots
	mana  bool // a case of the kernel's driver
	cpus  int
}

// estimator knows how long each kind of work took in this run.
type estimator struct {
	began time.Time
	busy  time.Duration // of cases that have ended: more than the run's own where they ran side by side
	seen  map[kind]*mean
}

type mean struct {
	n   int
	sum time.Duration
}

func (e *estimator) measured(k kind, took time.Duration) {
	if e.seen == nil {
		e.seen = map[kind]*mean{}
	}
	if e.seen[k] == nil {
		e.seen[k] = &mean{}
	}
	e.seen[k].n++
	e.seen[k].sum += took
}

// Left is what a run still takes. The zero value: not known.
type Left struct {
	Time    time.Duration
	AtLeast bool // there is work of a kind that this run has not measured yet
}

// work is a case to come, or one under way.
type work struct {
	kinds   []kind
	elapsed time.Duration
}

// left estimates what the work takes from now on, in as many jobs side by side as there have been in the mean.
func (e *estimator) left(now time.Time, todo []work) Left {
	if len(e.seen) == 0 {
		return Left{}
	}
	var l Left
	busy := e.busy
	var sum, longest time.Duration
	for _, w := range todo {
		var takes time.Duration
		for _, k := range w.kinds {
			if m := e.seen[k]; m != nil {
				takes += m.sum / time.Duration(m.n)
			} else {
				l.AtLeast = true
			}
		}
		busy += w.elapsed
		takes = max(0, takes-w.elapsed)
		sum += takes
		longest = max(longest, takes)
	}
	width := 1.0
	if ran := now.Sub(e.began); ran > 0 {
		width = max(1, float64(busy)/float64(ran))
	}
	l.Time = max(longest, time.Duration(float64(sum)/width))
	return l
}
