package mana

import (
	"irqlab/devmodel/pcifn"
)

// Function is a MANA function behind BAR 0 of a PCI function.
type Function struct {
	cfg  Config
	regs [registersSize]byte
	bus  pcifn.Bus
}

var _ pcifn.Behaviour = (*Function)(nil)

// New makes a function in its reset state, or says what is wrong with cfg.
func New(cfg Config) (*Function, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Function{cfg: cfg, regs: registers()}, nil
}

// Attach implements pcifn.Behaviour.
func (f *Function) Attach(bus pcifn.Bus) { f.bus = bus }

// ReadBAR implements pcifn.Behaviour. Bytes that belong to no register read as zero.
func (f *Function) ReadBAR(off uint64, p []byte) {
	clear(p)
	if off < registersSize {
		copy(p, f.regs[off:])
	}
}

// WriteBAR implements pcifn.Behaviour.
func (f *Function) WriteBAR(off uint64, p []byte) {}

// Reset implements pcifn.Behaviour.
func (f *Function) Reset(kind pcifn.ResetKind) {}
