// Package s3gateway runs a real S3 server over a folder, for tests, the demo and `talossim s3`.
//
// The server changes its process's working directory and allows one instance a process, so tests run it in a child: the
// test binary starts itself again. For that its TestMain calls [RunIfChild] first, and tests call [StartChild].
package s3gateway
