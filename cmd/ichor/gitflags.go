package main

import (
	"github.com/spf13/pflag"

	"ichor.maesh.dev/gitsource"
)

// addGitCredentials adds the flags that say how to get into a Git repository.
func addGitCredentials(flags *pflag.FlagSet, git *gitsource.Config) {
	flags.StringVar(&git.TokenFile, "git-token-file", "", "file with the token for http(s)")
	flags.BoolVar(&git.Bearer, "git-bearer", false, "send the token as a bearer token")
	flags.StringVar(&git.Username, "git-username", "", "user name for http(s)")
	flags.StringVar(&git.PasswordFile, "git-password-file", "", "file with the password for http(s)")
	flags.StringVar(&git.CAFile, "git-ca", "", "file with the authority of the Git server's certificate")
	flags.StringVar(&git.SSHKeyFile, "ssh-key", "", "private key for ssh")
	flags.StringVar(&git.SSHPassphraseFile, "ssh-passphrase-file", "", "file with the passphrase of the ssh key")
	flags.StringVar(&git.KnownHostsFile, "known-hosts", "", "known_hosts file; required for ssh")
}
