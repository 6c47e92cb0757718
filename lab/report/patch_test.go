package report

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"testing/fstest"
	"unicode/utf8"

	"irqlab/lab/build/patch"
	"irqlab/lab/layout"
)

const bellMail = `From: Bell Ringer <bell@example.org>
Subject: [PATCH v3 net 2/2] bell: ring it where people can hear it, whatever the weather over the town may be today
Message-ID: <1@example.org>

Why.
---
--- a/bell/bell.c
+++ b/bell/bell.c
@@ -1,3 +1,3 @@
 int bell;
-int rope = 1;
+int rope = 2;
 int tower;
@@ -4,7 +4,7 @@ static int ring_the_bell_with_all_the_strength_that_there_is(struct bell *bell, int times)
 {
 	int i;
 	int j;
-	ring(bell);
+	ring(bell, times);
 	for (;;)
 		wait();
 }
@@ -30,3 +30,3 @@ int silent(void)
 	quiet();
-	return 0;
+	return 1;
 }
--- /dev/null
+++ b/docs/new
@@ -0,0 +1 @@
+a
--- a/gone.c
+++ b/gone.c
@@ -1 +1 @@
-a
+b
-- 
2.34.1
`

const bellText = "int bell;\nint rope = 1;\nint tower;\n" +
	"static int ring_the_bell_with_all_the_strength_that_there_is(struct bell *bell, int times)\n{\n\tlong i;\n\tint j;\n\tring(bell);\n\tfor (;;)\n\t\twait();\n}\n" +
	"int silent(void)\n{\n\tquiet();\n\treturn \x1b[31m0;\n}\n"

func TestPatch(t *testing.T) {
	s, err := patch.Read(patch.Input{Name: "bell.eml", R: strings.NewReader(bellMail)})
	if err != nil {
		t.Fatal(err)
	}
	show := func(tree fstest.MapFS) (string, error) {
		r, err := patch.Apply(tree, s, patch.Options{MaxFuzz: patch.DefaultFuzz, Outside: func(p string) bool { return strings.HasPrefix(p, "docs/") }})
		if r == nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		if err := Patch(&b, s, r); err != nil {
			t.Fatal(err)
		}
		for l := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(strings.TrimSuffix(l, "\n")); n > layout.Default {
				t.Errorf("%d columns: %s", n, l)
			}
		}
		return b.String(), err
	}
	got, err := show(fstest.MapFS{"bell/bell.c": &fstest.MapFile{Data: []byte(bellText), Mode: 0o644}})
	var failed *patch.ApplyError
	if !errors.As(err, &failed) {
		t.Fatal(err)
	}
	const want = `2/2 v3 bell: ring it where people can hear it, whatever the weather over the
town may be today
  bell.eml, id ca1ac358872b
note: Patch 1/2 is missing.
not built, so passed over: docs/new

bell/bell.c
  hunk  line  fits               function
  ------------------------------------------------------------------------------
   1/3     1  exact
   2/3     5  fuzz 2, offset +1  static int ring_the_bell_with_all_the_strength…
   3/3     -  NO: different      int silent(void)

gone.c
  NO: file missing

bell/bell.c, hunk 3 of 3 (bell.eml, line 23): 2 of the 3 lines that it expects
stand near line 14, the others differ: rebase it by hand.
  expected:
                  quiet();
  !               return 0;
          }
  there:
       14         quiet();
  !    15         return  [31m0;
       16 }

gone.c: the file gone.c is not there: is the patch against another kernel, or
made in another folder than the tree's root?
  expected:
  !       a

does not apply: 2 of 4 hunks (1 exact, 1 with fuzz)
`
	if got != want {
		t.Errorf("got\n%s", got)
	}
	got, err = show(fstest.MapFS{"bell/bell.c": &fstest.MapFile{Data: []byte(strings.Replace(bellText, "\x1b[31m", "", 1)), Mode: 0o644}, "gone.c": &fstest.MapFile{Data: []byte("a\n"), Mode: 0o644}})
	if err != nil {
		t.Fatal(err)
	}
	if want := "applies: 4 hunks (2 exact, 1 at an offset, 1 with fuzz); look at those with\nfuzz: up to 2 lines of context may differ\n"; !strings.HasSuffix(got, want) {
		t.Errorf("got\n%s", got)
	}
}
