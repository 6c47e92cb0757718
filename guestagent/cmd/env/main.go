//go:build linux

// Command env runs a program in a changed environment, as the first line of scripts asks for it (#!/usr/bin/env bash), or shows the environment.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

const usage = "usage: env [-i] [-u NAME] [-S 'COMMAND ARGUMENT…'] [NAME=VALUE…] [COMMAND ARGUMENT…]"

// Statuses as shells have them.
const (
	notExecutable = 126
	notFound      = 127
)

func main() {
	env, command, err := parse(os.Args[1:], os.Environ())
	if err != nil {
		fmt.Fprintln(os.Stderr, "env:", err)
		os.Exit(1)
	}
	status, err := run(env, command, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "env:", err)
	}
	os.Exit(status)
}

// parse reads the arguments: the environment to come, and the command, if there is one.
func parse(args, env []string) (out, command []string, err error) {
	unset := func(name string) {
		env = slices.DeleteFunc(env, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	}
	env = slices.Clone(env)
	for len(args) > 0 && strings.HasPrefix(args[0], "-") {
		word := args[0]
		args = args[1:]
		if word == "--" {
			break
		}
		value := word[min(2, len(word)):] // -uNAME, or with the kernel's one argument for all, "-S bash -e"
		if takes := strings.HasPrefix(word, "-u") || strings.HasPrefix(word, "-S"); takes && value == "" {
			if len(args) == 0 {
				return nil, nil, fmt.Errorf("%s wants a word\n%s", word, usage)
			}
			value, args = args[0], args[1:]
		}
		switch {
		case word == "-i", word == "-", word == "--ignore-environment":
			env = nil
		case strings.HasPrefix(word, "-u"):
			unset(value)
		case strings.HasPrefix(word, "-S"):
			args = append(strings.Fields(value), args...)
		default:
			return nil, nil, fmt.Errorf("%s: unknown option\n%s", word, usage)
		}
	}
	for len(args) > 0 && strings.Contains(args[0], "=") {
		name, _, _ := strings.Cut(args[0], "=")
		unset(name)
		env, args = append(env, args[0]), args[1:]
	}
	return env, args, nil
}

// run becomes the command, or shows the environment; it returns what the status is when it does not become anything.
func run(env, command []string, out io.Writer) (status int, err error) {
	if len(command) == 0 {
		_, err := io.WriteString(out, strings.Join(append(env, ""), "\n"))
		return 0, err
	}
	path, err := lookPath(command[0], env)
	if err == nil {
		err = unix.Exec(path, command, env)
	}
	if errors.Is(err, exec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
		return notFound, fmt.Errorf("%s: no such program", command[0])
	}
	return notExecutable, fmt.Errorf("%s: %w", command[0], err)
}

// lookPath finds a program by the PATH that it is to have.
func lookPath(name string, env []string) (string, error) {
	for _, kv := range env {
		if path, ok := strings.CutPrefix(kv, "PATH="); ok {
			if err := os.Setenv("PATH", path); err != nil {
				return "", err
			}
		}
	}
	return exec.LookPath(name)
}
