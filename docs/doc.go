// Package docs holds the tests of the documents: that their Go code compiles, their links lead somewhere, their tables name
// everything there is, and their numbers are those that are measured; and of what they promise: who imports whom, licences,
// versions, and that each threat has its test. What is made from code, the state diagram and the tables of requests, of
// dependencies and of imports, is written anew by
//
//	go test ./docs -update
package docs
