package report

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"irqlab/guestagent/cpulist"
	"irqlab/lab/foreign"
	"irqlab/lab/layout"
	"irqlab/scenarios/result"
)

// disk shows the interrupts of a disk's request queues, and where what each CPU had submitted was handled.
func (p *page) disk(s *result.Step, d *result.Disk) {
	p.linef("")
	p.linef("  step %s, disk %s on %s:", foreign.Line(s.At), foreign.Line(d.Name), nodeWords(d.Node))
	t := layout.Table{Rules: true, Indent: "  ", Header: []string{"queue", "name", "irq", "mask", "effective", "its node", "requests"}, Right: []int{0, 2}}
	for i := range d.Queues {
		q := &d.Queues[i]
		node := nodeWords(q.Node)
		if d.Node != nil && (q.Node == nil || *q.Node != *d.Node) {
			node = p.alarm(node)
		}
		t.Rows = append(t.Rows, []string{strconv.Itoa(q.Index), foreign.Line(q.Name), strconv.Itoa(q.IRQ), listOrDash(q.Affinity), listOrDash(q.Effective), node, RequestsOf(d, q.Index)})
	}
	p.WriteString(t.Render(p.columns))
	p.linef("  %s", diskCallOut(d))
}

func nodeWords(node *int) string {
	if node == nil {
		return "no node"
	}
	return "node " + strconv.Itoa(*node)
}

// RequestsOf says where the requests of a queue came from, and where they were handled: "from 0-3 on 3".
func RequestsOf(d *result.Disk, queue int) string {
	var order []string
	from := map[string]cpulist.List{}
	for _, s := range d.Served {
		if s.Queue == nil || *s.Queue != queue {
			continue
		}
		on := s.Handled.String()
		if from[on] == nil {
			order = append(order, on)
		}
		from[on] = append(from[on], s.CPU)
	}
	for i, on := range order {
		order[i] = "from " + from[on].String() + " on " + on
	}
	if order == nil {
		return "none"
	}
	return strings.Join(order, "; ")
}

// diskCallOut says in words what the table shows.
func diskCallOut(d *result.Disk) string {
	var words []string
	switch {
	case d.Node == nil:
	case d.OnNode():
		words = append(words, "all on the disk's node")
	case slices.ContainsFunc(d.Queues, func(q result.DiskQueue) bool { return q.Node != nil && *q.Node == *d.Node }):
		words = append(words, "not all on the disk's node")
	default:
		words = append(words, "none on the disk's node")
	}
	if len(d.Queues) > 0 && !slices.ContainsFunc(d.Queues, func(q result.DiskQueue) bool { return !q.Managed }) {
		words = append(words, "managed: nobody can set these masks")
	}
	met := d.Meets()
	words = append(words, fmt.Sprintf("submitted and handled on the same CPU: from %s", met.Words()))
	return strings.Join(words, "; ")
}

// DiskQueues are the request queues of all disks that a case has read from, by what they are called: "disk nvme0n1 queue 0", with the step where there are several.
func DiskQueues(c *result.Case) map[string]DiskQueue {
	steps := 0
	for _, s := range c.Steps {
		if s.Disks != nil {
			steps++
		}
	}
	out := map[string]DiskQueue{}
	for _, s := range c.Steps {
		at := ""
		if steps > 1 {
			at = "step " + s.At + " "
		}
		for i := range s.Disks {
			for j := range s.Disks[i].Queues {
				d := &s.Disks[i]
				out[fmt.Sprintf("%sdisk %s queue %d", at, foreign.Line(d.Name), d.Queues[j].Index)] = DiskQueue{d, &d.Queues[j]}
			}
		}
	}
	return out
}

// DiskQueue is a queue and its disk.
type DiskQueue struct {
	Disk  *result.Disk
	Queue *result.DiskQueue
}

// OnNode reports whether the queue's interrupt is on its disk's node.
func (q DiskQueue) OnNode() bool {
	return q.Disk.Node != nil && q.Queue.Node != nil && *q.Disk.Node == *q.Queue.Node
}

// String is "0-3 on 3, node 1; requests from 0-3 on 3".
func (q DiskQueue) String() string {
	if q.Queue == nil {
		return ""
	}
	return fmt.Sprintf("%s on %s; requests %s", listOrDash(q.Queue.Affinity), q.Where(), RequestsOf(q.Disk, q.Queue.Index))
}

// Where is the CPU that the queue's interrupt is routed to, and its node: "3, node 1".
func (q DiskQueue) Where() string {
	return listOrDash(q.Queue.Effective) + ", " + nodeWords(q.Queue.Node)
}

// diskCells are where the request queues of a case's disks are, and whether that is on their disk's node: what the kernel does, whatever the case expects of it.
func (p *page) diskCells(c *result.Case) []string {
	var on []string
	off, homeless := 0, 0
	queues := DiskQueues(c)
	for _, name := range DiskNames(c, c) {
		q := queues[name]
		on = append(on, listOrDash(q.Queue.Effective))
		switch {
		case q.Disk.Node == nil:
			homeless++
		case !q.OnNode():
			off++
		}
	}
	switch {
	case on == nil:
		return []string{"-", "-"}
	case homeless == len(on):
		return []string{strings.Join(on, ","), "it has none"}
	case off > 0:
		return []string{strings.Join(on, ","), p.alarm(fmt.Sprintf("no: %d of %d", off, len(on)))}
	}
	return []string{strings.Join(on, ","), "yes"}
}

// DiskNames are what the queues of both cases are called, in order.
func DiskNames(a, b *result.Case) []string {
	both := DiskQueues(a)
	maps.Copy(both, DiskQueues(b))
	return slices.SortedFunc(maps.Keys(both), natural)
}

func diskRows(a, b *result.Case) []row {
	x, y := DiskQueues(a), DiskQueues(b)
	var rows []row
	for _, name := range DiskNames(a, b) {
		rows = append(rows, row{name, x[name].String(), y[name].String()})
	}
	return rows
}

// natural sorts numbers of more digits behind those of fewer.
func natural(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) }
