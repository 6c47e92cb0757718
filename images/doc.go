// Package images finds or fetches, verifies, unpacks and caches what a run boots: QEMU, kernels with their modules, and the initramfs.
//
// Everything lives in a Cache: a private directory of entries that appear whole or not at all, so that a killed fetch, a full disk, a second
// process or a file changed by hand never leaves something half usable behind. Packages come through the host's apt-get with private state:
// nothing is installed, no root is needed, and apt's own signature and checksum verification stays on.
//
// The package knows nothing of machines, devices or scenarios: it hands out paths and argument prefixes.
package images
