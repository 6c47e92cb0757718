package lab

import (
	"strings"
	"testing"

	"irqlab/images"
)

// Programs of Debian's run in a guest: the loader finds their libraries, they come before irqlab's commands of the same name, and scripts find them where they are on Debian.
func TestPackages(t *testing.T) {
	t.Parallel()
	vm := startWarm(t, Config{Start: StartAuto, Packages: []string{"bash", "ethtool"}})
	if len(vm.Packages.Asked) != 2 || vm.Packages.Asked[0].Name != "bash" || vm.Packages.Asked[0].Version == "" || vm.Packages.All < 4 {
		t.Errorf("the VM has %+v", vm.Packages)
	}
	for _, x := range []struct{ command, want string }{
		{"bash --version", "GNU bash, version 5."},
		{"/usr/bin/env bash -c 'a=(one two); echo ${#a[@]} ${BASH_VERSION:0:2}'", "2 5."},
		{"sh --version", "GNU bash"}, // it was asked for
		{"/usr/sbin/ethtool --version", "ethtool version 6."},
		{"ethtool -h", "--show-coalesce"},
		{"readlink -f /lib64/ld-linux-x86-64.so.2", "/lib/x86_64-linux-gnu/"},
		{"readlink /bin/modprobe", "bb"}, // which the kernel calls
		{"cat /etc/passwd", "root:x:0:0"},
		{"ls /lib/modules/*/irqlab/mana.ko", "mana.ko"}, // the first archive's is there still
	} {
		if got := output(t, vm, x.command+" 2>&1"); !strings.Contains(got, x.want) {
			t.Errorf("%s: %q, want %q in it", x.command, got, x.want)
		}
	}
}

func TestPackagesFit(t *testing.T) {
	const mib = 1 << 20
	for _, x := range []struct {
		size, initramfs int64
		memory          int
		want            string
	}{
		{15 * mib, 12 * mib, 512, ""},
		{115 * mib, 12 * mib, 512, ""},
		{116 * mib, 12 * mib, 512, "they are 59 packages of 116 MiB, too much for a guest of 512 MiB; give it 768 MiB, as in --shape memory=768M"},
		{242 * mib, 12 * mib, 768, "give it 1024 MiB"},
		{242 * mib, 12 * mib, 1024, ""}, // as was tried
	} {
		g := images.GuestPackages{Asked: []images.GuestPackage{{Name: "stress-ng"}}, All: 59, Size: x.size}
		err := fits(g, x.initramfs, x.memory)
		if (err == nil) != (x.want == "") || err != nil && !strings.Contains(err.Error(), x.want) {
			t.Errorf("%d and %d MiB in %d MiB: %v, want %q", x.size/mib, x.initramfs/mib, x.memory, err, x.want)
		}
	}
}
