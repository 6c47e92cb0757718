package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/crypto/ssh"

	"irqlab/lab"
	"irqlab/lab/qemu"
)

// handshake bounds the SSH handshake with a guest, which can be slow while its CPUs are emulated and busy.
const handshake = 30 * time.Second

func newSSH(s Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "ssh NAME [COMMAND…]",
		Short: "Run a command, or a shell, in a running VM",
		Long: `ssh reaches a VM that another irqlab process is running, by the name that process shows: irqlab shell, with or without --hold, lets in as many as come. A test that uses the Go
API without VM.Share has one seat: while an ssh or a proxy has it, others wait for it, ` + fmt.Sprint(handshake) + ` at most.
Without a COMMAND it gives a terminal. A -- may stand before the COMMAND. A VM that is still booting is waited for. The exit status is the command's own; 125 when the guest cannot be reached.`,
		Example: "  irqlab ssh low-vcpu-numa-aware cat /proc/interrupts",
		Args:    namesVM(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			client, err := dial(cmd.Context(), s, args[0])
			if err != nil {
				return &exitError{ExitError, err}
			}
			defer client.Close()
			command := args[1:]
			if len(command) > 0 && command[0] == "--" { // as where flags may follow a name: it sets the command apart
				command = command[1:]
			}
			return session(cmd.Context(), client, s, strings.Join(command, " "))
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows the name is the command's, dashes and all
	return cmd
}

// namesVM says which VMs run where none is named.
func namesVM(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return check(cmd, args)
		}
		var names []string
		for _, r := range qemu.List() {
			names = append(names, r.Name)
		}
		if len(names) == 0 {
			return errors.New("no VM is named, and none is running (irqlab shell starts one)")
		}
		return fmt.Errorf("no VM is named; running: %s", strings.Join(names, ", "))
	}
}

func newExec(s Streams) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "exec NAME [--] COMMAND [ARG…]",
		Short: "Run a program in a running VM, its arguments as they are",
		Long: `exec runs a program in a VM that another irqlab process is running, as ssh does, but no shell reads the arguments: a blank or a $ in one is itself.
Standard input, output and error are the program's. The exit status is its own; 125 when the guest cannot be reached.`,
		Example: "  irqlab exec low-vcpu-numa-aware -- grep -c 'mana_q0@pci' /proc/interrupts",
		Args:    namesVM(cobra.MinimumNArgs(2)),
		RunE: func(cmd *cobra.Command, args []string) error {
			command := args[1:]
			if command[0] == "--" {
				command = command[1:]
			}
			if len(command) == 0 {
				return usageError(fmt.Errorf("no command is given; as in irqlab exec %s -- uname -r", args[0]))
			}
			client, err := dial(cmd.Context(), s, args[0])
			if err != nil {
				return &exitError{ExitError, err}
			}
			defer client.Close()
			return session(cmd.Context(), client, s, quoted(command))
		},
	}
	cmd.Flags().SetInterspersed(false) // what follows the name is the command's, dashes and all
	return cmd
}

func newProxy(s Streams) *cobra.Command {
	var show bool
	cmd := &cobra.Command{
		Use:   "proxy NAME",
		Short: "Connect standard input and output to a running VM's SSH server",
		Long: `proxy is made to be OpenSSH's ProxyCommand:

  ssh -o ProxyCommand='irqlab proxy %h' -o IdentityFile=KEY root@low-vcpu-numa-aware

` + "`irqlab proxy --show NAME`" + ` prints the key and the host key to use.`,
		Args: namesVM(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			access, err := reach(cmd.Context(), s, args[0])
			if err != nil {
				return &exitError{ExitError, err}
			}
			if show {
				fmt.Fprintf(s.Out, "IdentityFile %s\n# known_hosts: %s %s\n", access.ClientKey, args[0], strings.TrimSpace(access.HostKey))
				return nil
			}
			if err := relay(cmd.Context(), access.Connect(cmd.Context()), s); err != nil {
				return &exitError{ExitError, fmt.Errorf("VM %s: %w", args[0], err)}
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&show, "show", false, "print the key and the host key to use, and connect to nothing")
	return cmd
}

// relay copies both ways until the guest's side ends; the end of standard input is passed on by closing that direction.
func relay(ctx context.Context, conn lab.Stream, s Streams) error {
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	defer conn.Close()
	go func() {
		_, _ = io.Copy(conn, s.In)
		_ = conn.CloseWrite()
	}()
	_, err := io.Copy(s.Out, conn)
	return err
}

// Times of waiting for a VM that boots.
const (
	reachPoll = 100 * time.Millisecond
	silence   = 5 * time.Second // after which somebody who waits for a seat is told so
	reachGap  = 5 * time.Second // from the end of the VM that is saved to the start of its fork, under the same name
)

// reach finds a running VM, and waits for one whose guest is still booting.
func reach(ctx context.Context, s Streams, name string) (lab.Access, error) {
	var seen time.Time // the VM was there, booting
	for {
		access, err := lab.Reach(name)
		var booting *lab.NotReadyError
		var gone *qemu.NotRunningError
		switch {
		case errors.As(err, &booting):
			if seen.IsZero() {
				s.say("VM %s is still booting; waiting for its guest", name)
			}
			seen = time.Now()
		case err == nil || seen.IsZero() || !errors.As(err, &gone):
			return access, err
		case time.Since(seen) > reachGap:
			return access, fmt.Errorf("VM %s: it ended before its guest had booted; whoever ran it knows why", name)
		}
		select {
		case <-ctx.Done():
			return lab.Access{}, context.Cause(ctx)
		case <-time.After(reachPoll):
		}
	}
}

func dial(ctx context.Context, s Streams, name string) (*ssh.Client, error) {
	access, err := reach(ctx, s, name)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, handshake, fmt.Errorf("no answer from the guest in %s; its only seat may be taken by another ssh or proxy: try again when that has ended", handshake))
	defer cancel()
	slow := time.AfterFunc(silence, func() {
		s.say("VM %s: no answer yet; its only seat may be taken by another ssh or proxy; waiting for it, %s at most", name, handshake)
	})
	defer slow.Stop()
	client, err := access.Dial(ctx)
	if err != nil {
		return nil, fmt.Errorf("VM %s: %w", name, err)
	}
	return client, nil
}

// session runs a command, or with an empty one a login shell, on the guest with our own standard streams, in a terminal when they are one.
func session(ctx context.Context, client *ssh.Client, s Streams, command string) error {
	sess, err := client.NewSession()
	if err != nil {
		return &exitError{ExitError, fmt.Errorf("guest: %w", err)}
	}
	defer sess.Close()
	stop := context.AfterFunc(ctx, func() { client.Close() })
	defer stop()
	out := &checkedWriter{Writer: s.Out, failed: func() { client.Close() }} // nobody reads: the command's output would stand still, and it with it
	sess.Stdin, sess.Stdout, sess.Stderr = s.In, out, s.Err

	in, _ := s.In.(*os.File)
	if k, ok := s.In.(*keyboard); ok { // which somebody else reads afterwards
		turn, end := context.WithCancel(ctx)
		defer end()
		in, sess.Stdin = k.File, k.until(turn)
	}
	if in != nil && command == "" && isTerminal(in) {
		restore, err := terminal(ctx, sess, in)
		if err != nil {
			return &exitError{ExitError, err}
		}
		defer restore()
	}
	if command == "" {
		if err = sess.Shell(); err == nil {
			err = sess.Wait()
		}
	} else {
		err = sess.Run(command)
	}
	var exit *ssh.ExitError
	switch {
	case out.err != nil:
		return outputError(out.err)
	case err == nil:
		return nil
	case errors.As(err, &exit):
		return &exitError{status: exit.ExitStatus()}
	default:
		return &exitError{ExitError, fmt.Errorf("guest: %w", err)}
	}
}
