package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/safe"
	"github.com/cosi-project/runtime/pkg/state"
	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"github.com/siderolabs/talos/pkg/machinery/client"
	clientconfig "github.com/siderolabs/talos/pkg/machinery/client/config"
	"github.com/siderolabs/talos/pkg/machinery/config/configpatcher"
	"github.com/siderolabs/talos/pkg/machinery/resources/config"

	"ichor.maesh.dev/internal/talossim"
	"ichor.maesh.dev/internal/talossim/apid"
)

// changeLimit is how long a pushed change may take to reach every machine.
const changeLimit = 15 * time.Minute

// nodeLimit is how long a look at one node may take.
const nodeLimit = 2 * time.Minute

// The setting that the demo changes: harmless, live, and easy to read back.
const (
	setting    = "vm.max_map_count"
	wantedNow  = "262144"
	wantedNext = "524288"
	meddled    = "65530"
)

// node runs do with an administrator's connection to one node, made with `ichor talosconfig`.
func (d *demo) node(ctx context.Context, address string, do func(context.Context, *client.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, nodeLimit)
	defer cancel()
	data, err := d.ichor(ctx, "talosconfig", cluster, "--fleet", d.path("fleet"), "--age-identity", d.path("age.key"), "--role", "admin")
	if err != nil {
		return err
	}
	talosconfig, err := clientconfig.FromBytes(data)
	if err != nil {
		return err
	}
	c, err := client.New(ctx, client.WithConfig(talosconfig), client.WithEndpoints(address))
	if err != nil {
		return err
	}
	defer c.Close()
	return do(ctx, c)
}

// checkCluster looks at etcd and at the nodes' journals: one etcd of three voters, made by exactly one bootstrap.
func (d *demo) checkCluster(ctx context.Context) error {
	if err := waitFor(ctx, changeLimit, "an etcd of three voters", d.alive, d.checkEtcd); err != nil {
		return err
	}
	bootstraps, err := d.accepted("Bootstrap")
	if err != nil {
		return err
	}
	if bootstraps != 1 {
		return fmt.Errorf("the nodes' journals show %d accepted bootstraps and not 1", bootstraps)
	}
	d.say("the nodes' journals show exactly 1 accepted bootstrap")
	return nil
}

func (d *demo) checkEtcd(ctx context.Context) error {
	return d.node(ctx, d.nodes[0].Address, func(ctx context.Context, c *client.Client) error {
		reply, err := c.EtcdMemberList(ctx, &machine.EtcdMemberListRequest{})
		if err != nil {
			return err
		}
		var voters []string
		for _, m := range reply.GetMessages()[0].GetMembers() {
			if !m.GetIsLearner() && m.GetHostname() != "" {
				voters = append(voters, m.GetHostname())
			}
		}
		if len(voters) != 3 {
			return fmt.Errorf("etcd has %d voters (%s) and not 3", len(voters), strings.Join(voters, ", "))
		}
		d.say("etcd answers with 3 voters: %s", strings.Join(voters, ", "))
		return nil
	})
}

// accepted counts the calls of a method that the nodes took.
func (d *demo) accepted(method string) (int, error) {
	count := 0
	for _, n := range d.nodes {
		entries, err := apid.ReadJournal(d.path("nodes", n.Name, apid.JournalFile))
		if err != nil {
			return 0, err
		}
		for _, e := range entries {
			if e.Accepted && strings.HasSuffix(e.Method, "/"+method) {
				count++
			}
		}
	}
	return count, nil
}

// settingOf reads the setting out of one of a node's configs: the one that it runs, or the one that it has stored.
func (d *demo) settingOf(ctx context.Context, n talossim.NodeSpec, which string) (string, error) {
	value := ""
	err := d.node(ctx, n.Address, func(ctx context.Context, c *client.Client) error {
		found, err := safe.StateGetByID[*config.MachineConfig](ctx, c.COSI, which)
		if err == nil {
			value = settingIn(found)
		}
		return err
	})
	return value, err
}

func settingIn(c *config.MachineConfig) string {
	return c.Provider().RawV1Alpha1().MachineConfig.MachineSysctls[setting]
}

// everyNodeRuns is nil when every node's running config holds that value.
func (d *demo) everyNodeRuns(ctx context.Context, want string) error {
	for _, n := range d.nodes {
		got, err := d.settingOf(ctx, n, config.ActiveID)
		if err != nil {
			return err
		}
		if got != want {
			return fmt.Errorf("%s runs %s=%q and not %q", n.Name, setting, got, want)
		}
	}
	return nil
}

const patchFile = "clusters/" + cluster + "/patches/sysctls.yaml"

// pushChange adds a patch for all machines and pushes it.
func (d *demo) pushChange(ctx context.Context) error {
	file := filepath.Join(d.path("fleet"), patchFile)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file, []byte("machine:\n  sysctls:\n    "+setting+": \""+wantedNow+"\"\n"), 0o644); err != nil {
		return err
	}
	patches := "  patches:\n    all:\n    - file: patches/sysctls.yaml\n"
	if err := d.edit("clusters/"+cluster+"/cluster.yaml", "\nspec:\n", "\nspec:\n"+patches); err != nil {
		return err
	}
	if err := d.applied(ctx, "All machines get "+setting+" = "+wantedNow, wantedNow); err != nil {
		return err
	}
	if err := d.edit(patchFile, wantedNow, wantedNext); err != nil {
		return err
	}
	return d.applied(ctx, "All machines get "+setting+" = "+wantedNext, wantedNext)
}

// applied pushes what is in the checkout and waits until every node runs it.
func (d *demo) applied(ctx context.Context, subject, want string) error {
	if err := d.validate(ctx); err != nil {
		return err
	}
	if err := d.push(ctx, subject); err != nil {
		return err
	}
	commit, err := d.head(ctx)
	if err != nil {
		return err
	}
	d.say("pushed %.8s: %s", commit, subject)
	began := time.Now()
	err = waitFor(ctx, changeLimit, "the change on every machine", d.alive, func(ctx context.Context) error {
		return d.allReady(ctx, commit)
	})
	if err != nil {
		return err
	}
	err = waitFor(ctx, changeLimit, "the change in every node's running config", d.alive, func(ctx context.Context) error {
		return d.everyNodeRuns(ctx, want)
	})
	if err != nil {
		return err
	}
	d.say("every node runs it, %s after the push", time.Since(began).Round(100*time.Millisecond))
	return nil
}

// mendDrift changes the setting on one node with an administrator's certificate, as someone in a hurry would. It is put back when the
// node has stored it too: until then the agent only tries it.
func (d *demo) mendDrift(ctx context.Context) error {
	victim := d.nodes[1]
	if err := d.meddle(ctx, victim); err != nil {
		return err
	}
	d.say("someone sets %s = %s on %s, past Git", setting, meddled, victim.Name)
	began := time.Now()
	err := waitFor(ctx, changeLimit, "the setting put back", d.alive, func(ctx context.Context) error {
		got, err := d.settingOf(ctx, victim, config.PersistentID)
		if err == nil && got != wantedNext {
			err = fmt.Errorf("%s has stored %s=%q", victim.Name, setting, got)
		}
		return errors.Join(err, d.everyNodeRuns(ctx, wantedNext))
	})
	if err != nil {
		return err
	}
	d.say("%s runs %s = %s again after %s", victim.Name, setting, wantedNext, time.Since(began).Round(100*time.Millisecond))
	return waitFor(ctx, changeLimit, "the cluster Ready", d.alive, func(ctx context.Context) error { return d.allReady(ctx, "") })
}

// meddle changes the setting on a node, and sees it run there: what the agent puts back at once would not be found afterwards.
func (d *demo) meddle(ctx context.Context, victim talossim.NodeSpec) error {
	return d.node(ctx, victim.Address, func(ctx context.Context, c *client.Client) error {
		events := make(chan state.Event)
		active := resource.NewMetadata(config.NamespaceName, config.MachineConfigType, config.ActiveID, resource.VersionUndefined)
		if err := c.COSI.Watch(ctx, active, events); err != nil {
			return err
		}
		running, err := safe.StateGetByID[*config.MachineConfig](ctx, c.COSI, config.ActiveID)
		if err != nil {
			return err
		}
		patch, err := configpatcher.LoadPatch([]byte("machine:\n  sysctls:\n    " + setting + ": \"" + meddled + "\"\n"))
		if err != nil {
			return err
		}
		changed, err := configpatcher.Apply(configpatcher.WithConfig(running.Provider()), []configpatcher.Patch{patch})
		if err != nil {
			return err
		}
		data, err := changed.Bytes()
		if err != nil {
			return err
		}
		if _, err := c.ApplyConfiguration(ctx, &machine.ApplyConfigurationRequest{Data: data, Mode: machine.ApplyConfigurationRequest_NO_REBOOT}); err != nil {
			return err
		}
		for {
			select {
			case event := <-events:
				if event.Error != nil {
					return event.Error
				}
				if found, ok := event.Resource.(*config.MachineConfig); ok && settingIn(found) == meddled {
					return nil
				}
			case <-ctx.Done():
				return fmt.Errorf("the meddling did not take: %s never ran %s=%q: %w", victim.Name, setting, meddled, ctx.Err())
			}
		}
	})
}

// refuseChange pushes a revision that breaks a rule, sees it refused and the last good one kept, and takes it back.
func (d *demo) refuseChange(ctx context.Context) error {
	before, err := d.accepted("ApplyConfiguration")
	if err != nil {
		return err
	}
	good, err := d.head(ctx)
	if err != nil {
		return err
	}
	if err := d.edit("clusters/"+cluster+"/cluster.yaml", "\n    count: 3\n", "\n    count: 4\n"); err != nil {
		return err
	}
	if err := d.validate(ctx); err == nil {
		return errors.New("ichor validate takes a control plane count of 4")
	}
	d.say("ichor validate refuses a control plane count of 4; it is pushed all the same")
	if err := d.push(ctx, "Four control planes"); err != nil {
		return err
	}
	bad, err := d.head(ctx)
	if err != nil {
		return err
	}
	err = waitFor(ctx, changeLimit, "the refusal in the status", d.alive, func(ctx context.Context) error {
		status, err := d.status(ctx)
		switch {
		case err != nil:
			return err
		case status.Revision.Refused == nil || status.Revision.Refused.Commit != bad:
			return fmt.Errorf("revision %.8s is not refused yet", bad)
		case status.Revision.Applied != good:
			return fmt.Errorf("revision %.8s is applied and not %.8s", status.Revision.Applied, good)
		}
		d.say("refused, and %.8s stays in force: %s", good, strings.Join(status.Revision.Refused.Findings, "; "))
		return nil
	})
	if err != nil {
		return err
	}
	after, err := d.accepted("ApplyConfiguration")
	if err != nil {
		return err
	}
	if after != before {
		return fmt.Errorf("%d configs were sent for a refused revision", after-before)
	}
	return d.takeBack(ctx)
}

// takeBack corrects what was refused.
func (d *demo) takeBack(ctx context.Context) error {
	if err := d.edit("clusters/"+cluster+"/cluster.yaml", "\n    count: 4\n", "\n    count: 3\n"); err != nil {
		return err
	}
	if err := d.push(ctx, "Three control planes again"); err != nil {
		return err
	}
	commit, err := d.head(ctx)
	if err != nil {
		return err
	}
	d.say("the mistake is taken back")
	return waitFor(ctx, changeLimit, "the corrected revision in force", d.alive, func(ctx context.Context) error {
		return d.allReady(ctx, commit)
	})
}
