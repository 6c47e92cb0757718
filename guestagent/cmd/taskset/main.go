//go:build linux

// Command taskset runs a program on some CPUs only, or shows and changes where a process may run.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"irqlab/guestagent/cpulist"
)

const usage = "usage: taskset [-c] CPUS COMMAND [ARGUMENT…]\n       taskset [-c] -p [CPUS] PID\nCPUS is a hexadecimal mask, or with -c a list such as 0-2,5."

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "taskset:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	var list, process bool
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		for _, letter := range args[0][1:] {
			switch letter {
			case 'c':
				list = true
			case 'p':
				process = true
			default:
				return fmt.Errorf("%s: unknown option\n%s", args[0], usage)
			}
		}
		args = args[1:]
	}
	if process {
		return ofProcess(args, list, out)
	}
	if len(args) < 2 {
		return errors.New("CPUs and a command are wanted\n" + usage)
	}
	path, err := exec.LookPath(args[1])
	if err != nil {
		return err
	}
	runtime.LockOSThread() // the one that becomes the program
	if err := set(0, args[0], list); err != nil {
		return err
	}
	return fmt.Errorf("%s: %w", path, unix.Exec(path, args[1:], os.Environ()))
}

// ofProcess shows where a process may run, after the change that args ask for.
func ofProcess(args []string, list bool, out io.Writer) error {
	if len(args) < 1 || len(args) > 2 {
		return errors.New("a PID is wanted\n" + usage)
	}
	word := args[len(args)-1]
	pid, err := strconv.Atoi(word)
	if err != nil || pid < 1 {
		return fmt.Errorf("%q is not a PID", word)
	}
	if len(args) == 2 {
		if err := set(pid, args[0], list); err != nil {
			return err
		}
	}
	var mask unix.CPUSet
	if err := unix.SchedGetaffinity(pid, &mask); err != nil {
		return fmt.Errorf("process %d: %w", pid, err)
	}
	var cpus []int
	for cpu := range len(mask) * 64 {
		if mask.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	_, err = fmt.Fprintf(out, "process %d may run on CPUs %s\n", pid, cpulist.New(cpus...))
	return err
}

// set lets a process (0: this thread) run on the CPUs that word names.
func set(pid int, word string, list bool) error {
	cpus, err := parse(word, list)
	if err != nil {
		return err
	}
	var mask unix.CPUSet
	for _, cpu := range cpus {
		if cpu >= len(mask)*64 {
			return fmt.Errorf("CPU %d is beyond the last that can be named, %d", cpu, len(mask)*64-1)
		}
		mask.Set(cpu)
	}
	if err := unix.SchedSetaffinity(pid, &mask); err != nil {
		return fmt.Errorf("CPUs %s: %w", cpus, err)
	}
	return nil
}

// parse reads CPUs as a list or as a hexadecimal mask.
func parse(word string, list bool) (cpulist.List, error) {
	if list {
		cpus, err := cpulist.Parse(word)
		if err == nil && len(cpus) == 0 {
			err = errors.New("no CPU")
		}
		return cpus, err
	}
	digits := strings.ReplaceAll(strings.TrimPrefix(strings.ToLower(word), "0x"), ",", "")
	var cpus []int
	for i := range digits {
		digit, err := strconv.ParseUint(digits[len(digits)-1-i:len(digits)-i], 16, 4)
		if err != nil {
			return nil, fmt.Errorf("%q is not a hexadecimal mask (-c takes a list)", word)
		}
		for bit := range 4 {
			if digit>>bit&1 != 0 {
				cpus = append(cpus, 4*i+bit)
			}
		}
	}
	if len(cpus) == 0 {
		return nil, fmt.Errorf("%q names no CPU", word)
	}
	return cpulist.New(cpus...), nil
}
