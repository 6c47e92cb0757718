package lab

import (
	"context"
	"fmt"
)

// Machine tells which of the VMs that configurations describe are one machine, to be booted once and forked for each: key is the same. made tells whether the cache has its
// snapshot already. What is missing to answer (QEMU, kernel, initramfs) is fetched or built.
func Machine(ctx context.Context, cfg Config) (key string, made bool, err error) {
	b, _, err := prepare(ctx, cfg)
	if err != nil {
		return "", false, err
	}
	if key, err = b.snapshotKey(); err != nil {
		return "", false, fmt.Errorf("snapshot: %w", err)
	}
	return key, b.cfg.Cache.HasSnapshot(key), nil
}
