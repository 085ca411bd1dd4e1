package main

import (
	"github.com/spf13/cobra"

	"ichor.maesh.dev/gitsource"
	"ichor.maesh.dev/schema"
)

// completion gives the words that may stand at a place.
type completion = func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective)

// complete makes a completion of one argument out of what is committed in the checkout: a shell waits for it, so no server is asked.
func complete(f *deskFlags, words func(fleet *schema.Fleet, cluster string) []string) completion {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		checkout, err := gitsource.OpenCheckout(f.repo)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		head, err := checkout.Revision("HEAD")
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		roots := f.paths
		if len(roots) == 0 {
			roots = []string{"."}
		}
		fleet, _ := schema.Load(head.Tree, roots)
		cluster, _ := cmd.Flags().GetString("cluster")
		return words(fleet, cluster), cobra.ShellCompDirectiveNoFileComp
	}
}

func (a *app) completeMachines(f *deskFlags, action string) completion {
	return complete(f, func(fleet *schema.Fleet, cluster string) []string {
		var words []string
		for _, m := range fleet.Machines {
			etcd := action == schema.ActionEtcdDefrag || action == schema.ActionEtcdForfeit
			if cluster != "" && m.Spec.ClusterRef.Name != cluster || etcd && m.Spec.Role != schema.RoleControlPlane {
				continue
			}
			words = append(words, cobra.CompletionWithDesc(m.Metadata.Name, a.clean(string(m.Spec.Role)+" of "+m.Spec.ClusterRef.Name)))
		}
		return words
	})
}

func (a *app) completeBackups(f *deskFlags) completion {
	return complete(f, func(fleet *schema.Fleet, cluster string) []string {
		var words []string
		for _, b := range fleet.Backups {
			if cluster == "" || b.Spec.ClusterRef.Name == cluster {
				words = append(words, cobra.CompletionWithDesc(b.Metadata.Name, a.clean("of "+b.Spec.ClusterRef.Name)))
			}
		}
		return words
	})
}

func (a *app) completeOperations(f *deskFlags) completion {
	return complete(f, func(fleet *schema.Fleet, cluster string) []string {
		var words []string
		for _, o := range fleet.Operations {
			if cluster == "" || o.Spec.ClusterRef.Name == cluster {
				words = append(words, o.Metadata.Name)
			}
		}
		return words
	})
}
