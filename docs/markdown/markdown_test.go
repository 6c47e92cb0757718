package markdown

import (
	"slices"
	"testing"
)

const page = "# Why `it` is\n" +
	"\n" +
	"A [link](a%20b.md#c), and `irqlab\nrun`.\n" +
	"\n" +
	"| x | `a \\| b` |\n|---|---|\n| 1 | [two](two.md) |\n" +
	"\n" +
	"```console head=2 status=1\n$ cat > f <<END\n> a\n> END\n$ echo\n\nout\n```\n" +
	"\n" +
	"    indented\n" +
	"\n" +
	"* item\n\n  ```sh\n  irqlab\n  ```\n"

func TestParse(t *testing.T) {
	p, err := Parse("page.md", []byte(page))
	if err != nil {
		t.Fatal(err)
	}
	var spans, links []string
	for _, s := range p.Spans {
		spans = append(spans, s.Text)
	}
	for _, l := range p.Links {
		links = append(links, l.Text)
	}
	if want := []string{"it", "irqlab run", "a | b"}; !slices.Equal(spans, want) {
		t.Errorf("spans %q, want %q", spans, want)
	}
	if want := []string{"a b.md#c", "two.md"}; !slices.Equal(links, want) || p.Links[0].Line != 3 || p.Links[1].Line != 8 {
		t.Errorf("links %+v, want %q in lines 3 and 8", p.Links, want)
	}
	if !p.Anchors["why-it-is"] || len(p.Anchors) != 1 {
		t.Errorf("anchors %v", p.Anchors)
	}
	for i, want := range []Text{{Language: "console", Line: 11}, {Text: "indented\n", Line: 19}, {Text: "irqlab\n", Language: "sh", Line: 24}} {
		if i >= len(p.Blocks) {
			t.Fatalf("%d blocks", len(p.Blocks))
		}
		b := p.Blocks[i]
		if b.Language != want.Language || b.Line != want.Line || want.Text != "" && b.Text != want.Text {
			t.Errorf("block %+v, want %+v", b, want)
		}
	}
	b := p.Blocks[0]
	if b.Options["head"] != "2" || b.Options["status"] != "1" || page[b.Start:b.End] != b.Text {
		t.Errorf("options %v, text %q where the source has %q", b.Options, b.Text, page[b.Start:b.End])
	}

	typed := Console(b.Text)
	if len(typed) != 2 || typed[0].Command != "cat > f <<END\na\nEND\n" || typed[0].Start != typed[0].End || typed[1].Command != "echo\n" {
		t.Fatalf("typed %+v", typed)
	}
	if got := b.Text[typed[1].Start:typed[1].End]; got != "\nout\n" {
		t.Errorf("what came of echo: %q", got)
	}
}

// A word that says nothing to anybody would be a slip, such as head:2.
func TestOptions(t *testing.T) {
	if _, err := Parse("page.md", []byte("```console head:2\n$ x\n```\n")); err == nil {
		t.Error("head:2 is taken")
	}
}

// Output may look like what goes on a command.
func TestConsoleOutput(t *testing.T) {
	typed := Console("$ a\nx\n> y\n$ b\n")
	if len(typed) != 2 || typed[0].Command != "a\n" || typed[0].End-typed[0].Start != len("x\n> y\n") || typed[1].Command != "b\n" {
		t.Errorf("%+v", typed)
	}
}
