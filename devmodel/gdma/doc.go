// Package gdma is the device side of GDMA, the transport under MANA: doorbells, the shared-memory channel (SMC) that creates and destroys the hardware channel (HWC),
// the event, completion, send and receive queues with their owner bits and arming, DMA regions, and the requests every GDMA device understands.
//
// A Device takes register-level input (Doorbell, WriteSMC, Reset) from the goroutine that answers the guest: those calls note what was written and return at once. One goroutine
// of its own does the work, in the order of the writes. Everything read from guest memory is hostile until checked: a bad request gets a status, a bad ring is dropped,
// both are traced, and the work and memory a doorbell can cause are bounded.
//
// Section numbers refer to the project's MANA protocol reference. The package does not know what an Ethernet vPort is: a Client answers the requests that are not GDMA's own.
package gdma
