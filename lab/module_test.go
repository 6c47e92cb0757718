package lab

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"irqlab/images"
)

// unsigned is a module without the signature at its end, which would not be that of a changed one: the last field but the magic is its length.
func unsigned(object []byte) []byte {
	const magic = "~Module signature appended~\n"
	body, signed := bytes.CutSuffix(object, []byte(magic))
	if !signed {
		return object
	}
	const info = 12
	return body[:len(body)-info-int(binary.BigEndian.Uint32(body[len(body)-4:]))]
}

// A module that is sent to a guest is what it inserts, and no other guest: it is told by a build id that was changed in the kernel's own file. It is no part of the
// machine, and one of another kernel comes to no guest.
func TestReplacedModule(t *testing.T) {
	t.Parallel()
	ctx := testContext(t)
	cache, err := images.OpenCache("")
	if err != nil {
		t.Fatal(err)
	}
	kernel, err := cache.Kernel(ctx, DefaultKernel, nil)
	if err != nil {
		t.Fatal(err)
	}
	own, err := cache.OwnModule(ctx, kernel, "mana")
	if err != nil {
		t.Fatal(err)
	}
	own = unsigned(own)
	const header = "\x14\x00\x00\x00\x03\x00\x00\x00GNU\x00" // of a build id of 20 bytes
	note := bytes.Index(own, []byte(header)) + len(header)
	changed := bytes.Clone(own)
	copy(changed[note:], "changed-by-the-test!")
	file := filepath.Join(t.TempDir(), "mana.ko")
	if err := os.WriteFile(file, changed, 0o644); err != nil {
		t.Fatal(err)
	}
	want := hex.EncodeToString(own[note : note+20])
	buildID := func(vm *VM) string {
		t.Helper()
		if _, err := vm.Agent.LoadModule(ctx, "mana", ""); err != nil {
			t.Fatal(err)
		}
		_, id, _ := strings.Cut(output(t, vm, "cat /sys/module/mana/notes/.note.gnu.build-id"), "GNU\x00")
		return id
	}
	with := Config{Start: StartWarm, Cache: cache, Modules: []Module{{"mana", file}}}
	vm := startWarm(t, with)
	if len(vm.Modules) != 1 || vm.Modules[0].Name != "mana" || vm.Start != StartWarm {
		t.Errorf("modules %+v of a guest started %s", vm.Modules, vm.Start)
	}
	if got := buildID(vm); got != "changed-by-the-test!" {
		t.Errorf("the guest inserted the module with the build id %q", got)
	}
	if got := hex.EncodeToString([]byte(buildID(startWarm(t, Config{Start: StartWarm, Cache: cache})))); got != want {
		t.Errorf("without it a guest inserts the module with the build id %s, the kernel's own has %s", got, want)
	}
	a, made, err1 := Machine(ctx, Config{Cache: cache})
	b, _, err2 := Machine(ctx, with)
	if a != b || !made || errors.Join(err1, err2) != nil {
		t.Errorf("machine %s without, %s with it, made: %t; %v", a, b, made, errors.Join(err1, err2))
	}

	with.Kernel = "debian:6.18"
	_, err = Start(ctx, with)
	var bad *images.BadModuleError
	if !errors.As(err, &bad) || !strings.Contains(err.Error(), "built for another kernel") {
		t.Errorf("with another kernel: %v", err)
	}
	with.Kernel, with.Modules[0].Name = "", "nvme"
	if _, err = Start(ctx, with); !errors.As(err, &bad) || !strings.Contains(err.Error(), "it is the module mana, not nvme") {
		t.Errorf("under another name: %v", err)
	}
}
