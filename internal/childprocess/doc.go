// Package childprocess does dangerous work in this program started again: what opens a file that may lie can crash the child, and not
// this process. A child gets its order and nothing else: no credentials, a bounded memory, a bounded say. It ends when its parent does.
//
// The program calls [RunIfChild] before anything else, with each kind of work that it may be started for; so does a TestMain.
package childprocess
