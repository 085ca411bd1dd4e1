package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
)

// environmentFile is what a person sources to go on with the demo's cluster.
const environmentFile = "env"

// stayUp writes down how a person goes on with the cluster, and waits for Ctrl-C or for something to end by itself.
func (d *demo) stayUp(ctx context.Context) error {
	if err := os.WriteFile(d.path(environmentFile), []byte(d.environment()), 0o600); err != nil {
		return err
	}
	fmt.Fprint(d.out, d.whereabouts())
	ended := make(chan error, 3)
	for _, p := range []*process{d.agent, d.sim, d.s3} {
		go func() {
			<-p.exited
			ended <- p.alive()
		}()
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return err
	}
}

// environment gives the variables that spare a person the flags: where ichor is, the state, and the keys.
func (d *demo) environment() string {
	var text strings.Builder
	set := func(name, value string) { fmt.Fprintf(&text, "export %s=%s\n", name, shellQuoted(value)) }
	set("DEMO", d.dir)
	fmt.Fprintf(&text, "export PATH=%s:\"$PATH\"\n", shellQuoted(d.opts.binaries))
	for pair := range slices.Chunk(d.stateArguments(), 2) {
		set("ICHOR_"+strings.ToUpper(strings.ReplaceAll(strings.TrimPrefix(pair[0], "--"), "-", "_")), pair[1])
	}
	set("ICHOR_AGE_IDENTITY", d.path("age.key"))
	set("ICHOR_KEY", d.path(operatorKey))
	set("ICHOR_ALLOWED_SIGNERS", d.path(signersFile))
	set("ICHOR_TIME_SCALE", fmt.Sprint(d.opts.timeScale))
	return text.String()
}

func shellQuoted(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

// whereabouts says what a person can do now, in the order in which it is worth doing.
func (d *demo) whereabouts() string {
	return strings.NewReplacer("{env}", d.path(environmentFile), "{log}", d.path("agent.log"), "{dir}", d.dir, "{key}", precious).Replace(`
It stays up until Ctrl-C, which ends it and takes {dir} away. In another terminal:

    . {env}
    cd {dir}/fleet

The first sets ICHOR_STATE, ICHOR_AGE_IDENTITY and ICHOR_KEY, which spare the flags. The second is a checkout; the agent watches what is pushed from it.

  How it stands, also at http://127.0.0.1:4246/:
    ichor status

  A change, looked at before it is pushed (the pull brings what the commands below have pushed):
    git pull
    $EDITOR clusters/demo/patches/sysctls.yaml
    git commit -am "More memory maps" && ichor validate --base origin/main && ichor plan --base origin/main
    git push && ichor status --follow

  A snapshot, and whether it is whole:
    ichor backup now --follow
    ichor backup verify

  A reboot, signed and followed (` + operatorKey + ` may, ` + strangerKey + ` may not):
    ichor run-op node reboot w-1 --follow
    ichor run-op node reboot w-1 --follow --key $DEMO/` + strangerKey + `

  Something lost, and brought back from a snapshot:
    talossim ctl --dir $DEMO/nodes etcd delete {key}
    ichor restore --live
    talossim ctl --dir $DEMO/nodes etcd get {key}

  A power cut, and what the agent makes of it (its log is {log}):
    talossim ctl --dir $DEMO/nodes power-cycle cp-3
`)
}
