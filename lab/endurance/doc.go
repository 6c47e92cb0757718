// Package endurance holds the tests of what irqlab leaves behind: after its processes were killed at any moment, and after hundreds of cases in one process.
package endurance
