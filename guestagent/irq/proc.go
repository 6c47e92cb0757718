// Package irq reads and steers interrupts through /proc/interrupts and /proc/irq: who handles what, where each vector is routed, and
// how many device vectors sit on each CPU. It knows nothing of functions, drivers or strategies.
package irq

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"irqlab/guestagent/cpulist"
)

// MaxIRQ bounds IRQ numbers; x86-64 kernels use far fewer.
const MaxIRQ = 1 << 20

// Row is one numbered line of /proc/interrupts.
type Row struct {
	IRQ    int
	Counts map[int]uint64 // by CPU; CPUs with 0 are left out
	Chip   string         // PCI-MSIX-0000:81:00.0, IO-APIC, DMAR-MSI…
	HWIRQ  int            // the chip's own number: for MSI-X the low 11 bits are the table index; -1 where none is shown
	Action string         // handlers' names as shown, "" when nobody requested the interrupt
}

// Table is /proc/interrupts without its unnumbered per-CPU lines (NMI, LOC, …), which own no device vector.
type Table struct {
	CPUs []int // the columns: online CPUs
	Rows map[int]Row
}

// Totals are the interrupts handled so far, by IRQ number.
type Totals []uint64

// Of is an IRQ's total; 0 for one there is not.
func (t Totals) Of(n int) uint64 {
	if n < 0 || n >= len(t) {
		return 0
	}
	return t[n]
}

// ParseTotals reads the line "intr SUM IRQ0 IRQ1 …" of /proc/stat (fs/proc/stat.c), which counts what was handled on every possible CPU.
func ParseTotals(data []byte) (Totals, error) {
	for line := range bytes.Lines(data) {
		rest, ok := bytes.CutPrefix(line, []byte("intr "))
		if !ok {
			continue
		}
		_, counts, _ := strings.Cut(strings.TrimSpace(string(rest)), " ")
		var t Totals
		for f := range strings.FieldsSeq(counts) {
			n, err := strconv.ParseUint(f, 10, 64)
			if err != nil || len(t) > MaxIRQ {
				return nil, fmt.Errorf("/proc/stat: IRQ %d: %q is not a count", len(t), f)
			}
			t = append(t, n)
		}
		return t, nil
	}
	return nil, errors.New("/proc/stat: no line about interrupts")
}

// hwirqField is the chip's number joined with the flow handler's name, "3-edge"; it parts chip from action.
var hwirqField = regexp.MustCompile(`^(\d+)(-\S*)?$`)

// ParseInterrupts reads the format of show_interrupts() (kernel/irq/proc.c, 4.10 to 7.3): a header naming the online CPUs, then
// "IRQ: counts… chip hwirq-flow action[, action]".
func ParseInterrupts(data []byte) (Table, error) {
	header, rest, _ := bytes.Cut(data, []byte("\n"))
	t := Table{Rows: map[int]Row{}}
	for f := range strings.FieldsSeq(string(header)) {
		n, ok := strings.CutPrefix(f, "CPU")
		cpu, err := strconv.ParseUint(n, 10, 31)
		if !ok || err != nil || cpu > cpulist.MaxCPU {
			return Table{}, fmt.Errorf("/proc/interrupts: header field %q is not a CPU", f)
		}
		t.CPUs = append(t.CPUs, int(cpu))
	}
	if len(t.CPUs) == 0 {
		return Table{}, fmt.Errorf("/proc/interrupts: no header line")
	}
	for line := range bytes.Lines(rest) {
		label, fields, ok := bytes.Cut(line, []byte(":"))
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(string(bytes.TrimSpace(label)), 10, 31)
		if err != nil {
			continue // NMI, LOC, ERR…
		}
		if n > MaxIRQ {
			return Table{}, fmt.Errorf("/proc/interrupts: IRQ %d is out of range", n)
		}
		row, err := parseRow(int(n), t.CPUs, string(fields))
		if err != nil {
			return Table{}, err
		}
		t.Rows[row.IRQ] = row
	}
	return t, nil
}

func parseRow(n int, cpus []int, s string) (Row, error) {
	row := Row{IRQ: n, HWIRQ: -1, Counts: map[int]uint64{}}
	fields := strings.Fields(s)
	if len(fields) < len(cpus) {
		return row, fmt.Errorf("/proc/interrupts: IRQ %d has %d counts for %d CPUs", n, len(fields), len(cpus))
	}
	for i, cpu := range cpus {
		c, err := strconv.ParseUint(fields[i], 10, 64)
		if err != nil {
			return row, fmt.Errorf("/proc/interrupts: IRQ %d: %q is not a count", n, fields[i])
		}
		if c > 0 {
			row.Counts[cpu] = c
		}
	}
	fields = fields[len(cpus):]
	for i, f := range fields {
		m := hwirqField.FindStringSubmatch(f)
		if i == 0 || m == nil { // the chip's name comes first and may itself hold digits
			continue
		}
		if hw, err := strconv.ParseUint(m[1], 10, 63); err == nil {
			row.HWIRQ = int(hw)
		}
		row.Chip = strings.Join(fields[:i], " ")
		row.Action = strings.Join(fields[i+1:], " ")
		return row, nil
	}
	if len(fields) > 0 {
		row.Chip, row.Action = fields[0], strings.Join(fields[1:], " ")
	}
	return row, nil
}

// ParseMask reads the kernel's bitmap format: groups of up to 32 bits in hexadecimal, highest first, joined by commas ("1,0000000f").
func ParseMask(s string) (cpulist.List, error) {
	s = strings.TrimSpace(s)
	groups := strings.Split(s, ",")
	if len(groups) > (cpulist.MaxCPU+1)/32 {
		return nil, fmt.Errorf("CPU mask of %d groups: more CPUs than x86 has", len(groups))
	}
	var l cpulist.List
	for i := len(groups) - 1; i >= 0; i-- {
		bits, err := strconv.ParseUint(groups[i], 16, 32)
		if err != nil {
			return nil, fmt.Errorf("CPU mask %q: %q is not a group of 32 bits in hexadecimal", s, groups[i])
		}
		base := 32 * (len(groups) - 1 - i)
		for b := range 32 {
			if bits&(1<<b) != 0 {
				l = append(l, base+b)
			}
		}
	}
	return l, nil
}

// FormatMask is the inverse of ParseMask.
func FormatMask(l cpulist.List) string {
	if len(l) == 0 {
		return "0"
	}
	groups := make([]uint32, l[len(l)-1]/32+1)
	for _, c := range l {
		groups[c/32] |= 1 << (c % 32)
	}
	var b strings.Builder
	for i := len(groups) - 1; i >= 0; i-- {
		if i == len(groups)-1 {
			fmt.Fprintf(&b, "%x", groups[i])
		} else {
			fmt.Fprintf(&b, ",%08x", groups[i])
		}
	}
	return b.String()
}
