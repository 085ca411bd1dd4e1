package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"ichor.maesh.dev/internal/printable"
	"ichor.maesh.dev/internal/talossim"
)

// etcdLimit bounds one question to the etcd of one control plane.
const etcdLimit = 5 * time.Second

// newEtcd makes the commands that look into the etcd of the control planes and change it past Kubernetes: what is written, lost and
// brought back by a restore can be seen without an API server.
func newEtcd(dir *string) *cobra.Command {
	cmd := &cobra.Command{Use: "etcd", Short: "Write, read, list and delete keys in the etcd of the control planes"}

	ask := func(use, short, example string, args cobra.PositionalArgs, do func(*cobra.Command, context.Context, *clientv3.Client, []string) error) {
		cmd.AddCommand(&cobra.Command{Use: use, Short: short, Example: example, Args: args, RunE: func(cmd *cobra.Command, args []string) error {
			return withEtcd(cmd.Context(), *dir, func(ctx context.Context, client *clientv3.Client) error { return do(cmd, ctx, client, args) })
		}})
	}

	ask("put KEY VALUE", "Write a key", "  talossim ctl --dir nodes etcd put /registry/configmaps/default/precious 'what nobody has a copy of'", cobra.ExactArgs(2),
		func(_ *cobra.Command, ctx context.Context, client *clientv3.Client, args []string) error {
			_, err := client.Put(ctx, args[0], args[1])

			return err
		})
	ask("get KEY", "Print what a key has", "", cobra.ExactArgs(1),
		func(cmd *cobra.Command, ctx context.Context, client *clientv3.Client, args []string) error {
			answer, err := client.Get(ctx, args[0])
			if err != nil {
				return err
			}

			if len(answer.Kvs) == 0 {
				return &keyError{args[0]}
			}

			_, err = fmt.Fprintln(cmd.OutOrStdout(), printable.Text(string(answer.Kvs[0].Value)))

			return err
		})
	ask("list [PREFIX]", "Print the keys, or those that begin with PREFIX", "", cobra.MaximumNArgs(1),
		func(cmd *cobra.Command, ctx context.Context, client *clientv3.Client, args []string) error {
			answer, err := client.Get(ctx, append(args, "")[0], clientv3.WithPrefix(), clientv3.WithKeysOnly())
			if err != nil {
				return err
			}

			for _, kv := range answer.Kvs {
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), printable.Text(string(kv.Key))); err != nil {
					return err
				}
			}

			return nil
		})
	ask("delete KEY", "Delete a key", "", cobra.ExactArgs(1),
		func(_ *cobra.Command, ctx context.Context, client *clientv3.Client, args []string) error {
			answer, err := client.Delete(ctx, args[0])
			if err == nil && answer.Deleted == 0 {
				return &keyError{args[0]}
			}

			return err
		})

	return cmd
}

// keyError says that etcd has nothing at a key: an answer, and no reason to ask another control plane.
type keyError struct{ key string }

func (e *keyError) Error() string { return fmt.Sprintf("there is no key %s", printable.Text(e.key)) }

// withEtcd asks one control plane after the other until the etcd of one answers.
func withEtcd(ctx context.Context, dir string, do func(context.Context, *clientv3.Client) error) error {
	nodes, err := talossim.ReadNodes(dir)
	if err != nil {
		return err
	}

	var failed []error

	for _, n := range nodes {
		if n.Role != talossim.ControlPlane {
			continue
		}

		err := askEtcd(ctx, n, do)

		var missing *keyError
		if err == nil || errors.As(err, &missing) || ctx.Err() != nil {
			return err
		}

		failed = append(failed, fmt.Errorf("the etcd of %s: %w", n.Name, err))
	}

	return errors.Join(append(failed, errors.New("no control plane's etcd answers; it does once the cluster is bootstrapped"))...)
}

func askEtcd(ctx context.Context, n talossim.NodeSpec, do func(context.Context, *clientv3.Client) error) error {
	ctx, cancel := context.WithTimeout(ctx, etcdLimit)
	defer cancel()

	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + n.Address + ":2379"}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close() //nolint:errcheck // it was only asked

	return do(ctx, client)
}
