// Package docs holds the pages that the irqlab command shows, too, so that there is one text of each.
package docs

import _ "embed" // the pages

// ExitStatus says what each exit status means to a shell, to CI and to git bisect.
//
//go:embed exit-status.md
var ExitStatus string
