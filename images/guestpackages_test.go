package images

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/u-root/u-root/pkg/cpio"
)

func TestGuestPlace(t *testing.T) {
	for _, x := range []struct{ name, want string }{
		{"usr/bin/bash", "bin/bash"},
		{"bin/bash", "bin/bash"}, // of suites that are not merged into /usr
		{"usr/sbin/irqbalance", "bin/irqbalance"},
		{"sbin/ethtool", "bin/ethtool"},
		{"usr/lib/x86_64-linux-gnu/libc.so.6", "lib/x86_64-linux-gnu/libc.so.6"},
		{"usr/lib64/ld-linux-x86-64.so.2", "lib64/ld-linux-x86-64.so.2"},
		{"lib64/ld-linux-x86-64.so.2", "lib64/ld-linux-x86-64.so.2"},
		{"usr/lib32/libc.so.6", ""},
		{"etc/default/irqbalance", "etc/default/irqbalance"},
		{"usr/libexec/x", "usr/libexec/x"},
		{"usr/share/perl/5.40/x.pm", "usr/share/perl/5.40/x.pm"},
		{"usr/share/man/man1/bash.1.gz", ""},
		{"usr/lib/systemd/system/irqbalance.service", ""},
		{"etc/init.d/irqbalance", ""},
		{"usr/lib/x86_64-linux-gnu/libc.a", ""},
		{"usr/bin", ""}, // links to what guests have already
		{"bin", ""},
		{"usr/lib", ""},
		{"lib64", ""},
		{"usr", ""},
		{".", ""},
		{"dev/null", ""},
		{"boot/vmlinuz", ""},
		{"usr/sbin/modprobe", ""}, // the kernel calls irqlab's
		{"sbin/init", ""},
		{"usr/bin/irqlab-agent", ""},
		{"etc/irqlab/host_key", ""},
	} {
		if got := guestPlace(x.name); got != x.want {
			t.Errorf("%s goes to %q, want %q", x.name, got, x.want)
		}
	}
}

func TestGuestLink(t *testing.T) {
	for _, x := range []struct{ from, target, want string }{
		{"usr/bin/sh", "dash", "dash"},
		{"usr/sbin/x", "../bin/y", "y"}, // the two are one folder
		{"usr/lib64/ld-linux-x86-64.so.2", "../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"},
		{"usr/bin/tool", "../share/tool/run", "/usr/share/tool/run"},
		{"usr/bin/awk", "/etc/alternatives/awk", "/etc/alternatives/awk"},
		{"lib/x86_64-linux-gnu/liba.so.1", "liba.so.1.0", "liba.so.1.0"},
		{"usr/bin/out", "../../../../etc/passwd", "/etc/passwd"},
		{"etc/mtab", "../proc/self/mounts", "/proc/self/mounts"},
	} {
		if got := guestLink(x.from, x.target); got != x.want {
			t.Errorf("%s -> %s leads to %q, want %q", x.from, x.target, got, x.want)
		}
	}
}

func TestReachable(t *testing.T) {
	all := map[string]Package{}
	for _, k := range []Package{
		{Name: "balance", Depends: "libc (>= 2.38), awk, logind | default-logind, debconf (>= 0.5) | debconf-2.0", PreDepends: "init-system-helpers (>= 1)"},
		{Name: "libc", Depends: "libgcc:any"},
		{Name: "bash", Depends: "debconf", PreDepends: "libc (>= 2.41)"},
		{Name: "libgcc"},
		{Name: "mawk", Provides: "awk, other (= 1)"},
		{Name: "default-logind", Depends: "pam-systemd"},
		{Name: "pam-systemd", Depends: "systemd"},
		{Name: "systemd"},
		{Name: "init-system-helpers", Depends: "perl-base"},
		{Name: "perl-base"},
		{Name: "debconf", Depends: "perl-base"},
		{Name: "stranger"},
	} {
		all[k.Name] = k
	}
	for _, x := range []struct {
		names, want []string
		chain       string // of the last that is wanted
	}{
		{[]string{"libc"}, []string{"libc", "libgcc"}, "libc needs libgcc"},
		{[]string{"balance"}, []string{"balance", "default-logind", "libc", "libgcc", "mawk", "pam-systemd", "systemd"}, "balance needs default-logind, which needs pam-systemd, which needs systemd"},
		{[]string{"bash"}, []string{"bash", "libc", "libgcc"}, "bash needs libc, which needs libgcc"},
		{[]string{"debconf"}, []string{"debconf", "perl-base"}, "debconf needs perl-base"}, // asked for
		{[]string{"systemd"}, []string{"systemd"}, "systemd"},
	} {
		reached, why := reachable(x.names, all)
		if got := sortedKeys(reached); !slices.Equal(got, x.want) {
			t.Errorf("%q lead to %q, want %q", x.names, got, x.want)
		}
		if got := chain(x.want[len(x.want)-1], why); got != x.chain {
			t.Errorf("%q: %q, want %q", x.names, got, x.chain)
		}
	}
}

// packagesMirror has a program, its library, and what wants systemd.
func packagesMirror(t *testing.T) (*archive, *Cache) {
	a := newArchive(t)
	a.publish(t, "trixie",
		debSpec{"balance", "1.9", "libone, debconf", []member{{name: "./usr/sbin/balance", data: []byte("program")}, {name: "./usr/share/man/man1/balance.1", data: []byte("text")},
			{name: "./usr/sbin/other", link: "../bin/first"}}},
		debSpec{"libone", "2.0", "", []member{{name: "./usr/lib64/ld.so", link: "../lib/x/ld.so"}, {name: "./usr/lib/x/ld.so", data: []byte("loader")}}},
		debSpec{"debconf", "3.0", "", []member{{name: "./usr/bin/debconf", data: []byte("question")}}},
		debSpec{"dash", "4.0", "", []member{{name: "./usr/bin/dash", data: []byte("shell")}}},
		debSpec{"scripts", "4.1", "dash", nil},
		debSpec{"tuned", "5.0", "polkit", nil},
		debSpec{"polkit", "6.0", "systemd", nil},
		debSpec{"systemd", "7.0", "", nil},
		debSpec{"broken", "8.0", "nothing-has-it", nil},
	)
	a.publish(t, "trixie-backports")
	return a, archiveCache(t, a)
}

// contents lists an archive: names in order, links with where they lead, and files with what is in them.
func contents(t *testing.T, path string) []string {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	records, err := cpio.ReadAllRecords(cpio.Newc.Reader(f))
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, r := range records {
		line := r.Name
		if kind := r.Mode & cpio.S_IFMT; kind != cpio.S_IFDIR {
			data := make([]byte, r.FileSize)
			if _, err := r.ReadAt(data, 0); err != nil && r.FileSize > 0 {
				t.Fatal(err)
			}
			line += map[bool]string{true: " -> ", false: " = "}[kind == cpio.S_IFLNK] + string(data)
		}
		out = append(out, line)
	}
	return out
}

func TestGuestPackages(t *testing.T) {
	a, c := packagesMirror(t)
	ctx := context.Background()
	g, err := c.GuestPackages(ctx, []string{"dash", "balance", "dash"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"usr", "usr/lib -> ../lib", "usr/lib64 -> ../lib64", "bin", "bin/balance = program", "bin/other -> first", "bin/dash = shell", "lib64", "lib64/ld.so -> /lib/x/ld.so", "lib", "lib/x",
		"lib/x/ld.so = loader", "bin/sh -> dash"}
	if got := contents(t, g.Path); !slices.Equal(got, want) {
		t.Errorf("the archive has\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if fmt.Sprint(g.Asked) != "[{balance 1.9} {dash 4.0}]" || g.All != 3 || g.Size != fileSize(g.Path) {
		t.Errorf("got %+v", g)
	}
	before := a.requests("")
	again, err := c.GuestPackages(ctx, []string{"balance", "dash"}, func(what string, _, _ int64) { t.Errorf("%s: of what is known already", what) })
	if err != nil || fmt.Sprint(again) != fmt.Sprint(g) || a.requests("") != before {
		t.Errorf("again: %+v, %v, after %d more requests; want the same without any", again, err, a.requests("")-before)
	}
	// Without dash being asked for, the shell is irqlab's.
	g, err = c.GuestPackages(ctx, []string{"scripts"}, nil)
	if err != nil || !slices.Contains(contents(t, g.Path), "bin/dash = shell") || slices.Contains(contents(t, g.Path), "bin/sh -> dash") {
		t.Errorf("as a dependency: %v, %v", contents(t, g.Path), err)
	}
	if g, err = c.GuestPackages(ctx, []string{"balance"}, nil); err != nil {
		t.Fatal(err)
	}
	// What takes the name of two archives is both, one after the other.
	first := filepath.Join(t.TempDir(), "first.cpio")
	if err := os.WriteFile(first, []byte("12345"), 0o600); err != nil {
		t.Fatal(err)
	}
	i, err := c.AddPackages(ctx, Initramfs{Path: first}, g)
	if err != nil {
		t.Fatal(err)
	}
	both, _ := os.ReadFile(i.Path)
	if second, _ := os.ReadFile(g.Path); !strings.HasPrefix(string(both), "12345\x00\x00\x00"+string(second)) || i.Size() != int64(len(both)) {
		t.Errorf("the initramfs has %d bytes, and is not one archive after the other", len(both))
	}
	if gone, err := c.Prune(ctx, -1); err != nil || !slices.ContainsFunc(gone, func(name string) bool { return strings.HasPrefix(name, "packages/trixie-balance") }) {
		t.Errorf("prune removes %q, %v", gone, err)
	}
	if g, err = c.GuestPackages(ctx, []string{"balance"}, nil); err != nil || fileSize(g.Path) == 0 {
		t.Errorf("after prune: %+v, %v", g, err)
	}
}

func TestBadPackages(t *testing.T) {
	_, c := packagesMirror(t)
	for _, x := range []struct{ name, want string }{
		{"balanc", `Debian trixie has no package balanc for amd64 (packages.debian.org says in which package a program is); did you mean "balance"?`},
		{"tuned", "tuned needs polkit, which needs systemd: guests have no systemd"},
		{"systemd", "packages systemd: systemd: guests have no systemd"},
		{"broken", "cannot be had together"},
		{"balance:arm64", "asks for the architecture arm64"},
	} {
		_, err := c.GuestPackages(context.Background(), []string{x.name}, nil)
		var bad *BadPackagesError
		if !errors.As(err, &bad) || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%s: %v, want a *BadPackagesError with %q", x.name, err, x.want)
		}
	}
	if found, _ := os.ReadDir(filepath.Join(c.Dir(), packagesKind)); len(found) > 0 {
		t.Errorf("the cache has %v", found)
	}
}

// What comes in half is not kept, and does not hinder what comes whole.
func TestPackagesCutShort(t *testing.T) {
	a, c := packagesMirror(t)
	a.setAlter(func(path string, w http.ResponseWriter, data []byte) bool {
		if !strings.HasSuffix(path, ".deb") {
			return false
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(data)))
		_, _ = w.Write(data[:len(data)/2])
		return true
	})
	if _, err := c.GuestPackages(context.Background(), []string{"balance"}, nil); err == nil {
		t.Fatal("half a package was taken")
	}
	if found, _ := os.ReadDir(filepath.Join(c.Dir(), packagesKind)); len(found) > 0 || len(temps(t, c)) > 0 {
		t.Errorf("left are %v and %v", found, temps(t, c))
	}
	a.setAlter(nil)
	if g, err := c.GuestPackages(context.Background(), []string{"balance"}, nil); err != nil || fileSize(g.Path) == 0 {
		t.Errorf("whole: %+v, %v", g, err)
	}
}
