package images

import (
	"context"
	"os"
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
