package images

// QEMU is a QEMU ready to run.
type QEMU struct {
	Command []string // argv prefix: the program, or a loader with its library path and the program
	Env     []string // "NAME=value", to be added to the environment
	Version string   // "11.1.3"
	Source  string   // for people: where it came from
}
