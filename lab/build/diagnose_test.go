package build

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

const (
	testModule = "drivers/net/ethernet/microsoft/mana"
	testTree   = "/usr/src/linux-headers-7.3.4-common"
)

func TestDiagnose(t *testing.T) {
	isFile := func(name string) bool { return name == testModule+"/mana_en.c" }
	const en = testModule + "/mana_en.c"
	for _, tt := range []struct {
		name, line string
		warning    Warning
		error      Diagnostic
		fallback   Diagnostic
	}{
		{name: "in the module's directory", line: "mana_en.c:12:5: warning: unused variable 'x' [-Wunused-variable]", warning: Warning{en, 12, "unused variable 'x' [-Wunused-variable]"}},
		{name: "absolute", line: "/build/" + en + ":12:5: error: 'x' undeclared", error: Diagnostic{en, 12, "'x' undeclared"}},
		{name: "a new file", line: "new.c:1: error: no", error: Diagnostic{testModule + "/new.c", 1, "no"}},
		{name: "a header", line: testTree + "/include/net/mana/gdma.h:3:1: warning: w", warning: Warning{"include/net/mana/gdma.h", 3, "w"}},
		{name: "a header of an older kernel", line: "./include/linux/pci.h:3:1: error: e", error: Diagnostic{"include/linux/pci.h", 3, "e"}},
		{name: "the toolchain's own", line: "/usr/include/stdio.h:3:1: error: e", error: Diagnostic{"/usr/include/stdio.h", 3, "e"}},
		{name: "fatal", line: "mana_en.c:3:10: fatal error: no.h: No such file or directory", error: Diagnostic{en, 3, "no.h: No such file or directory"}},
		{name: "objtool", line: "mana_en.o: warning: objtool: f+0x1: unreachable instruction", warning: Warning{testModule + "/mana_en.o", 0, "objtool: f+0x1: unreachable instruction"}},
		{name: "modpost", line: `ERROR: modpost: "nowhere" [mana.ko] undefined!`, error: Diagnostic{Text: `modpost: "nowhere" [mana.ko] undefined!`}},
		{name: "modpost warns", line: `WARNING: modpost: missing MODULE_DESCRIPTION() in mana.o`, warning: Warning{Text: "modpost: missing MODULE_DESCRIPTION() in mana.o"}},
		{name: "linker", line: "x86_64-linux-gnu-ld: mana_en.o: in function `f': multiple definition", error: Diagnostic{Text: "ld: mana_en.o: in function `f': multiple definition"}},
		{name: "a fault of the linker's", line: "/usr/bin/ld: kernel/irq/matrix.o: in function `f':\nmatrix.c:(.text+0x1a): undefined reference to `g'",
			error: Diagnostic{Text: "ld: kernel/irq/matrix.o: in function `f': undefined reference to `g'"}},
		{name: "a fault that is nowhere", line: "ld: init.o:(.data+0x8): undefined reference to `g'", error: Diagnostic{Text: "ld: init.o:(.data+0x8): undefined reference to `g'"}},
		{name: "where without a fault", line: "ld: kernel/irq/matrix.o: in function `f':"},
		{name: "make", line: "make[2]: *** [scripts/Makefile.build:1: mana_en.o] Error 1", fallback: Diagnostic{Text: "make: [scripts/Makefile.build:1: mana_en.o] Error 1"}},
		{name: "a Makefile", line: "/build/" + testModule + "/Makefile:4: *** missing separator.  Stop.", fallback: Diagnostic{testModule + "/Makefile", 4, "make: missing separator.  Stop."}},
		{name: "what is included", line: "In file included from mana_en.c:3:"},
		{name: "a note", line: "mana_en.c:3:10: note: declared here"},
		{name: "what is done", line: "  CC [M]  mana_en.o"},
		{name: "escapes", line: "mana_en.c:3:10: error: \x1b[31mred\xff", error: Diagnostic{en, 3, "?[31mred?"}},
	} {
		got := diagnose("CC\n"+tt.line+"\r\n"+tt.line+"\nend", testModule, testTree, isFile)
		var want said
		if tt.warning != (Warning{}) {
			want.warnings = []Warning{tt.warning}
		}
		if tt.error != (Diagnostic{}) {
			want.errors = []Diagnostic{tt.error}
		}
		if tt.fallback != (Diagnostic{}) {
			want.fallback = []Diagnostic{tt.fallback}
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", tt.name, got, want)
		}
	}
	long := diagnose("mana_en.c:1: error: "+strings.Repeat("é", 1000), testModule, testTree, isFile)
	if len(long.errors) != 1 || len(long.errors[0].Text) > maxText+10 || !strings.HasSuffix(long.errors[0].Text, "é…") {
		t.Errorf("a long line gave %+v", long.errors)
	}
}

func TestCompileError(t *testing.T) {
	many := make([]Diagnostic, maxErrors+3)
	for i := range many {
		many[i] = Diagnostic{"a.c", i + 1, "e"}
	}
	stop := Diagnostic{Text: "make: stop"}
	for _, tt := range []struct {
		name string
		said said
		want []Diagnostic
		more int
	}{
		{"the tools' words before make's", said{errors: many[:1], fallback: []Diagnostic{stop}}, many[:1], 0},
		{"make's where there are no others", said{fallback: []Diagnostic{stop}}, []Diagnostic{stop}, 0},
		{"no more than some", said{errors: many}, many[:maxErrors], 3},
	} {
		e := compileError("m", tt.said, "\ntail")
		if !slices.Equal(e.Errors, tt.want) || e.More != tt.more || e.Output != "tail" {
			t.Errorf("%s: %+v", tt.name, e)
		}
	}
	if e := compileError("m", said{}, ""); len(e.Errors) != 1 {
		t.Errorf("no words at all gave %+v", e)
	}
}

func TestAdded(t *testing.T) {
	before := []Warning{{"a.c", 1, "w"}, {"a.c", 9, "w"}, {"b.c", 1, "x"}}
	now := []Warning{{"a.c", 5, "w"}, {"a.c", 12, "w"}, {"a.c", 20, "w"}, {"b.c", 1, "y"}, {"c.c", 1, "x"}}
	if got, want := added(now, before), now[2:]; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func FuzzDiagnose(f *testing.F) {
	f.Add("a.c:1:2: warning: w\nERROR: modpost: x\nmake: *** y\nld: z\n")
	f.Fuzz(func(t *testing.T, output string) {
		s := diagnose(output, testModule, testTree, func(string) bool { return false })
		for _, d := range append(s.errors, s.fallback...) {
			if len(d.Text) > maxText+20 || strings.ContainsAny(d.Text, "\x1b\x00\n") {
				t.Errorf("%q", d.Text)
			}
		}
	})
}

func TestOwns(t *testing.T) {
	for name, want := range map[string]bool{
		testModule + "/mana_en.c":           true,
		testModule + "/sub/x.h":             true,
		"include/net/mana/gdma.h":           true,
		"include/linux/mana.h":              true,
		"include/linux/pci.h":               false,
		"include/net/mana_other/gdma.h":     false,
		"include/net/mana/gdma.c":           false,
		testModule:                          false,
		testModule + "-x/a.c":               false,
		"drivers/infiniband/hw/mana/main.c": false,
		"kernel/irq/matrix.c":               false,
		"Makefile":                          false,
	} {
		if Owns(testModule, name) != want {
			t.Errorf("%s: %v", name, !want)
		}
	}
}

func TestPlaces(t *testing.T) {
	for _, tt := range []struct{ name, tool, headers string }{
		{"usr/bin/x86_64-linux-gnu-gcc-14", "usr/bin/x86_64-linux-gnu-gcc-14", ""},
		{"bin/dash", "usr/bin/dash", ""},
		{"lib/x86_64-linux-gnu/libc.so.6", "usr/lib/x86_64-linux-gnu/libc.so.6", ""},
		{"usr/share/bison/skeletons/c.m4", "usr/share/bison/skeletons/c.m4", ""},
		{"usr/share/doc/gcc/README", "", ""},
		{"usr/share/locale/de/x.mo", "", ""},
		{"usr/libexec/gcc/x86_64-linux-gnu/14/lto1", "", ""},
		{"usr/lib/gcc/x86_64-linux-gnu/14/libgcc.a", "usr/lib/gcc/x86_64-linux-gnu/14/libgcc.a", ""},
		{"usr/lib/x86_64-linux-gnu/libcrypto.a", "", ""},
		{"usr/lib/x86_64-linux-gnu/libasan.so.8", "", ""},
		{"usr/lib/linux/uapi/x86/asm/errno.h", "usr/lib/linux/uapi/x86/asm/errno.h", ""},
		{"usr/lib/linux/uapi/arm/asm/errno.h", "", ""},
		{"etc/passwd", "", ""},
		{"usr/src/linux-headers-7.3.4-common/include/linux/pci.h", "", "usr/src/linux-headers-7.3.4-common/include/linux/pci.h"},
		{"usr/src/linux-headers-7.3.4-common/arch/x86/Makefile", "", "usr/src/linux-headers-7.3.4-common/arch/x86/Makefile"},
		{"usr/src/linux-headers-7.3.4-common/arch/arm/Makefile", "", ""},
		{"usr/lib/linux-kbuild-7.3.4/scripts/mod/modpost", "usr/lib/linux-kbuild-7.3.4/scripts/mod/modpost", "usr/src/linux-kbuild-7.3.4/scripts/mod/modpost"},
		{"usr/src/linux-kbuild-7.3.4", "", ""},
	} {
		if got := toolPlace(tt.name); got != tt.tool {
			t.Errorf("tool %s goes to %q, want %q", tt.name, got, tt.tool)
		}
		if got := headersPlace(tt.name); got != tt.headers {
			t.Errorf("header %s goes to %q, want %q", tt.name, got, tt.headers)
		}
	}
	for _, tt := range []struct {
		name string
		want bool
	}{
		{"Makefile", true}, {"Kbuild", true}, {"drivers/gpu/drm/Kconfig", true}, {"drivers/gpu/drm/Kconfig.debug", true}, {"include/linux/pci.h", true}, {"arch/x86/kernel/irq.c", true},
		{"arch/arm/kernel/irq.c", false}, {"kernel/bounds.c", true}, {"kernel/irq/matrix.c", false}, {"kernel/sched/sched.h", true}, {"tools/objtool/check.c", true}, {"tools/perf/perf.c", false},
		{testModule + "/mana_en.c", true}, {"drivers/net/ethernet/intel/e1000/x.c", false}, {"Documentation/x.rst", false},
	} {
		if got := partOfPrepared(tt.name, testModule); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}

func TestNames(t *testing.T) {
	for text, want := range map[string]string{
		"gcc-14 (Debian 14.2.0-19) 14.2.0":                                       "gcc-14",
		"x86_64-linux-gnu-gcc-14 (Debian 14.2.0-19) 14.2.0":                      "gcc-14",
		"linux-headers-6.1.0-50-common (= 6.1.176-1), linux-compiler-gcc-12-x86": "gcc-12",
		"gcc-16-for-host, linux-base":                                            "gcc-16",
		"clang version 19":                                                       "",
	} {
		if got := compilerOf(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := configured([]byte("# CONFIG_A is not set\nCONFIG_AB=y\nCONFIG_B=\"x y\"\n"), "CONFIG_B"); got != "x y" {
		t.Errorf("got %q", got)
	}
	if got := configured([]byte("CONFIG_AB=y\n"), "CONFIG_A"); got != "" {
		t.Errorf("got %q", got)
	}
	for suite, want := range map[string]string{"trixie-backports": "trixie", "bookworm": "bookworm", "sid": "sid"} {
		if got := baseSuite(suite); got != want {
			t.Errorf("%s: %s", suite, got)
		}
	}
	if got := upstream("6.18.15-1~bpo13+1"); got != "6.18.15" {
		t.Error(got)
	}
}

func TestOutput(t *testing.T) {
	full := 0
	o := output{full: func() { full++ }}
	line := []byte(strings.Repeat("x", 1023) + "\n")
	for i := 0; i < maxOutput/len(line)+10; i++ {
		if n, err := o.Write(line); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	if full != 1 {
		t.Errorf("told %d times that it was too much", full)
	}
	if got := len(o.text()); got > keptHead+2*keptTail+1 || got < keptHead {
		t.Errorf("%d bytes are kept", got)
	}
	o = output{}
	_, _ = o.Write([]byte("a\nb\n"))
	if o.tail() != "\na\nb" || !o.has("b") || o.has("c") {
		t.Errorf("%q", o.tail())
	}
	if (&output{}).tail() != "" {
		t.Error("a tail of nothing")
	}
}
