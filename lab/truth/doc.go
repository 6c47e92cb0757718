// Package truth makes random cases, and says of each what its outcome ought to be, reading nothing but raw facts: counts, masks, the console, the device's trace.
//
// It shares no code with those who judge (scenarios, lab/runner) or show (lab/report): two that come to the same verdict by different ways are hardly wrong in the same way.
package truth
