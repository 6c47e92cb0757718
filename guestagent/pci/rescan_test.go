package pci

import (
	"errors"
	"io/fs"
	"testing"
)

func TestRemoveAndRescan(t *testing.T) {
	r := newTree(t)
	const address = "0000:81:00.0"
	r.write(dir(address)+"/remove", "")
	r.write(bus+"/rescan", "")
	if err := errors.Join(Remove(r.Root, address), RescanAll(r.Root)); err != nil {
		t.Fatal(err)
	}
	for _, file := range []string{dir(address) + "/remove", bus + "/rescan"} {
		if got, _ := r.String(file); got != "1" {
			t.Errorf("%s holds %q", file, got)
		}
	}
	if err := Remove(r.Root, "0000:99:00.0"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a function that there is not: %v", err)
	}
	if err := Remove(r.Root, "../../x"); err == nil {
		t.Error("an address that is none")
	}
}
