// Package sandbox runs one program in namespaces of its own: its root is a directory that it cannot change, it sees no network, no home and no other process, and what it
// leaves running dies with it. It needs no root where user namespaces are allowed, and runs the same way as root.
//
// Importing it makes the importing program its own helper: started under the name in helperName it sets up the namespaces and becomes the program to run, before main.
package sandbox
