// Package build builds changed modules for a stock Debian kernel, and whole changed kernels, without root: the kernel's source, the compiler it was built with and all that a build needs come
// as packages into the cache, and the build runs in namespaces of its own, where it sees no network, no home, and can write to nothing but its own directory.
//
// See docs/building.md for what is fetched, how it is built, and how much a module built here says about the distribution's.
package build
