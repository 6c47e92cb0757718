package patch

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// source is a made-up file. With few distinct lines, hunks fit in many places.
func source(r *rand.Rand, distinct int) []string {
	lines := make([]string, r.IntN(60)+5)
	for i := range lines {
		switch {
		case r.IntN(8) == 0:
			lines[i] = ""
		case distinct > 0:
			lines[i] = fmt.Sprintf("\tword%d();", r.IntN(distinct))
		default:
			lines[i] = fmt.Sprintf("\tline%d(%d);", i, r.Uint32())
		}
	}
	return lines
}

// edited is lines with n places changed.
func edited(r *rand.Rand, lines []string, n int) []string {
	lines = slices.Clone(lines)
	for range n {
		i := r.IntN(len(lines) + 1)
		switch r.IntN(3) {
		case 0:
			lines = slices.Insert(lines, i, fmt.Sprintf("\tnew%d();", r.Uint32()))
		case 1:
			if i < len(lines) && len(lines) > 1 {
				lines = slices.Delete(lines, i, i+1)
			}
		default:
			if i < len(lines) {
				lines[i] = fmt.Sprintf("\tother%d();", r.Uint32())
			}
		}
	}
	return lines
}

func joined(r *rand.Rand, lines []string) string {
	s := strings.Join(lines, "\n")
	if s != "" && r.IntN(6) > 0 {
		s += "\n"
	}
	return s
}

// What Apply does is what the real programs do: never anything else than GNU patch with the same fuzz, and all that git
// applies, but where a hunk's place is ambiguous.
func TestAgreesWithPatchAndGit(t *testing.T) {
	binary(t, "patch")
	binary(t, "git")
	r := rand.New(rand.NewPCG(1, 2))
	seen := map[string]int{}
	for n := range 120 {
		distinct := []int{0, 0, 6}[n%3]
		base := source(r, distinct)
		before, after := joined(r, base), joined(r, edited(r, base, 1+r.IntN(4)))
		there := before
		if n%4 > 0 {
			there = joined(r, edited(r, base, 1+r.IntN(5)))
		}
		dir := laid(t, tree("a/f.c", before, "b/f.c", after), Series{{Files: []File{{Old: "a/f.c", New: "b/f.c"}}}})
		diff, _ := command(t, dir, "", "git", "diff", "--no-index", "--no-prefix", "a/f.c", "b/f.c")
		if diff == "" {
			continue
		}
		s, err := Read(Input{"diff", strings.NewReader(diff)})
		if err != nil {
			t.Fatalf("%v\n%s", err, diff)
		}
		files := tree("f.c", there)
		got, err := Apply(files, s, Options{MaxFuzz: DefaultFuzz})
		if got == nil {
			t.Fatal(err)
		}
		gnu, gnuOK := gnuPatch(t, files, s)
		git, gitOK := gitApply(t, files, s)
		how := fits(got)
		ambiguous := strings.Contains(how, string(Ambiguous))
		fail := func(what string) {
			t.Errorf("case %d: %s: ours %q (%v)\n--- there\n%s\n--- diff\n%s\n--- ours\n%s\n--- theirs\n%s\n%s", n, what, how, err, there, diff, contents(got)["f.c"], gnu["f.c"], git["f.c"])
		}
		switch {
		case err == nil && !gnuOK:
			fail("GNU patch does not apply it")
		case err == nil && !maps.Equal(contents(got), gnu):
			fail("GNU patch has another result")
		case err != nil && gnuOK && !ambiguous && !fewWords(s) && !strings.Contains(diff, "\\ No newline"): // it does not always mind a last line's newline
			fail("GNU patch applies it")
		case err == nil && got.Fuzz() == 0 && !gitOK:
			fail("git does not apply it")
		case err != nil && gitOK && !ambiguous:
			fail("git applies it")
		case err == nil && gitOK && distinct == 0 && !maps.Equal(contents(got), git):
			fail("git has another result")
		}
		if err == nil {
			seen[fmt.Sprintf("applied, fuzz %d", got.Fuzz())]++
			if got.Fuzz() == 0 {
				checkReverse(t, files, s, got)
			}
		} else {
			for _, h := range got.Hunks {
				if h.Misfit != nil {
					seen[string(h.Misfit.Reason)]++
				}
			}
		}
	}
	t.Log(seen)
	for _, kind := range []string{"applied, fuzz 0", "applied, fuzz 1", "applied, fuzz 2", string(Ambiguous), string(Different)} {
		if seen[kind] == 0 {
			t.Errorf("no case was %s", kind)
		}
	}
}

// fewWords says whether some hunk's context could become blank lines only by dropping lines of it: that is no place for us.
func fewWords(s Series) bool {
	for _, f := range s[0].Files {
		for _, h := range f.Hunks {
			old, _ := h.sides()
			for fuzz := range DefaultFuzz + 1 {
				if p, q, ok := old.drops(fuzz); ok && !tells(old.lines[max(p, 0):len(old.lines)-max(q, 0)]) {
					return true
				}
			}
		}
	}
	return false
}

// checkReverse applies the reversed series to the result: the original is what must come out, wherever that is told at all.
func checkReverse(t testing.TB, files fstest.MapFS, s Series, r *Result) {
	t.Helper()
	now := maps.Clone(files)
	for _, f := range r.Files {
		if f.Removed {
			delete(now, f.Path)
		} else {
			now[f.Path] = &fstest.MapFile{Data: f.Content, Mode: f.Mode}
		}
	}
	back, err := Apply(now, s.Reverse(), Options{})
	if err != nil {
		if back != nil && strings.Contains(fits(back), string(Ambiguous)) {
			return
		}
		t.Fatalf("reversed it does not apply: %v", err)
	}
	for _, h := range append(slices.Clone(r.Hunks), back.Hunks...) {
		if h.Offset != 0 || len(h.Others) > 0 {
			return // found by its text alone, which may stand elsewhere, too
		}
	}
	for _, f := range back.Files {
		was, ok := files[f.Path]
		if ok == f.Removed {
			t.Fatalf("%s: there before: %v, removed by reversing: %v", f.Path, ok, f.Removed)
		}
		if ok && string(was.Data) != string(f.Content) {
			t.Fatalf("%s: reversed:\n%q\nbefore:\n%q", f.Path, f.Content, was.Data)
		}
	}
}
