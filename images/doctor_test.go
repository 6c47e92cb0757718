package images

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

func TestVirtualisation(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"processor\t: 0\nflags\t\t: fpu vmx sse\n": "vmx",
		"flags\t\t: fpu svm\n":                     "svm",
		"flags\t\t: fpu svm_lock npt\n":            "",
		"vmx flags\t: ept vpid\nflags\t: fpu\n":    "",
		"":                                         "",
	} {
		if got := virtualisation([]byte(in)); got != want {
			t.Errorf("virtualisation(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestKVMSaysWhy(t *testing.T) {
	t.Parallel()
	usable, why := KVM()
	if why == "" || usable == strings.Contains(why, "TCG") {
		t.Errorf("KVM() = %v, %q; want a reason, with TCG named when it is not usable", usable, why)
	}
}

// Without apt, QEMU and Go the doctor says that no run can work, and what to do about each.
func TestDoctorOnABareMachine(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	failed := map[string]string{}
	for _, k := range newCache(t).Doctor(t.Context()) {
		if k.Name == "" || k.Detail == "" || k.Status != OK && k.Remedy == "" {
			t.Errorf("%+v: want name, detail and, unless ok, a remedy", k)
		}
		if k.Status == Fail {
			failed[k.Name] = k.Remedy
		}
	}
	for name, remedy := range map[string]string{"qemu": "--qemu PATH", "kernel": "--kernel PATH", "packages": "--kernel PATH", "go": "install Go"} {
		if !strings.Contains(failed[name], remedy) {
			t.Errorf("%s: remedy %q, want one with %q", name, failed[name], remedy)
		}
	}
}

// Where the guest's agent is in the cache a run needs no Go, and the doctor does not say that it does.
func TestDoctorWithoutGo(t *testing.T) {
	c := newCache(t)
	src, err := compiledIn()
	if err != nil {
		t.Fatal(err)
	}
	key, err := busyboxKey(src, runtime.Version())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.entry(t.Context(), busyboxKind, key, func(_ context.Context, dir string) error {
		return os.WriteFile(filepath.Join(dir, "bb"), []byte("bb"), 0o700)
	}); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", t.TempDir())
	if k := c.checkGo(t.Context(), source{dir: src}); k.Status != Warn || k.Remedy == "" {
		t.Errorf("%+v; want a warning", k)
	}
}

// With a mirror that answers nothing fails for lack of cached images: they can be fetched.
func TestDoctorWithAMirror(t *testing.T) {
	t.Parallel()
	a := newArchive(t)
	a.mu.Lock()
	a.files["/dists/"+qemuSuite+"/InRelease"] = []byte("Origin: Debian\n")
	a.mu.Unlock()
	c := archiveCache(t, a)
	status := func() map[string]Status {
		s := map[string]Status{}
		for _, k := range c.Doctor(t.Context()) {
			s[k.Name] = k.Status
		}
		return s
	}
	if s := status(); s["packages"] != OK || s["qemu"] == Fail || s["kernel"] != Warn || s["go"] != OK {
		t.Errorf("statuses %v", s)
	}
	a.Close()
	if s := status(); s["packages"] != Fail || s["kernel"] != Fail {
		t.Errorf("statuses %v after the mirror went away; want packages and kernel to fail", s)
	}
}

// A host whose apt knows Ubuntu's archive only is told what it lacks, and lacks nothing once that is done.
func TestDoctorOnUbuntu(t *testing.T) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "ubuntu.sources"), []byte("Types: deb\nURIs: http://archive.example.org/ubuntu/\nSuites: noble noble-updates\nComponents: main universe\n"+
		"Signed-By: /usr/share/keyrings/ubuntu-archive-keyring.gpg\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	config := filepath.Join(t.TempDir(), "apt.conf")
	if err := os.WriteFile(config, []byte(`Dir::Etc::sourcelist "/dev/null"; Dir::Etc::sourceparts "`+dir+`";`), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("APT_CONFIG", config)
	t.Setenv(MirrorVariable, "")
	found := keyrings
	t.Cleanup(func() { keyrings = found })
	keyrings = []string{filepath.Join(dir, "debian-archive-keyring.gpg")}
	c := newCache(t)
	wants := func(status Status, detail, remedy string) {
		t.Helper()
		if k := c.checkPackages(t.Context()); k.Status != status || !strings.Contains(k.Detail, detail) || !strings.Contains(k.Remedy, remedy) {
			t.Errorf("%+v; want %s, %q, remedy %q", k, status, detail, remedy)
		}
	}
	wants(Fail, "Debian's archive keys are not in "+keyrings[0]+"; the host's apt sources name no mirror of Debian's main archive", "install debian-archive-keyring, and set "+MirrorVariable)
	if err := os.WriteFile(keyrings[0], nil, 0o600); err != nil {
		t.Fatal(err)
	}
	wants(Fail, "the host's apt sources name no mirror", "set "+MirrorVariable)
	_, err := c.fetchQEMU(t.Context(), nil)
	if no := new(NoArchiveError); !errors.As(err, &no) || !Unobtainable(err) || !strings.Contains(err.Error(), "set "+MirrorVariable) {
		t.Errorf("error %v; want a *NoArchiveError that says what to set", err)
	}
	t.Setenv(MirrorVariable, "mirror.example.org/debian")
	wants(Fail, "not a URL", "such as http://")
	a := newArchive(t)
	a.mu.Lock()
	a.files["/dists/"+qemuSuite+"/InRelease"] = []byte("Origin: Debian\n")
	a.mu.Unlock()
	t.Setenv(MirrorVariable, a.URL)
	wants(OK, a.URL+" ("+MirrorVariable+" names it)", "")
}
