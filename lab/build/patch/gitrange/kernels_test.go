package gitrange

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestEnds(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	for _, dir := range []string{"linux", "a@b"} {
		if err := os.Mkdir(filepath.Join(home, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, tc := range []struct {
		spec string
		want string // both ends, or the error
	}{
		{"~/linux@v6.18", "~/linux@v6.18"},
		{"~/linux@v6.18..v7.2", "~/linux@v6.18 ~/linux@v7.2"},
		{"~/linux@v6.18..", "~/linux@v6.18 ~/linux@HEAD"},
		{"~/linux@HEAD@{1}..next/main", "~/linux@HEAD@{1} ~/linux@next/main"},
		{home + "/a@b@v7.2..v7.3", home + "/a@b@v7.2 " + home + "/a@b@v7.3"},
		{"~/linux@v6.18...v7.2", "two ends"},
		{"~/linux@..v7.2", "two ends"},
		{"~/linux", "names no commit"},
		{"~/linux@", "names no commit"},
		{"~/no-such@v6.18", "no such folder"},
	} {
		got, err := Ends(tc.spec)
		if err != nil {
			if !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%s: %v, want %q", tc.spec, err, tc.want)
			}
			continue
		}
		if strings.Join(got, " ") != tc.want {
			t.Errorf("%s: %q, want %q", tc.spec, got, tc.want)
		}
		for _, spec := range got {
			dir, rev, err := Place(spec)
			if err != nil || !slices.Contains([]string{home + "/linux", home + "/a@b"}, dir) || !strings.HasSuffix(spec, "@"+rev) {
				t.Errorf("%s: %s, %s, %v", spec, dir, rev, err)
			}
		}
	}
	if _, _, err := Place("~/linux@v6.18..v7.2"); err == nil || !strings.Contains(err.Error(), "one commit") {
		t.Errorf("a range is no commit: %v", err)
	}
}
