package scenarios_test

import (
	"fmt"

	"irqlab/scenarios"
)

func ExampleLoad() {
	s, err := scenarios.Load("mine.yaml", []byte(`
name: mine
strategy: [linear, siblings]
vectors: online+1
pressure:
  quiet: none
  busy: nvme:queues=4
`))
	if err != nil {
		fmt.Println(err)
		return
	}
	cases, _, err := s.Plan(scenarios.Overrides{})
	for _, c := range cases {
		fmt.Println(c.Name, c.Vectors, c.Pressure)
	}
	fmt.Println(err)
	// Output:
	// linear/quiet 5 []
	// linear/busy 5 [nvme:queues=4]
	// siblings/quiet 5 []
	// siblings/busy 5 [nvme:queues=4]
	// <nil>
}

func ExampleLoad_mistake() {
	_, err := scenarios.Load("mine.yaml", []byte("name: mine\nstrategy: linaer\n"))
	fmt.Println(err)
	// Output:
	// mine.yaml:2:11: strategy: unknown strategy "linaer"; allowed: numa-aware, linear, mana-7.2, unset, all-online, local-spread, siblings, node, spread, single, masks:CPUS/CPUS/…, script:FILE ARGS; did you mean "linear"?
}
