package inject_test

import (
	"fmt"

	"irqlab/devmodel/inject"
)

// Rules are checked before a VM is started: what cannot be held says what can.
func ExampleRule_Validate() {
	for _, step := range []string{"request:QUERY_DEV_CONFIG", "register-read@0x18"} {
		fmt.Println(inject.Rule{Name: "window", Step: step, Action: inject.Hold}.Validate())
	}
	// Output:
	// <nil>
	// rule "window": hold is not possible at register-read@0x18: QEMU stands still until the answer to a read is there, and gives up on the device after 5 s; hold an smc:, request: or response: step instead
}
