// Package try says what a changed driver is to be asked, compares what the kernel did without and with the change, and judges that: what is better, what is worse, and why.
//
// It is pure: it reads results and paths, and writes to the writer that it is given. It must not know how a patch is read, a module built, or a case run.
package try
