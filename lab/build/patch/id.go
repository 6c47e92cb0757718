package patch

// Reverse is the series that takes this one out: last patch first, each reversed.
func (s Series) Reverse() Series { return nil }

// ID is the patch's stable id, that of git patch-id --stable: over what is changed, not where, nor white space.
func (p *Patch) ID() string { return "" }

// ID is the id of a series of one patch, and for more a hash of all ids in their order.
func (s Series) ID() string { return "" }

// Diff is the patch as git writes it, without the mail's text.
func (p *Patch) Diff() []byte { return nil }
