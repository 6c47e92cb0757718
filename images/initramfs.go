package images

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"
	"golang.org/x/crypto/ssh"
)

// Initramfs is an initramfs ready to boot with one kernel, and what it takes to reach the agent in it.
type Initramfs struct {
	Path      string   // the archive
	ClientKey string   // path of the client's private key (OpenSSH PEM, 0600)
	HostKey   string   // the agent's public key as a line of authorized_keys: "ssh-ed25519 AAAA…"
	Modules   []string // names ('_') of the modules in it, in load order
	Builtin   []string // wanted modules that the kernel has built in, as far as its modules.builtin tells

	release, modulesDir string
}

// NeedDriver says whether a function can be driven the given way ("vfio", "mana"): a *MissingModuleError if the kernel's modules are known and
// one that the driver needs is not among them, nor built in. A kernel given without its modules is believed to have everything built in:
// the agent finds out.
func (i Initramfs) NeedDriver(driver string) error {
	if i.modulesDir == "" {
		return nil
	}
	for _, need := range driverModules[driver] {
		if !slices.Contains(i.Modules, need) && !slices.Contains(i.Builtin, need) {
			return &MissingModuleError{Kernel: i.release, Module: strings.ReplaceAll(need, "_", "-"), Driver: driver, Dir: i.modulesDir}
		}
	}
	return nil
}

const initramfsFormat = 1 // raise when the same parts would give another archive

// Initramfs makes the initramfs for a kernel: the agent and u-root's commands (built once per content of the source), the modules of the kernel
// that runs need, and this cache's SSH keys. The same parts always give the same bytes, and finished archives are found by content.
//
// The first build compiles the agent and takes a Go toolchain (*NoGoError) and irqlab's source (*NoSourceError). Modules that do not read
// as modules are a *DamagedModuleError.
func (c *Cache) Initramfs(ctx context.Context, k Kernel, p Progress) (Initramfs, error) {
	fail := func(err error) (Initramfs, error) {
		return Initramfs{}, fmt.Errorf("initramfs for kernel %s: %w", k.Release, err)
	}
	if k.Release == "" || k.Release != path.Base(k.Release) || strings.ContainsAny(k.Release, " \t\n") || k.Release[0] == '.' {
		return Initramfs{}, fmt.Errorf("initramfs: %q is not a kernel release", k.Release)
	}
	keys, err := c.keys(ctx)
	if err != nil {
		return fail(err)
	}
	result := Initramfs{ClientKey: keys.clientPath, HostKey: keys.hostLine, release: k.Release, modulesDir: k.ModulesDir}
	parts, _ := c.initramfsParts(ctx, k, keys) // what hinders it will be told by what follows
	if path, m, ok := c.recallInitramfs(k, parts); ok {
		result.Path, result.Modules, result.Builtin = path, m.Modules, m.Builtin
		return result, nil
	}
	var modules []module
	if k.ModulesDir != "" {
		tree, err := openModules(ctx, k.ModulesDir)
		if err != nil {
			return fail(err)
		}
		if modules, err = tree.load(ctx, k.Release, wantedModules); err != nil {
			return fail(err)
		}
		for _, m := range modules {
			result.Modules = append(result.Modules, m.Name)
		}
		for _, name := range wantedModules {
			if tree.builtin[name] {
				result.Builtin = append(result.Builtin, name)
			}
		}
	}
	busybox, err := c.busybox(ctx, p)
	if err != nil {
		return fail(err)
	}

	// The busybox's entry is named by the hash of what it was built from, and is the same bytes for the same name.
	h := sha256.New()
	fmt.Fprintf(h, "format %d\nbusybox %s\nrelease %s\n", initramfsFormat, filepath.Base(filepath.Dir(busybox)), k.Release)
	for _, m := range modules {
		fmt.Fprintf(h, "module %s %s %x\n", m.Name, strings.Join(m.Depends, ","), sha256.Sum256(m.Data))
	}
	fmt.Fprintf(h, "host %x\nauthorized %x\n", sha256.Sum256(keys.hostPEM), sha256.Sum256(keys.clientLine))

	dir, err := c.entry(ctx, initramfsKind, k.Release+"-"+hex.EncodeToString(h.Sum(nil))[:32], func(ctx context.Context, dir string) error {
		bb, err := os.ReadFile(busybox)
		if err != nil {
			return err
		}
		records, err := initramfsRecords(k.Release, bb, modules, keys)
		if err != nil {
			return err
		}
		var archive bytes.Buffer
		if err := writeInitramfs(&archive, records); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dir, initramfsName), archive.Bytes(), 0o600)
	})
	if err != nil {
		return fail(err)
	}
	result.Path = filepath.Join(dir, initramfsName)
	if after, err := c.initramfsParts(ctx, k, keys); err == nil && maps.Equal(parts, after) { // else something changed under our hands
		c.rememberInitramfs(k, parts, result)
	}
	return result, nil
}

const (
	initramfsKind = "initramfs"
	initramfsName = "initramfs.cpio"
)

// initramfsRecords lists the archive's contents, parents before children, in the order of their names.
func initramfsRecords(release string, busybox []byte, modules []module, keys *keys) ([]cpio.Record, error) {
	moduleDir := "lib/modules/" + release + "/irqlab"
	files := map[string]cpio.Record{}
	add := func(r cpio.Record) { files[r.Name] = r }
	for _, d := range []string{"dev", "dev/pts", "etc", "etc/irqlab", "bin", "lib", "lib/modules", "lib/modules/" + release, moduleDir, "mnt", "proc", "root",
		"run", "sys", "usr", "var"} {
		add(cpio.Directory(d, 0o755))
	}
	add(cpio.Directory("tmp", 0o1777))
	add(cpio.Symlink("sbin", "bin"))
	add(cpio.Symlink("usr/bin", "../bin"))
	add(cpio.Symlink("usr/sbin", "../bin"))
	// The kernel opens the console for init before anything can mount a device file system.
	add(cpio.CharDev("dev/console", 0o600, 5, 1))
	add(cpio.CharDev("dev/null", 0o666, 1, 3))
	add(cpio.CharDev("dev/kmsg", 0o600, 1, 11))

	add(cpio.StaticFile("bin/bb", string(busybox), 0o755))
	add(cpio.Symlink("init", "bin/"+agentCommand))
	names, _ := guestCommands()
	for _, name := range append(names, sortedKeys(busyboxAliases)...) {
		if name != "init" {
			add(cpio.Symlink("bin/"+name, "bb"))
		}
	}

	add(cpio.StaticFile("etc/passwd", "root:x:0:0:root:/root:/bin/sh\n", 0o644))
	add(cpio.StaticFile("etc/group", "root:x:0:\n", 0o644))
	add(cpio.StaticFile("etc/hostname", "irqlab\n", 0o644))
	add(cpio.StaticFile("etc/hosts", "127.0.0.1 localhost irqlab\n", 0o644))
	add(cpio.StaticFile("etc/irqlab/host_key", string(keys.hostPEM), 0o600))
	add(cpio.StaticFile("etc/irqlab/authorized_keys", string(keys.clientLine), 0o600))

	add(cpio.StaticFile(moduleDir+"/modules.order", string(modulesOrder(modules)), 0o644))
	for _, m := range modules {
		add(cpio.StaticFile(moduleDir+"/"+m.Name+".ko", string(m.Data), 0o644))
	}

	var records []cpio.Record
	for i, name := range sortedKeys(files) {
		if dir := path.Dir(name); dir != "." && files[dir].Mode&cpio.S_IFMT != cpio.S_IFDIR {
			return nil, fmt.Errorf("%s lies in no directory of the archive", name)
		}
		r := files[name]
		r.Ino, r.NLink = uint64(i+1), 1
		records = append(records, cpio.MakeReproducible(r))
	}
	return records, nil
}

// writeInitramfs writes the archive as the kernel takes it, uncompressed: that reaches init first under TCG. Instructions from power-on to the agent,
// 10^9, counted by QEMU 11.1.3 (-icount shift=0, 1 CPU, kernel 7.3.4), for 11.1 MB of archive: plain 1.46; lz4 (5.0 MB) 1.51; zstd, fastest (4.3 MB) 1.64;
// zstd, best (3.8 MB) 1.62. It also asks nothing of the kernel's CONFIG_RD_*.
func writeInitramfs(w io.Writer, records []cpio.Record) error {
	a := cpio.Newc.Writer(w)
	if err := cpio.WriteRecords(a, records); err != nil {
		return err
	}
	if err := cpio.WriteTrailer(a); err != nil {
		return err
	}
	return nil
}

// keys are the SSH keys of a cache: made once, the host's half going into every initramfs and the client's half staying here.
type keys struct {
	clientPath string
	clientLine []byte // authorized_keys
	hostPEM    []byte
	hostLine   string
}

const (
	clientKeyFile = "client_ed25519"
	hostKeyFile   = "host_ed25519"
)

// keys returns the cache's keys, making them when they are missing or damaged.
func (c *Cache) keys(ctx context.Context) (*keys, error) {
	dir, err := c.entry(ctx, "keys", "ssh", func(_ context.Context, dir string) error {
		for _, name := range []string{clientKeyFile, hostKeyFile} {
			_, private, err := ed25519.GenerateKey(rand.Reader)
			if err != nil {
				return err
			}
			block, err := ssh.MarshalPrivateKey(private, "irqlab "+strings.TrimSuffix(name, "_ed25519"))
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("ssh keys: %w", err)
	}
	k := &keys{clientPath: filepath.Join(dir, clientKeyFile)}
	_, client, err := readKey(k.clientPath)
	if err != nil {
		return nil, err
	}
	k.clientLine = ssh.MarshalAuthorizedKey(client)
	hostPEM, host, err := readKey(filepath.Join(dir, hostKeyFile))
	if err != nil {
		return nil, err
	}
	k.hostPEM = hostPEM
	k.hostLine = strings.TrimSpace(string(ssh.MarshalAuthorizedKey(host)))
	return k, nil
}

func readKey(path string) ([]byte, ssh.PublicKey, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, fmt.Errorf("ssh keys: %w", err)
	}
	signer, err := ssh.ParsePrivateKey(data)
	if err != nil {
		return nil, nil, fmt.Errorf("ssh keys: %s: %w (remove its directory: new keys are made)", path, err)
	}
	return data, signer.PublicKey(), nil
}
