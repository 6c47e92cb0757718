package images

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// initramfsMemo finds the initramfs that the same parts made before without reading the parts: a tenth of a second that every warm start would pay.
//
// What decides on an initramfs is the source of the agent, the toolchain, the cache's keys and the kernel's modules. The memo holds which files these were, and the
// archive they made; it is good for as long as every file is the one it was. Only kernels in the cache are remembered: modules elsewhere may come and go unseen.
type initramfsMemo struct {
	Parts   map[string]fileID // by path
	Entry   string            // name of the initramfs entry
	Modules []string
	Builtin []string
}

// memoPath is where the memo for a kernel lies; "" if there can be none.
func (c *Cache) memoPath(k Kernel) string {
	if k.ModulesDir == "" || !strings.HasPrefix(k.ModulesDir, filepath.Join(c.dir, kernelKind)+string(filepath.Separator)) {
		return ""
	}
	// What is compiled into this program decides too.
	h := sha256.New()
	fmt.Fprintf(h, "%d %d %q %v %q %q %s", initramfsFormat, busyboxFormat, urootCommands, busyboxAliases, wantedModules, buildFlags, os.Getenv("GOTOOLCHAIN"))
	fmt.Fprintf(h, " %q %s", k.ModulesDir, k.Release)
	return filepath.Join(c.dir, stateDir, "initramfs-"+k.Release+"-"+hex.EncodeToString(h.Sum(nil))[:16]+".json")
}

// initramfsParts identifies every file that decides on a kernel's initramfs; none for a kernel that is not remembered.
func (c *Cache) initramfsParts(ctx context.Context, k Kernel, keys *keys) (map[string]fileID, error) {
	if c.memoPath(k) == "" {
		return nil, nil
	}
	from, err := c.source(ctx)
	if err != nil {
		return nil, err
	}
	src := from.dir
	goTool, err := exec.LookPath("go")
	if err != nil {
		return nil, err
	}
	kernels := filepath.Join(c.dir, kernelKind) + string(filepath.Separator)
	name, _, _ := strings.Cut(strings.TrimPrefix(k.ModulesDir, kernels), string(filepath.Separator))
	entry := kernels + name
	files := []string{goTool, filepath.Join(src, "go.mod"), filepath.Join(src, "go.sum"), filepath.Join(entry, manifestName),
		keys.clientPath, filepath.Join(filepath.Dir(keys.clientPath), hostKeyFile)}
	// A directory changes when something appears in it or goes.
	err = filepath.WalkDir(filepath.Join(src, "guestagent"), func(path string, _ fs.DirEntry, err error) error {
		files = append(files, path)
		return err
	})
	if err != nil {
		return nil, err
	}
	parts := map[string]fileID{}
	for _, f := range files {
		if parts[f], err = identify(f); err != nil {
			return nil, err
		}
	}
	return parts, nil
}

// recallInitramfs returns the initramfs that was made of these parts before, if it is still there.
func (c *Cache) recallInitramfs(k Kernel, parts map[string]fileID) (path string, m initramfsMemo, ok bool) {
	memo := c.memoPath(k)
	if memo == "" || parts == nil {
		return "", m, false
	}
	data, err := os.ReadFile(memo)
	if err != nil || json.Unmarshal(data, &m) != nil || m.Entry == "" || !maps.Equal(m.Parts, parts) {
		return "", m, false
	}
	dir := filepath.Join(c.dir, initramfsKind, m.Entry)
	if checkEntry(dir) != nil {
		return "", m, false
	}
	c.touch(initramfsKind, m.Entry)
	return filepath.Join(dir, initramfsName), m, true
}

// rememberInitramfs notes what the parts have made, unless one of them has just been written: two writes within one tick of the file system's clock look like one.
func (c *Cache) rememberInitramfs(k Kernel, parts map[string]fileID, i Initramfs) {
	memo := c.memoPath(k)
	if memo == "" || parts == nil {
		return
	}
	for _, id := range parts {
		if time.Since(time.Unix(0, max(id.Made, id.Written))) < time.Second {
			return
		}
	}
	data, err := json.Marshal(initramfsMemo{Parts: parts, Entry: filepath.Base(filepath.Dir(i.Path)), Modules: i.Modules, Builtin: i.Builtin})
	if err == nil {
		_ = c.writeFile(memo, data)
	}
}
