package patch

import (
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"fmt"
	"html"
	"mime/quotedprintable"
	"slices"
	"strings"
	"testing"
	"unicode/utf16"
)

// A change of an invented file. Its second hunk has an empty line of context, and a removed line that begins with dashes.
const lampDiff = `diff --git a/lamp/lamp.c b/lamp/lamp.c
index 1111111..2222222 100644
--- a/lamp/lamp.c
+++ b/lamp/lamp.c
@@ -1,4 +1,4 @@
 int lamp;
-int old = 0;
+int new = 1; /* <&> ü */
 
 int shade;
@@ -20,5 +20,5 @@ int lamp_on(void)
 {
 	lamp = 1;
 
--- lamp;
+++ lamp;
 }
`

const bellDiff = `diff --git a/bell.c b/bell.c
new file mode 100644
index 0000000..3333333
--- /dev/null
+++ b/bell.c
@@ -0,0 +1 @@
+int bell;
`

func lampFile(t testing.TB) string {
	return "int lamp;\nint old = 0;\n\nint shade;\n" + strings.Repeat("/* wire */\n", 15) + "{\n\tlamp = 1;\n\n-- lamp;\n}\n"
}

func mailText(subject, body string) string {
	return "From: Lamp Lighter <lamp@example.org>\nTo: list@example.org\nSubject: " + subject +
		"\nDate: Mon, 2 Mar 2026 10:00:00 +0000\nMessage-ID: <" + strings.Join(strings.FieldsFunc(subject, func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9') }), ".") +
		"@example.org>\n" + body
}

func inMail(diff string) string {
	return "\nWhy it must be so.\n\nSigned-off-by: Lamp Lighter <lamp@example.org>\n---\n lamp/lamp.c | 4 ++--\n 1 file changed\n\n" + diff + "-- \n2.34.1\n\n"
}

const boxFrom = "From mboxrd@z Thu Jan  1 00:00:00 1970\n"

func crlf(s string) string { return strings.ReplaceAll(s, "\n", "\r\n") }

func encoded(subject, encoding string, text string) string {
	var b bytes.Buffer
	switch encoding {
	case "quoted-printable":
		w := quotedprintable.NewWriter(&b)
		w.Write([]byte(text))
		w.Close()
	case "base64":
		s := base64.StdEncoding.EncodeToString([]byte(text))
		for len(s) > 76 {
			b.WriteString(s[:76] + "\n")
			s = s[76:]
		}
		b.WriteString(s + "\n")
	}
	return mailText(subject, "Content-Type: text/plain; charset=utf-8\nContent-Transfer-Encoding: "+encoding+"\n\n"+b.String())
}

// flowed is a text as a mail program with format=flowed sends it: one blank before what begins with one.
func flowed(s string) string {
	lines := strings.Split(s, "\n")
	for i, l := range lines {
		if strings.HasPrefix(l, " ") && strings.TrimSpace(l) != "" {
			lines[i] = " " + l
		} else if l == " " {
			lines[i] = ""
		}
	}
	return strings.Join(lines, "\n")
}

func multipart(subject string, parts ...string) string {
	b := mailText(subject, "MIME-Version: 1.0\nContent-Type: multipart/mixed; boundary=\"cut\"\n\n")
	for _, p := range parts {
		b += "--cut\n" + p + "\n"
	}
	return b + "--cut--\n"
}

// nested is parts in parts.
func nested(depth int) string {
	if depth == 0 {
		return "Subject: x\n\nx\n"
	}
	return fmt.Sprintf("Subject: x\nContent-Type: multipart/mixed; boundary=b%dx\n\n--b%dx\n%s\n--b%dx--\n", depth, depth, nested(depth-1), depth)
}

func gzipped(s string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	w.Write([]byte(s))
	w.Close()
	return b.String()
}

func windows(s string) string {
	b := []byte{0xff, 0xfe}
	for _, u := range utf16.Encode([]rune(crlf(s))) {
		b = append(b, byte(u), byte(u>>8))
	}
	return string(b)
}

func latin1(s string) string {
	var b []byte
	for _, r := range s {
		b = append(b, byte(r))
	}
	return string(b)
}

// Every form gives the same one patch, known by its id, and applies.
func TestReadForms(t *testing.T) {
	want, err := Read(Input{"plain", strings.NewReader(lampDiff)})
	if err != nil {
		t.Fatal(err)
	}
	gnu := strings.Join(strings.Split(lampDiff, "\n")[2:], "\n")
	gnu = strings.Replace(gnu, "--- a/lamp/lamp.c", "--- linux-6.18.orig/lamp/lamp.c\t2026-03-02 10:00:00.000000000 +0000", 1)
	gnu = strings.Replace(gnu, "+++ b/lamp/lamp.c", "+++ linux-6.18/lamp/lamp.c\t2026-03-02 10:01:00.000000000 +0000", 1)
	page := html.EscapeString(lampDiff)
	const subject, title = "[PATCH v5 net] lamp: light it", "lamp: light it"
	for _, tt := range []struct{ name, text, title string }{
		{"git's diff", lampDiff, ""},
		{"without prefixes", strings.NewReplacer(" a/", " ", " b/", " ").Replace(lampDiff), ""},
		{"with git's other prefixes", strings.NewReplacer(" a/", " i/", " b/", " w/").Replace(lampDiff), ""},
		{"GNU's diff", gnu, ""},
		{"GNU's diff in CRLF", crlf(gnu), ""},
		{"GNU's diff -p0", strings.NewReplacer("linux-6.18.orig/lamp/lamp.c", "lamp/lamp.c.orig", "linux-6.18/lamp", "lamp").Replace(gnu), ""},
		{"Subversion's", "Index: lamp/lamp.c\n===================\n" + strings.NewReplacer("linux-6.18.orig/", "", "linux-6.18/", "").Replace(gnu), ""},
		{"blanks at line ends lost", strings.ReplaceAll(lampDiff, "\n \n", "\n\n"), ""},
		{"with a mark before UTF-8", "\xef\xbb\xbf" + lampDiff, ""},
		{"a Windows shell's UTF-16", windows(lampDiff), ""},
		{"gzipped", gzipped(boxFrom + mailText(subject, inMail(lampDiff))), title},
		{"git show", "commit 0123456789012345678901234567890123456789 (HEAD)\nAuthor: L <l@example.org>\nDate:   Mon\n\n    " + title + "\n\n    [PATCH] not this\n\n" + lampDiff, title},
		{"a mail", mailText(subject, inMail(lampDiff)), title},
		{"a mail in CRLF", crlf(mailText(subject, inMail(lampDiff))), title},
		{"a mailbox", boxFrom + mailText(subject, inMail(lampDiff)), title},
		{"git format-patch", "From 0123456789012345678901234567890123456789 Mon Sep 17 00:00:00 2001\n" + mailText(subject, inMail(lampDiff)), title},
		{"a mailbox of mboxrd's", boxFrom + mailText(subject, "\n>From here on\n>>From there\n"+inMail(lampDiff)), title},
		{"a mailbox of mboxcl's", boxFrom + mailText(subject, "Content-Length: 5\n"+inMail(lampDiff)), title},
		{"an encoded subject, folded", mailText("=?utf-8?q?=5BPATCH_v5_net=5D?=\n =?utf-8?b?bGFtcDogbGlnaHQgaXQ=?=", inMail(lampDiff)), title},
		{"quoted-printable", encoded(subject, "quoted-printable", inMail(lampDiff)), title},
		{"base64", encoded(subject, "base64", inMail(lampDiff)), title},
		{"base64 in CRLF", encoded(subject, "base64", crlf(inMail(lampDiff))), title},
		{"Latin-1", mailText(subject, "Content-Type: text/plain; charset=iso-8859-1\nContent-Transfer-Encoding: 8bit\n"+latin1(inMail(lampDiff))), title},
		{"format=flowed", mailText(subject, "Content-Type: text/plain; charset=utf-8; format=flowed\n"+flowed(inMail(lampDiff))), title},
		{"attached to a text", multipart(subject, "Content-Type: text/plain\n\nSee the patch.\n", "Content-Type: text/x-patch; name=l.patch\nContent-Disposition: attachment; filename=l.patch\n\n"+lampDiff), title},
		{"attached as an application's", multipart(subject, "Content-Type: text/plain\n\nSee.\n", "Content-Type: application/octet-stream; name=l.diff\nContent-Transfer-Encoding: base64\n\n"+base64.StdEncoding.EncodeToString([]byte(lampDiff))), title},
		{"git format-patch, attached", multipart("see this", "Content-Type: text/plain\n\nSee.\n", "Content-Type: text/x-patch\n\n"+boxFrom+mailText(subject, inMail(lampDiff))), title},
		{"forwarded", multipart("Fwd: this", "Content-Type: text/plain\n\nSee.\n", "Content-Type: message/rfc822\n\n"+mailText(subject, inMail(lampDiff))), title},
		{"in the text and attached", multipart(subject, "Content-Type: text/plain\n\n"+inMail(lampDiff), "Content-Type: text/x-patch\n\n"+lampDiff), title},
		{"with text beside it as HTML", multipart(subject, "Content-Type: text/plain\n\n"+inMail(lampDiff), "Content-Type: text/html\n\n<html><p>"+page+"</p></html>"), title},
		{"a signed mail", multipart(subject, "Content-Type: text/plain\n\n"+inMail(lampDiff), "Content-Type: application/pgp-signature\n\n-----BEGIN PGP SIGNATURE-----\n"), title},
		{"with a true author in the text", mailText(subject, "\nFrom: Lamp Lighter <lamp@example.org>\n"+inMail(lampDiff)), title},
		{"a page of lore's kind", "<!DOCTYPE html>\n<html><head><title>" + subject + " - Lamp Lighter</title></head><body><pre\nid=b>From: Lamp Lighter &lt;lamp@example.org&gt;\nTo: <b>x</b>\nSubject: <a\nhref=\"#r\">" + subject +
			"</a>\nMessage-ID: &lt;1@example.org&gt; (<a href=raw>raw</a>)\n\n" + html.EscapeString("Why.\n---\n") + "<span\nclass=head>" + strings.Replace(page, "\n@@", "\n</span><span class=hunk>@@", 1) + "</span>-- \n2.34.1\n</pre><hr><pre>reply\n</pre></body></html>", title},
		{"a page of patchwork's kind", "<html><head><title>[v5,net] lamp: light it - Patchwork</title></head><body><h1>[v5,net] lamp: light it</h1><pre class=content>Why.</pre><div id=patch><pre class=\"content\">\n" + page + "</pre></div></body></html>", title},
		{"a page of marc's kind", "<html><head><title>'[PATCH v5 net] lamp: light it' - MARC</title><style>a{}</style></head><body><pre>List: <a href=x>net</a>\nSubject:    " + subject + "\nFrom:       L &lt;l@example.org&gt;\nDate:  2026\nMessage-ID: 1@example.org\n\nWhy.\n\n" + page + "-- \n2\n</pre></body></html>", title},
		{"a page of spinics' kind", "<html><head><title>" + subject + " — Linux Lamps</title></head><body><h1>" + subject + "</h1><ul><li><em>From</em>: L</li></ul><pre>Why.\n\n" + page + "-- \n2.34.1\n\n</pre></body></html>", title},
		{"a page's text", subject + "\n\n" + subject + "\n\nWhy.\n---\nChanges in v5\n * none\n---\n\n" + lampDiff + "\nbase-commit: 1\n-- \n2.34.1\n", title},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := Read(Input{"in", strings.NewReader(tt.text)})
			if err != nil {
				t.Fatal(err)
			}
			if len(s) != 1 || s.ID() != want.ID() {
				t.Fatalf("%d patches:\n%s", len(s), s[0].Diff())
			}
			if s[0].Title != tt.title || (tt.title != "" && tt.name != "git show") != (s[0].Version == 5) || s[0].Source != "in" || len(s[0].Notes) > 0 {
				t.Errorf("%+v", *s[0])
			}
			r, err := Apply(tree("lamp/lamp.c", lampFile(t)), s, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if got := fits(r); got != "= =" {
				t.Error(got)
			}
			if want := strings.NewReplacer("int old = 0;", "int new = 1; /* <&> ü */", "-- lamp;", "++ lamp;").Replace(lampFile(t)); contents(r)["lamp/lamp.c"] != want {
				t.Errorf("%q", contents(r)["lamp/lamp.c"])
			}
		})
	}
}

// What several mails or files come to: the titles in order, and the notes.
func TestReadSeries(t *testing.T) {
	mail := func(subject, diff string) string { return boxFrom + mailText(subject, inMail(diff)) }
	one, two := mail("[PATCH 1/2] one", lampDiff), mail("[PATCH 2/2] two", bellDiff)
	cover := boxFrom + mailText("[PATCH 0/2] all of it", "\nlamp.c | 1 +\n\n1:  111 ! 1:  222 one\n    @@ lamp.c\n")
	quote := boxFrom + mailText("Re: [PATCH 1/2] one", "\nOn Monday, L wrote:\n> "+strings.ReplaceAll(lampDiff, "\n", "\n> ")+"\nGood.\n")
	for _, tt := range []struct {
		name   string
		inputs []string
		want   string // titles, then notes
	}{
		{"in order", []string{one + two}, "one, two"},
		{"out of order", []string{two + one}, "one, two"},
		{"with a cover letter", []string{cover + one + two}, "one, two"},
		{"with a reply that quotes", []string{cover + two + quote + one}, "one, two"},
		{"a reply with a diff of its own", []string{one + two + mail("Re: [PATCH 1/2] one", strings.ReplaceAll(bellDiff, "bell", "bello"))}, "one, two; Passed over: a reply with a diff of its own, \"one\" by Lamp Lighter <lamp@example.org>."},
		{"only a reply with a diff", []string{mail("Re: how", bellDiff)}, "how"},
		{"a mail of two lists", []string{one + one + two}, "one, two"},
		{"the same diff again, after it was taken back, and all of that twice", []string{
			mail("[PATCH 1/3] one", lampDiff) + mail("[PATCH 2/3] not", bellDiff) + mail("[PATCH 3/3] one", lampDiff),
			mail("[PATCH 1/3] one", lampDiff) + mail("[PATCH 2/3] not", bellDiff) + mail("[PATCH 3/3] one", lampDiff),
		}, "one, not, one"},
		{"files out of order", []string{two, one}, "one, two"},
		{"files that stand alone", []string{mail("b", bellDiff), mail("a", lampDiff)}, "b, a"},
		{"one missing", []string{strings.ReplaceAll(two, "2/2", "2/3")}, "two; Patch 1/3 is missing. Patch 3/3 is missing."},
		{"two series, each in its file", []string{one + two, mail("[PATCH 2/2] four", strings.ReplaceAll(bellDiff, "bell", "d")) + mail("[PATCH 1/2] three", strings.ReplaceAll(bellDiff, "bell", "c"))}, "one, two, three, four"},
		{"a series and a diff", []string{two + one, strings.ReplaceAll(bellDiff, "bell", "c")}, "one, two, "},
		{"saved as one text", []string{"[RFC 0/2] all\n\nHello.\n\n-- \n2.1\n\n[RFC 2/2] two\n\nWhy\n\n" + bellDiff + "-- \n2.1\n\n[RFC 1/2] one\n\n---\n\n" + lampDiff + "-- \n2.1\n"}, "one, two"},
		{"a thread's page", []string{"<html><title>[PATCH 1/2] one</title><body><pre>* [PATCH 0/2] all\nFrom: L @ 2026-03-02 10:00 UTC (permalink)\n\n</pre><pre>* [PATCH 2/2] two\nFrom: L &lt;l&gt; @ 2026-03-02 10:00 UTC (permalink)\n\n" +
			html.EscapeString(bellDiff) + "</pre><pre>* [PATCH 1/2] one\n\n" + html.EscapeString(lampDiff) + "</pre><pre>* Re: [PATCH 1/2] one\n\n&gt; diff --git a/x b/x\n&gt; @@ -1 +1 @@\n</pre>"}, "one, two"},
		{"a file that is in one tree only", []string{"Only in b: c.c\n" + lampDiff}, "; in, line 1: \"Only in b: c.c\": that file's text is not in the patch; diff -N puts it in."},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var in []Input
			for _, text := range tt.inputs {
				in = append(in, Input{"in", strings.NewReader(text)})
			}
			s, err := Read(in...)
			if err != nil {
				t.Fatal(err)
			}
			var titles []string
			for _, p := range s {
				titles = append(titles, p.Title)
			}
			got := strings.Join(titles, ", ")
			if n := s.Notes(); len(n) > 0 {
				got += "; " + strings.Join(n, " ")
			}
			if got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// What is refused, and in which words.
func TestReadRefuses(t *testing.T) {
	file := func(old, new string) string { return "--- " + old + "\n+++ " + new + "\n@@ -1 +1 @@\n-a\n+b\n" }
	git := func(lines string) string { return "diff --git a/x b/x\n" + lines }
	cut := func(lines int) string {
		return strings.Join(strings.SplitAfter(mailText("[PATCH] lamp", inMail(lampDiff)), "\n")[:lines], "")
	}
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", " \n", "it is empty"},
		{"text", "Hello.\n", "no patch is in it"},
		{"not text", "\x7fELF\x00\x00", "it is no text"},
		{"a cover letter", mailText("[PATCH 0/2] x", "\nHello.\n"), "only a series' cover letter"},
		{"a quote", mailText("Re: x", "\n> diff --git a/x b/x\n"), "only a reply that quotes"},
		{"two versions", boxFrom + mailText("[PATCH v2] lamp", inMail(lampDiff)) + boxFrom + mailText("[PATCH v5] lamp", inMail(bellDiff)), `more than one version is given: v2 "lamp" and v5 "lamp": give one`},
		{"one number twice", boxFrom + mailText("[PATCH 1/2] lamp", inMail(lampDiff)) + boxFrom + mailText("[PATCH 1/2] bell", inMail(bellDiff)), `two patches call themselves 1/2: "lamp" and "bell"`},
		{"git log", strings.Repeat("commit 0123456789012345678901234567890123456789\nAuthor: L <l>\n\n    title\n\n"+bellDiff, 2), "several commits as git log shows them"},
		{"cut in a hunk", cut(29), `in ("lamp"), line 24: half a patch: the text ends within hunk 2 of lamp/lamp.c, after 4 old and 4 new lines of 5 old and 5 new lines`},
		{"cut in a hunk, signature there", cut(27) + "-- \n2.34.1\n", "half a patch: the mail ends within hunk 2 of lamp/lamp.c, after 3 old and 3 new"},
		{"cut before the names", cut(15), "half a patch"},
		{"beginning is gone", "@@ -1 +1 @@\n-a\n+b\n", "half a patch: a hunk without the names"},
		{"wrapped lines", strings.Replace(lampDiff, "+int new = 1;", "+int new =\n1;", 1), "line 9: lamp/lamp.c, hunk 1: this line is neither context nor change"},
		{"edited by hand, one more", strings.Replace(lampDiff, "+int new", "+int more;\n+int new", 1), "line 5: lamp/lamp.c, hunk 1: its header promises 4 old and 4 new lines, its text has 4 old and 5 new lines"},
		{"edited by hand, one less", strings.Replace(lampDiff, "+int new = 1; /* <&> ü */\n", "", 1), "promises 4 old and 4 new lines, its text has 4 old and 3 new lines"},
		{"edited by hand, more at the end", lampDiff + "+more\n", "promises 5 old and 5 new lines, its text has 5 old and 6 new lines"},
		{"a hunk's header", git("--- a/x\n+++ b/x\n@@ -1 +b @@\n-a\n+b\n"), "its header is damaged"},
		{"a hunk that changes nothing", file("a/x", "b/x") + "@@ -3 +3 @@\n a\n", "changes nothing"},
		{"a NUL", strings.Replace(file("a/x", "b/x"), "+b", "+b\x00", 1), "a NUL byte"},
		{"lines behind the file's end", git("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@\n-a\n\\ No newline at end of file\n-b\n+a\n+c\n"), "lines follow one that is said to end the file"},
		{"a context diff", "*** a/x\t2026\n--- b/x\t2026\n***************\n*** 1 ****\n", "a context diff"},
		{"a merge", "diff --cc x\n@@@ -1 -1 +1 @@@\n", "the combined diff of a merge"},
		{"out of the tree", file("a/../x", "b/../x"), "../x: a path that leaves the tree"},
		{"out of the tree, in the middle", file("a/x/../../y", "b/x/../../y"), "a path that leaves the tree"},
		{"an absolute path", file("/etc/passwd", "/etc/passwd"), "/etc/passwd: an absolute path"},
		{"an absolute path behind a prefix", file("a//etc/passwd", "b//etc/passwd"), "/etc/passwd: a path that leaves the tree"},
		{"git's folder", file("a/.git/config", "b/.git/config"), ".git/config: a path in git's own folder"},
		{"git's folder, in capitals", file("a/x/.GIT/config", "b/x/.GIT/config"), "a path in git's own folder"},
		{"a rename out of the tree", git("similarity index 100%\nrename from x\nrename to ../x\n"), "../x: a path that leaves the tree"},
		{"a quoted name with a newline", git("rename from \"x\\n\"\nrename to y\n"), "not printable"},
		{"a quoted name with a NUL", git("rename from \"x\\000\"\nrename to y\n"), "not printable"},
		{"a backslash", file(`a/x\y`, `b/x\y`), "leaves the tree, or is not a plain one"},
		{"two names", file("a/x", "b/y"), "a/x and b/y: which file is meant cannot be told"},
		{"no file", file("/dev/null", "/dev/null"), "a change of no file"},
		{"a device's mode", git("new file mode 060000\n"), "mode 060000: not that of a file"},
		{"half a header", git("index 1..2 100644\n"), "half a patch: nothing is said of how x changes"},
		{"half a header, no +++", git("--- a/x\n"), "half a patch: a line with +++ should follow"},
		{"damaged compression", gzipped(lampDiff)[:40], "its compression is damaged"},
		{"mails in mails", strings.Repeat("Subject: x\nContent-Type: message/rfc822\n\n", 30), "too often"},
		{"parts in parts", nested(20), "too often"},
		{"damaged base64", mailText("x", "Content-Transfer-Encoding: base64\n\n!!!!\n"), "a damaged mail"},
		{"a cut multipart", multipart("x", "Content-Type: text/plain\n\n"+lampDiff)[:400], "a damaged mail"},
		{"two names, git's", git("--- a/x\n+++ b/y\n@@ -1 +1 @@\n-a\n+b\n"), "which file is meant cannot be told"},
		{"an unknown encoding", mailText("x", "Content-Transfer-Encoding: rot13\n\nx\n"), "a damaged mail"},
		{"two cover letters with diffs", boxFrom + mailText("[PATCH 0/2] a", inMail(lampDiff)) + boxFrom + mailText("[PATCH 0/2] b", inMail(bellDiff)), "only diffs in cover letters"},
		{"too many lines", strings.Repeat("\n", maxLines+1), "more than 4194304 lines"},
		{"too large", gzipped(strings.Repeat(strings.Repeat(" ", 1<<20), 65)), "it is larger than 64 MiB"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := Read(Input{"in", strings.NewReader(tt.text)})
			if err == nil {
				t.Fatalf("read as %+v\n%s", *s[0], s[0].Diff())
			}
			if _, ok := err.(*ReadError); !ok || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got  %v\nwant %s", err, tt.want)
			}
		})
	}
	if _, err := Read(); err == nil {
		t.Error("no input is no error")
	}
	// Versions are refused across inputs, too, if the title is one.
	_, err := Read(Input{"a", strings.NewReader(mailText("[PATCH v2] lamp", inMail(lampDiff)))}, Input{"b", strings.NewReader(mailText("[PATCH v3] Lamp", inMail(bellDiff)))})
	if err == nil || !strings.Contains(err.Error(), "more than one version") {
		t.Error(err)
	}
}

func TestSubjects(t *testing.T) {
	for _, tt := range []struct{ in, want string }{
		{"[PATCH] a", `"a" v1 0/0 [] false`},
		{"[PATCH v5 net] net: a", `"net: a" v5 0/0 [net] false`},
		{"[RFC PATCH v2 03/12] a", `"a" v2 3/12 [RFC] false`},
		{"[PATCHv3 1/2] a", `"a" v3 1/2 [] false`},
		{"[netdev] [PATCH net-next,v4 1/2] a", `"a" v4 1/2 [netdev net-next] false`},
		{"Re: [PATCH 1/2] a", `"a" v1 1/2 [] true`},
		{"AW: Re: [PATCH] a", `"a" v1 0/0 [] true`},
		{"Fwd: [PATCH] a", `"a" v1 0/0 [] false`},
		{"[v5,net] a [b] c", `"a [b] c" v5 0/0 [net] false`},
		{"a\n b\x1b[1m", `"a b?[1m" v1 0/0 [] false`},
	} {
		s := parseSubject(tt.in)
		if got := fmt.Sprintf("%q v%d %d/%d %v %v", s.title, s.version, s.number, s.total, s.tags, s.reply); got != tt.want {
			t.Errorf("%q: got %s, want %s", tt.in, got, tt.want)
		}
	}
}

// Names and modes, as the programs write them.
func TestReadFiles(t *testing.T) {
	for _, tt := range []struct{ name, diff, want string }{
		{"rename", "diff --git a/x b/y\nsimilarity index 100%\nrename from x\nrename to y\n", "x>y 0>0"},
		{"rename with a blank and quotes", "diff --git \"a/x \\\"\" \"b/\\303\\274\"\nrename from \"x \\\"\"\nrename to \"\\303\\274\"\n", `x ">ü 0>0`},
		{"copy", "diff --git a/x b/y\nsimilarity index 100%\ncopy from x\ncopy to y\n", "x>y copy 0>0"},
		{"mode", "diff --git a/x y b/x y\nold mode 100644\nnew mode 100755\n", "x y>x y 644>755"},
		{"empty file", "diff --git a/d/x b/d/x\nnew file mode 100644\nindex 000..111\n", ">d/x 0>644"},
		{"empty file removed", "diff --git a/d/x b/d/x\ndeleted file mode 100755\nindex 000..111\n", "d/x> 755>0"},
		{"binary", "diff --git a/x b/x\nindex 1..2 100644\nGIT binary patch\nliteral 1\nIcmZ\n\nliteral 0\nHcmV\n\n", "x>x 0>0 (a binary change)"},
		{"binary, named only", "diff --git a/x b/x\nindex 1..2 100644\nBinary files a/x and b/x differ\n", "x>x 0>0 (a binary change)"},
		{"binary, GNU's", "Binary files linux.orig/x.bin and linux/x.bin differ\n", "x.bin>x.bin 0>0 (a binary change)"},
		{"symlink", "diff --git a/x b/x\nnew file mode 120000\nindex 0..1\n--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+/etc\n\\ No newline at end of file\n", ">x 0>0 (a symbolic link)"},
		{"submodule", "diff --git a/x b/x\nindex 1..2 160000\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-Subproject commit 1\n+Subproject commit 2\n", "x>x 0>0 (a submodule)"},
		{"GNU's new file by its time", "--- o/x\t1970-01-01 00:00:00.000000000 +0000\n+++ n/x\t2026-01-01 00:00:00 +0000\n@@ -0,0 +1 @@\n+a\n", ">x 0>0"},
		{"GNU's removed file by its time", "--- o/x\t2026-01-01 00:00:00 +0000\n+++ n/x\t1970-01-01 01:00:00.000000000 +0100\n@@ -1 +0,0 @@\n-a\n", "x> 0>0"},
		{"GNU's new file, by the prefix of another", "--- o/x\n+++ n/x\n@@ -1 +1 @@\n-a\n+b\n--- /dev/null\n+++ n/y\n@@ -0,0 +1 @@\n+a\n", "x>x 0>0, >y 0>0"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := Read(Input{"in", strings.NewReader(tt.diff)})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range s[0].Files {
				g := f.Old + ">" + f.New
				if f.Copy {
					g += " copy"
				}
				g += fmt.Sprintf(" %o>%o", f.OldMode, f.NewMode)
				if f.Refused != "" {
					g += " (" + f.Refused + ")"
				}
				got = append(got, g)
			}
			if g := strings.Join(got, ", "); g != tt.want {
				t.Errorf("got %s, want %s", g, tt.want)
			}
			// What is written is read as the same; of what is refused, only the files count.
			if slices.ContainsFunc(s[0].Files, func(f File) bool { return f.Refused != "" }) {
				return
			}
			again, err := Read(Input{"in", bytes.NewReader(s[0].Diff())})
			if err != nil || again.ID() != s.ID() || !bytes.Equal(again[0].Diff(), s[0].Diff()) {
				t.Errorf("%v\n%s", err, s[0].Diff())
			}
		})
	}
}

// A mailbox marks a line that begins with From, as a wrapped one of quoted-printable text may; the mark is no text of the patch.
func TestReadUnmarksFrom(t *testing.T) {
	s := parsed(t, boxFrom+mailText("[PATCH] a", "Content-Transfer-Encoding: quoted-printable\n\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b =\n>From here\n"))
	if got := s[0].Files[0].Hunks[0].Lines[1].Text; got != "b From here" {
		t.Errorf("%q", got)
	}
}

// What a page's program writes into text is no text of the page.
func TestReadSkipsScripts(t *testing.T) {
	s := parsed(t, "<html><pre>"+html.EscapeString(bellDiff)+"<script>\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n</script></pre></html>")
	if len(s[0].Files) != 1 {
		t.Errorf("%+v", s[0].Files)
	}
}
