// Package docs holds the tests of the documents: that their Go code compiles, their links lead somewhere, their tables name
// everything there is, and their numbers are those that are measured. Those that are made from code, the state diagram and
// the table of requests, are written anew by
//
//	go test ./docs -update
package docs
