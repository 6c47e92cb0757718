// Package scenarios holds the questions irqlab answers: the YAML files it ships, their loader, their expansion into concrete cases, and the
// judgement of a result against what a case expects.
//
// It is pure: bytes and values in, values out. It must not know how a case is run (lab/runner) nor read a file; package lab and the CLI do.
//
// A scenario states once what a run is and then names cases, each of which overrides some of it:
//
//	name: low-vcpu
//	title: Five vectors on four vCPUs
//	shape: sockets=1,cores=2,threads=2,nodes=1,memory=512M
//	vectors: 5
//	cases:
//	  linear:
//	    strategy: linear
//	    pressure: [nvme:queues=4]
//	    expect:
//	      settled: {hwc: 0, queues: [0, 1, 2, 3], clustered: false}
//
// Settings are spelled as the run command's flags are. A setting given as a list stands for several values, each a case of its own; pressure,
// which is a list by nature, takes named profiles for that instead. A vector count may follow the CPUs: online+1.
//
// Steps make an experiment of a case: what happens to the driver, the device and the CPUs, in which order (docs/scenarios.md). The verbs are in verbs.go, what a file may say of them is
// checked in experiment.go and stuck.go, and what became of them is judged in judge.go.
package scenarios
