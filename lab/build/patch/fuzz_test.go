package patch

import (
	"bytes"
	"errors"
	"html"
	"io/fs"
	"strings"
	"testing"
)

// Whatever is read: no panic; only plain paths; what is written of a patch is read again as the same patch; what applies to a
// tree exactly, and is taken out again, leaves the tree as it was.
func FuzzRead(f *testing.F) {
	mail := mailText("[PATCH v2 1/2] lamp", inMail(lampDiff))
	for _, s := range []string{lampDiff, bellDiff + lampDiff, mail, boxFrom + mail + boxFrom + mail, encoded("[PATCH] x", "base64", inMail(lampDiff)), gzipped(mail), windows(lampDiff),
		multipart("x", "Content-Type: text/x-patch\n\n"+lampDiff), "<html><title>x</title><pre>" + html.EscapeString(lampDiff) + "</pre>",
		"diff --git a/x b/y\nrename from x\nrename to y\n", "diff --git a/x b/x\nGIT binary patch\nliteral 1\n", ofX(middle), "commit 0123456789012345678901234567890123456789\n\n    t\n\n" + bellDiff} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := Read(Input{"in", bytes.NewReader(data)})
		if err != nil {
			var e *ReadError
			if !errors.As(err, &e) || len(s) > 0 {
				t.Fatalf("%T %v", err, err)
			}
			return
		}
		for _, p := range s.Paths() {
			if !fs.ValidPath(p) || strings.Contains(strings.ToLower("/"+p+"/"), "/.git/") {
				t.Fatalf("path %q", p)
			}
		}
		for _, p := range s {
			checkWritten(t, p)
		}
		files := tree("lamp/lamp.c", lampFile(t), "x", numbered(1, 20))
		if r, err := Apply(files, s, Options{MaxFuzz: DefaultFuzz}); err == nil && r.Fuzz() == 0 {
			checkReverse(t, files, s, r)
		}
	})
}

// checkWritten reads what is written of a patch. Of a refused file, its text is not kept.
func checkWritten(t *testing.T, p *Patch) {
	t.Helper()
	for i := range p.Files {
		if f := &p.Files[i]; f.Refused != "" || strings.Contains(f.Old+f.New, "/dev/null") {
			return
		}
	}
	again, err := Read(Input{"in", bytes.NewReader(p.Diff())})
	if err != nil {
		t.Fatalf("%v\n%s", err, p.Diff())
	}
	if len(again) != 1 || !bytes.Equal(again[0].Diff(), p.Diff()) || again.ID() != p.ID() {
		t.Fatalf("read again:\n%q\nbefore:\n%q", again[0].Diff(), p.Diff())
	}
}

// A file and hunks that know nothing of each other.
func FuzzApply(f *testing.F) {
	f.Add(numbered(1, 20), middle, uint8(3))
	f.Add("a\nb", "@@ -1,2 +1,2 @@\n a\n-b\n\\ No newline at end of file\n+c\n", uint8(0))
	f.Add("a\na\na\n", "@@ -5,3 +5,2 @@ a\n a\n-a\n a\n", uint8(1))
	f.Add("", "@@ -0,0 +1 @@\n+a\n", uint8(0))
	f.Fuzz(func(t *testing.T, file, hunks string, fuzz uint8) {
		s, err := Read(Input{"in", strings.NewReader(ofX(hunks))})
		if err != nil {
			return
		}
		files := tree("x", file)
		r, err := Apply(files, s, Options{MaxFuzz: int(fuzz % 5)})
		if r == nil {
			t.Fatal(err)
		}
		if err == nil && r.Fuzz() == 0 {
			checkReverse(t, files, s, r)
		}
		for _, h := range r.Hunks {
			if (h.Misfit == nil) == (h.Line == 0) && h.Hunk > 0 {
				t.Fatalf("%+v", h)
			}
			if m := h.Misfit; m != nil && (m.Text == "" || m.Reason == "") {
				t.Fatalf("%+v", m)
			}
		}
	})
}
