package images

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseSpec(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]spec{
		"debian:7.3":                     {Debian: "7.3"},
		"debian:7.3.":                    {Debian: "7.3"},
		"debian:6.18.15":                 {Debian: "6.18.15"},
		"debian:6.1":                     {Debian: "6.1"},
		"debian:7.2.12-1~bpo13+1":        {Debian: "7.2.12-1~bpo13+1"},
		"debian:7.3.4+deb13-cloud-amd64": {Debian: "7.3.4+deb13-cloud-amd64"},
		"/boot/vmlinuz":                  {Path: "/boot/vmlinuz"},
		"a,b":                            {Path: "a,b"},
		"a.deb,b":                        {Path: "a.deb,b"},
		"a.deb":                          {Debs: []string{"a.deb"}},
		"x/a.deb,b.deb":                  {Debs: []string{"x/a.deb", "b.deb"}},
		"7.3":                            {Path: "7.3"},
		"git:linux@v7.2":                 {Commit: true},
		"git:a.deb":                      {Commit: true},
		"./git:linux":                    {Path: "./git:linux"},
	} {
		got, err := parseSpec(in)
		if err != nil || cmp.Diff(want, got) != "" {
			t.Errorf("parseSpec(%q) = %+v, %v; want %+v", in, got, err, want)
		}
	}
	for _, in := range []string{"", " ", "debian:", "debian:latest", "debian:7.3/x", "debian:../7", "debian:7 3", "debian:.7", "a\x00b", ".deb", "a.deb,.deb", "git:a\x00b"} {
		if got, err := parseSpec(in); err == nil {
			t.Errorf("parseSpec(%q) = %+v, want an error", in, got)
		}
	}
}

// A commit's kernel is what the cache's Build makes of it, and nothing without one; any other SPEC is what it names unless Build says otherwise.
func TestBuiltKernel(t *testing.T) {
	t.Parallel()
	cache, err := OpenCache(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	built := func(path string, err error) func(context.Context, string, Progress) (string, error) {
		return func(context.Context, string, Progress) (string, error) { return path, err }
	}
	broken := errors.New("it does not build")
	for name, tc := range map[string]struct {
		build func(context.Context, string, Progress) (string, error)
		spec  string
		want  string // of the error
	}{
		"nobody builds":     {nil, "git:linux@v7.2", `kernel "git:linux@v7.2": a commit's kernel has to be built`},
		"nothing was built": {built("", nil), "git:linux@v7.2", "a commit's kernel has to be built"},
		"built":             {built("/no/such/built", nil), "git:linux@v7.2", "kernel git:linux@v7.2: stat /no/such/built"},
		"does not build":    {built("", broken), "git:linux@v7.2", "kernel git:linux@v7.2: it does not build"},
		"named already":     {built("", errors.New("git:linux@v7.2: no such commit")), "git:linux@v7.2", "kernel git:linux@v7.2: no such commit"},
		"a path":            {built("", nil), "/no/such/tree", "stat /no/such/tree"},
		"a tree":            {built("", broken), "/no/such/tree", "kernel /no/such/tree: it does not build"},
	} {
		cache.Build = tc.build
		if _, err := cache.Kernel(t.Context(), tc.spec, nil); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

func FuzzParseSpec(f *testing.F) {
	for _, s := range []string{"debian:7.3", "debian:", "a.deb,b.deb", ",.deb", "debian:7.3.4-1~bpo13+1", "/x", "debian:1:2", "git:a@b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := parseSpec(s)
		if err != nil {
			return
		}
		set := 0
		for _, is := range []bool{got.Debian != "", len(got.Debs) > 0, got.Path != "", got.Commit} {
			if is {
				set++
			}
		}
		if set != 1 {
			t.Errorf("parseSpec(%q) = %+v: want exactly one meaning", s, got)
		}
		if strings.ContainsAny(got.Debian, "/ :\x00") {
			t.Errorf("parseSpec(%q) lets %q through to package names", s, got.Debian)
		}
		_ = nearest(sampleKernels, got.Debian) // must stand any version
	})
}

var sampleKernels = []candidate{
	{Release: "6.1.0-47-cloud-amd64", Version: "6.1.170-3", Suite: "bookworm"},
	{Release: "6.1.0-50-cloud-amd64", Version: "6.1.176-1", Suite: "bookworm"},
	{Release: "6.12.90+deb12-cloud-amd64", Version: "6.12.90-1~bpo12+1", Suite: "bookworm-backports"},
	{Release: "6.12.90+deb12.1-cloud-amd64", Version: "6.12.90-2~bpo12+1", Suite: "bookworm-backports"},
	{Release: "6.18.9+deb13-cloud-amd64", Version: "6.18.9-1~bpo13+1", Suite: "trixie-backports"},
	{Release: "6.18.15+deb13-cloud-amd64", Version: "6.18.15-1~bpo13+1", Suite: "trixie-backports"},
	{Release: "6.19.14+deb13-cloud-amd64", Version: "6.19.14-1~bpo13+1", Suite: "trixie-backports", Reason: "no modules"},
	{Release: "7.2.12+deb13-cloud-amd64", Version: "7.2.12-1~bpo13+1", Suite: "trixie-backports"},
	{Release: "7.2.12+deb14-cloud-amd64", Version: "7.2.12-1", Suite: "forky"},
	{Release: "7.3.4+deb13-cloud-amd64", Version: "7.3.4-1~bpo13+1", Suite: "trixie-backports"},
	{Release: "7.3.5+deb13-cloud-amd64", Version: "7.3.5-1~bpo13+1", Suite: "trixie-backports", Reason: "no modules"},
	{Release: "7.30.1+deb13-cloud-amd64", Version: "7.30.1-1~bpo13+1", Suite: "trixie-backports"},
}

func TestSelectKernel(t *testing.T) {
	t.Parallel()
	for want, release := range map[string]string{
		"7.3":                       "7.3.4+deb13-cloud-amd64", // not 7.30, and not the incomplete 7.3.5
		"7.30":                      "7.30.1+deb13-cloud-amd64",
		"7":                         "7.30.1+deb13-cloud-amd64",
		"6.18":                      "6.18.15+deb13-cloud-amd64", // 15 > 9
		"6.18.9":                    "6.18.9+deb13-cloud-amd64",
		"6.1":                       "6.1.0-50-cloud-amd64", // not 6.12, 6.18
		"6.1.170":                   "6.1.0-47-cloud-amd64",
		"6.1.0-47":                  "6.1.0-47-cloud-amd64",
		"6.1.0-47-cloud-amd64":      "6.1.0-47-cloud-amd64",
		"7.2":                       "7.2.12+deb14-cloud-amd64", // ~bpo sorts before
		"7.2.12-1~bpo13+1":          "7.2.12+deb13-cloud-amd64",
		"6.12.90":                   "6.12.90+deb12.1-cloud-amd64",
		"6.12.90-1~bpo12+1":         "6.12.90+deb12-cloud-amd64",
		"6.18.15+deb13-cloud-amd64": "6.18.15+deb13-cloud-amd64",
	} {
		for _, order := range [][]candidate{sampleKernels, reversed(sampleKernels)} {
			if got, err := selectKernel(order, want); err != nil || got.Release != release {
				t.Errorf("debian:%s is %q, %v; want %q", want, got.Release, err, release)
			}
		}
	}
	var incomplete *IncompleteKernelError
	if _, err := selectKernel(sampleKernels, "6.19"); !errors.As(err, &incomplete) || incomplete.Release != "6.19.14+deb13-cloud-amd64" ||
		!strings.Contains(err.Error(), "no modules") || !strings.Contains(err.Error(), "debian:6.18") {
		t.Errorf("debian:6.19: %v; want an IncompleteKernelError with reason and neighbours", err)
	}
	if _, err := selectKernel(sampleKernels, "7.3.5"); !errors.As(err, &incomplete) {
		t.Errorf("debian:7.3.5: %v; want an IncompleteKernelError", err)
	}
	var unknown *UnknownKernelError
	if _, err := selectKernel(sampleKernels, "7.4"); !errors.As(err, &unknown) || unknown.Near[0] != "debian:7.3" {
		t.Errorf("debian:7.4: %v; want an UnknownKernelError with debian:7.3 nearest", err)
	}
	if _, err := selectKernel(nil, "7.4"); !errors.As(err, &unknown) {
		t.Errorf("of nothing: %v", err)
	}
}

func reversed(in []candidate) []candidate {
	out := slices.Clone(in)
	slices.Reverse(out)
	return out
}

// Every line of the list must carry a SPEC that selects exactly that kernel.
func TestListedSpecsSelectTheirKernel(t *testing.T) {
	t.Parallel()
	infos := kernelInfos(sampleKernels, sampleKernels[:1])
	if len(infos) != len(sampleKernels) || infos[0].Release != "7.30.1+deb13-cloud-amd64" {
		t.Fatalf("infos %+v: want all, newest first", infos)
	}
	for _, i := range infos {
		got, err := selectKernel(sampleKernels, strings.TrimPrefix(i.Spec, "debian:"))
		if i.State == Incomplete {
			var incomplete *IncompleteKernelError
			if !errors.As(err, &incomplete) || i.Reason == "" {
				t.Errorf("%s: %v, reason %q; want it refused with a reason", i.Spec, err, i.Reason)
			}
			continue
		}
		if err != nil || got.Release != i.Release {
			t.Errorf("%s selects %q, %v; listed for %q", i.Spec, got.Release, err, i.Release)
		}
		if cached := i.Release == sampleKernels[0].Release; cached != (i.State == Cached) {
			t.Errorf("%s is %s", i.Spec, i.State)
		}
	}
}
