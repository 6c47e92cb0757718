//go:build linux

// Command guestagent is PID 1 of a lab guest: it makes a bare kernel usable, then serves the lab on one virtio-serial port and people, over SSH, on another.
// It knows how to bring the guest up; what the lab can ask for is package api's, and no package here knows the host.
package main

import (
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/sys/unix"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/api"
	"irqlab/guestagent/child"
	"irqlab/guestagent/cpu"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/kfile"
	"irqlab/guestagent/link"
	"irqlab/guestagent/module"
	"irqlab/guestagent/port"
	"irqlab/guestagent/sshd"
	"irqlab/guestagent/vfio"
)

const (
	hostKeyFile    = "/etc/irqlab/host_key"
	authorizedFile = "/etc/irqlab/authorized_keys"

	portWait    = 10 * time.Second // virtio-serial ports may be probed after PID 1 starts
	memoryLimit = 64 << 20         // bytes; from there on the garbage collector runs after all

	fatalWait = 5 * time.Second // a fatal error stays readable that long before the VM is gone
)

func main() {
	if os.Getpid() != 1 {
		fmt.Fprintln(os.Stderr, "guestagent: I am PID 1 of an irqlab guest and do nothing anywhere else")
		os.Exit(2)
	}
	defer func() {
		if p := recover(); p != nil {
			fatal(fmt.Errorf("panic: %v\n%s", p, debug.Stack()))
		}
	}()
	// One thread of Go code at a time: what the agent does is one thing after another, and waking a second CPU to look for work costs an emulated guest more
	// than the work (docs/dev/performance.md).
	runtime.GOMAXPROCS(1)
	// A restored guest runs any code for the first time, the garbage collector's too, and has better things to do.
	debug.SetGCPercent(-1)
	debug.SetMemoryLimit(memoryLimit)
	fatal(run(context.Background()))
}

// say prints a line on the console.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "irqlab: "+format+"\n", args...) }

// fatal says why the agent cannot go on and powers the guest off once the message has had time to be seen.
func fatal(err error) {
	say("guest agent: fatal: %v", err)
	time.Sleep(fatalWait)
	powerOff()
}

func powerOff() {
	unix.Sync()
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF); err != nil {
		say("guest agent: power off: %v", err)
	}
}

// outlive has signals that would end any other program do nothing: a user's script that kills what it finds shall not end the machine. Children have them as ever.
func outlive() {
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGABRT, unix.SIGALRM, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2)
}

// run brings the guest up and serves; it returns only on an error it cannot work around.
func run(ctx context.Context) error {
	if err := mountAll(); err != nil {
		return err
	}
	takeConsole()
	env := environment()
	raiseFileLimit()
	if err := unix.Sethostname([]byte("irqlab")); err != nil {
		say("host name: %v", err)
	}
	if err := link.LoopbackUp(); err != nil {
		say("loopback link: %v", err)
	}
	outlive()
	reaper := child.NewReaper()
	go reaper.Run(ctx)

	root := kfile.Root("/")
	if err := cpu.OnlinePresent(root); err != nil { // before there are drivers that share something out among the CPUs
		return err
	}
	modules, err := module.Image()
	if err != nil {
		return err
	}
	for _, name := range bootModules {
		// What this image lacks is built into its kernel, or the port or disk will be missed by name.
		if _, err := modules.Load(name, ""); err != nil && fault.Reply(err).Code != agentapi.CodeNotFound {
			say("%v", err)
		}
	}
	keys := &hostKey{}
	agent := newAgent(root, modules, keys)
	server, err := newServer(keys, reaper, env)
	if err != nil {
		return err
	}
	return servePorts(ctx, agent, server)
}

// bootModules are the drivers of what a VM has from boot: the channels (modules in Debian's 6.1) and the neighbours, whose vectors must sit where the kernel put
// them before a function's come. VFIO's are no device's yet; inserting them is slow in an emulated guest, and a snapshot spares it to all its forks.
var bootModules = []string{"virtio_pci", "virtio_console", "nvme", "virtio_blk", "vfio_iommu_type1", "vfio_pci"}

// hostKey is the SSH server's: the image's, or of a guest restored from a snapshot one of its own.
type hostKey struct {
	seed atomic.Pointer[[]byte] // the ed25519 key's, once there is one
}

// signer makes the key when it is asked for: that costs more than the rest of a restored guest's refresh, and most are never asked.
func (k *hostKey) signer() (ssh.Signer, error) {
	if seed := k.seed.Load(); seed != nil {
		return ssh.NewSignerFromSigner(ed25519.NewKeyFromSeed(*seed))
	}
	pem, err := os.ReadFile(hostKeyFile)
	if err != nil {
		return nil, err
	}
	key, err := ssh.ParsePrivateKey(pem)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", hostKeyFile, err)
	}
	return key, nil
}

func newAgent(root kfile.Root, modules module.Loader, key *hostKey) *api.Agent {
	return api.New(api.Config{
		Root:    root,
		Modules: modules,
		Open: func(address, group string) (api.Function, error) {
			f, err := vfio.Open(address, group)
			if err != nil {
				return nil, err // not a nil *vfio.Function in a non-nil interface
			}
			return f, nil
		},
		PowerOff: func() {
			time.AfterFunc(100*time.Millisecond, powerOff) // the answer leaves first
		},
		HostKey: func(seed []byte) { key.seed.Store(&seed) },
		Log:     say,
	})
}

func newServer(key *hostKey, reaper *child.Reaper, env []string) (*sshd.Server, error) {
	keys, err := os.ReadFile(authorizedFile)
	if err != nil {
		return nil, fmt.Errorf("SSH authorized keys: %w", err)
	}
	authorized, err := sshd.ParseAuthorizedKeys(keys)
	if err != nil {
		return nil, fmt.Errorf("SSH authorized keys %s: %w", authorizedFile, err)
	}
	return sshd.New(sshd.Config{
		HostKey:    key.signer,
		Authorized: authorized,
		User:       agentapi.User,
		Shells:     []string{"/bin/sh", "/bbin/sh", "/bbin/gosh", "/bin/gosh", "/bin/bash", "/bbin/elvish"},
		Env:        env,
		Reaper:     reaper,
		Log:        say,
	}), nil
}

// servePorts serves each port there is to one host at a time, for ever. The lab's port is required; the person's may be left out.
func servePorts(ctx context.Context, agent *api.Agent, server *sshd.Server) error {
	root := kfile.Root("/")
	failed := make(chan error, 2)
	for _, p := range []struct {
		name     string
		required bool
		serve    func(context.Context, net.Conn) error
	}{
		{agentapi.AgentPort, true, func(ctx context.Context, conn net.Conn) error { return agent.Serve(ctx, conn) }},
		{agentapi.SSHPort, false, server.Serve},
	} {
		path, err := findPort(ctx, root, p.name, p.required)
		if err != nil {
			if p.required {
				return fmt.Errorf("%w: start the VM with -device virtio-serial-pci and -device virtserialport,name=%s", err, p.name)
			}
			continue
		}
		conn, err := port.Open(path)
		if err != nil {
			return err
		}
		go func() {
			defer func() {
				if p := recover(); p != nil {
					failed <- fmt.Errorf("panic: %v\n%s", p, debug.Stack())
				}
			}()
			failed <- serve(ctx, conn, path, p.serve)
		}()
	}
	fmt.Println(agentapi.ReadyMessage)
	return <-failed
}

func findPort(ctx context.Context, root kfile.Root, name string, wait bool) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, portWait)
	defer cancel()
	for {
		path, err := port.Find(root, name)
		if err == nil || !wait || !errors.Is(err, os.ErrNotExist) {
			return path, err
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%w within %s", err, portWait)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// serve serves hosts on an opened port one after another. What goes wrong with one host is said and forgotten: reopening the port drops its
// leftovers, and the next one starts afresh.
func serve(ctx context.Context, conn *port.Conn, path string, host func(context.Context, net.Conn) error) error {
	for {
		err := conn.Wait(ctx)
		if err == nil {
			err = host(ctx, conn)
		}
		conn.Close()
		if err != nil {
			say("%s: %v", path, err)
			time.Sleep(50 * time.Millisecond) // do not fill the console if it fails at once each time
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if conn, err = port.Open(path); err != nil {
			return fmt.Errorf("reopening the port: %w", err)
		}
	}
}
