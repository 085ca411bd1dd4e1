// Package gittest gives tests real Git repositories and real servers for them.
//
// A Repository is a bare repository made by git. HTTP serves it by git's own http-backend, SSH by git-upload-pack and
// git-receive-pack behind an SSH server that knows one key. Both can be taken away and come back at the same address. Everything goes with the test.
package gittest
