package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"ichor.maesh.dev/reconcile"
)

const backupName = "hourly"

// takeBackup declares a backup, sees its first snapshot in the status, and proves it without the agent.
func (d *demo) takeBackup(ctx context.Context) error {
	if err := d.writePrecious(ctx); err != nil {
		return err
	}
	folder := filepath.Join(d.path("fleet"), "clusters", cluster)
	if _, err := d.ichor(ctx, "secrets", "seal", d.path("bucket", "s3-credentials.json"), "--out", filepath.Join(folder, "s3.age")); err != nil {
		return err
	}
	document := fmt.Sprintf(`apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosEtcdBackup
metadata:
  name: %s
spec:
  clusterRef:
    name: %s
  schedule: "0 * * * *"
  destination:
    s3:
      endpoint: http://%s
      region: us-east-1
      bucket: backups
      prefix: %s
      credentials:
        file: s3.age
`, backupName, cluster, bucketAddress, cluster)
	if err := os.WriteFile(filepath.Join(folder, "backup.yaml"), []byte(document), 0o644); err != nil {
		return err
	}
	if err := d.validate(ctx); err != nil {
		return err
	}
	if err := d.push(ctx, "Hourly snapshots of etcd"); err != nil {
		return err
	}
	began := time.Now()
	var snapshot reconcile.SnapshotStatus
	err := waitFor(ctx, changeLimit, "the first snapshot in the status", d.alive, func(ctx context.Context) error {
		found, err := d.backupStatus(ctx)
		switch {
		case err != nil:
			return err
		case !found.Ready || len(found.Snapshots) == 0:
			return fmt.Errorf("%s: %s", found.Reason, found.Message)
		}
		snapshot = found.Snapshots[0]
		return nil
	})
	if err != nil {
		return err
	}
	d.say("%s, %s after the push: %d KiB at etcd's revision %d", snapshot.Name, time.Since(began).Round(100*time.Millisecond), snapshot.Size>>10, snapshot.Revision)
	return d.proveBackup(ctx, snapshot)
}

func (d *demo) backupStatus(ctx context.Context) (reconcile.BackupStatus, error) {
	status, err := d.status(ctx)
	if err != nil {
		return reconcile.BackupStatus{}, err
	}
	for _, b := range status.Backups {
		if b.Name == backupName {
			return b, nil
		}
	}
	return reconcile.BackupStatus{}, errors.New("the status knows no backup yet")
}

// proveBackup lists, verifies and drills with the bucket and the bundle alone.
func (d *demo) proveBackup(ctx context.Context, snapshot reconcile.SnapshotStatus) error {
	for _, command := range []string{"list", "verify", "drill"} {
		out, err := d.ichor(ctx, "backup", command, "--fleet", d.path("fleet"), "--age-identity", d.path("age.key"))
		if err != nil {
			return err
		}
		if !strings.Contains(string(out), snapshot.Name) {
			return fmt.Errorf("ichor backup %s doesn't speak of %s: %s", command, snapshot.Name, out)
		}
		for line := range strings.Lines(string(out)) {
			d.say("backup %-6s  %s", command, strings.TrimRight(line, "\n"))
		}
	}
	out, err := d.ichor(ctx, "backup", "list", "-o", "json", "--fleet", d.path("fleet"), "--age-identity", d.path("age.key"))
	if err != nil {
		return err
	}
	if !json.Valid(out) || !strings.Contains(string(out), `"passed": true`) && !strings.Contains(string(out), `"passed":true`) {
		return fmt.Errorf("the index doesn't say that the drill passed: %s", out)
	}
	d.say("the sealed index says that a drill has proved it")
	return nil
}
