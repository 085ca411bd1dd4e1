package main

import (
	"fmt"
	"slices"
	"strings"
)

// rows is the table, in the order it is printed.
var rows = slices.Concat(timeRows, memoryRows(), loadRows())

// memoryRows are what each step of a backup takes, and of a restore, of snapshots of each size.
func memoryRows() []row {
	var all []row
	for _, operation := range operations {
		for _, size := range sizes {
			name := fmt.Sprintf("%s %d MiB", operation, size>>20)
			all = append(all, row{title: fmt.Sprintf("memory of backup: %s, %d MiB", operation, size>>20), pkg: "ichor.maesh.dev/internal/bench", slow: true,
				benchmark: "BenchmarkSnapshotMemory/" + strings.ReplaceAll(name, " ", "_")})
		}
	}
	for _, whole := range []struct{ title, benchmark string }{{"memory of raising a revision", "BenchmarkRaisingMemory"},
		{"memory of restore: open, unseal, raise, upload", "BenchmarkRestoreMemory"}} {
		for _, size := range restored {
			name := fmt.Sprintf("%d MiB", size>>20)
			all = append(all, row{title: whole.title + ", " + name, pkg: "ichor.maesh.dev/internal/bench", slow: true,
				benchmark: whole.benchmark + "/" + strings.ReplaceAll(name, " ", "_")})
		}
	}
	return all
}

// restored are the sizes of the snapshots whose restore is measured, in bytes.
var restored = []int64{256 << 20, 2 << 30}

// operations are the steps of a backup whose memory is measured, and sizes the snapshots', in bytes.
var (
	operations = []string{"seal", "verify", "get --decrypt", "drill"}
	sizes      = []int64{256 << 20, 1 << 30, 2 << 30}
)

var timeRows = []row{
	{title: "no-op pass, 100 clusters of 10 machines", pkg: "ichor.maesh.dev/reconcile",
		benchmark: "BenchmarkNoOpPass1000Machines/100_clusters_of_10_machines"},
	{title: "no-op pass, 1 cluster of 1,000 machines", pkg: "ichor.maesh.dev/reconcile",
		benchmark: "BenchmarkNoOpPass1000Machines/1_clusters_of_1000_machines",
		peer:      "BenchmarkNoOpPass1000Machines/100_clusters_of_10_machines", peerTitle: "the same in 100 clusters"},
	{title: "50 passes over 20 clusters, and 50 beside one whose 10 machines hang", pkg: "ichor.maesh.dev/reconcile",
		benchmark: "BenchmarkPassBesideAHangingCluster/of_10_machines"},
	{title: "the same beside one whose 1,000 machines hang", pkg: "ichor.maesh.dev/reconcile",
		benchmark: "BenchmarkPassBesideAHangingCluster/of_1000_machines"},
	{title: "passes over 20 clusters beside one whose 10 machines are dialled and hang", slow: true, pkg: "ichor.maesh.dev/reconcile",
		benchmark: "BenchmarkPassBesideDials/of_10_machines"},
	{title: "the same beside one whose 1,000 machines are dialled and hang", slow: true, pkg: "ichor.maesh.dev/reconcile",
		benchmark: "BenchmarkPassBesideDials/of_1000_machines"},
	{title: "forecast of a live change, 100 machines", pkg: "ichor.maesh.dev/reconcile", benchmark: "BenchmarkForecast/live_change_of_100_machines"},
	{title: "forecast of a live change, 300 machines", pkg: "ichor.maesh.dev/reconcile", benchmark: "BenchmarkForecast/live_change_of_300_machines",
		peer: "BenchmarkForecast/live_change_of_100_machines", peerTitle: "100 machines"},
	{title: "forecast of a live change, 1,000 machines", pkg: "ichor.maesh.dev/reconcile", benchmark: "BenchmarkForecast/live_change_of_1000_machines",
		peer: "BenchmarkForecast/live_change_of_100_machines", peerTitle: "100 machines"},
	{title: "forecast of a change that reboots, 1,000 machines", pkg: "ichor.maesh.dev/reconcile", benchmark: "BenchmarkForecast/reboot_change_of_1000_machines",
		peer: "BenchmarkForecast/reboot_change_of_100_machines", peerTitle: "100 machines"},
	{title: "no-op poll, https", pkg: "ichor.maesh.dev/gitsource", benchmark: "BenchmarkNoOpPoll/http"},
	{title: "no-op poll, ssh", pkg: "ichor.maesh.dev/gitsource", benchmark: "BenchmarkNoOpPoll/ssh"},
	{title: "decode 10,000 documents", pkg: "ichor.maesh.dev/schema", benchmark: "BenchmarkDecode10000",
		peer: "BenchmarkDecode10000Loosely", peerTitle: "sigs.k8s.io/yaml, on one core, without places or bounds"},
	{title: "decode and judge 10,000 documents, 1,000 clusters", pkg: "ichor.maesh.dev/validate",
		benchmark: "BenchmarkValidate10000/decode_and_judge_1000_clusters_of_9_machines"},
	{title: "decode and judge 10,000 documents, 1 cluster", pkg: "ichor.maesh.dev/validate",
		benchmark: "BenchmarkValidate10000/decode_and_judge_1_cluster_of_10000_machines",
		peer:      "BenchmarkValidate10000/decode_and_judge_1000_clusters_of_9_machines", peerTitle: "the same in 1,000 clusters"},
	{title: "judge a change of 10,000 documents, 1,000 clusters", pkg: "ichor.maesh.dev/validate",
		benchmark: "BenchmarkValidate10000/judge_a_change_of_1000_clusters_of_9_machines"},
	{title: "read, judge and render 10,000 machines that are alike", slow: true, pkg: "ichor.maesh.dev/validate",
		benchmark: "BenchmarkRenderConfigs/10000_like_machines",
		peer:      "BenchmarkValidate10000/decode_and_judge_1_cluster_of_10000_machines", peerTitle: "without rendering"},
	{title: "read, judge and render 100 machines with patches of their own", pkg: "ichor.maesh.dev/validate",
		benchmark: "BenchmarkRenderConfigs/100_machines_with_patches_apart"},
	{title: "search 100,000 small files and one of 1 GiB for secrets", slow: true, pkg: "ichor.maesh.dev/validate", benchmark: "BenchmarkFindSecrets"},
	{title: "render one machine's config", pkg: "ichor.maesh.dev/talos", benchmark: "BenchmarkRender"},
	{title: "compare one machine's config", pkg: "ichor.maesh.dev/talos", benchmark: "BenchmarkCompare",
		peer: "BenchmarkRender", peerTitle: "rendering it"},
	{title: "validate --no-render, 1,000 documents", slow: true, pkg: "ichor.maesh.dev/internal/bench", benchmark: "BenchmarkValidateCommand/ichor_1000_documents",
		peer: "BenchmarkValidateCommand/kubeconform_1000_documents", peerTitle: "kubeconform, which knows one document at a time"},
	{title: "validate --no-render, 10,000 documents", slow: true, pkg: "ichor.maesh.dev/internal/bench", benchmark: "BenchmarkValidateCommand/ichor_10000_documents",
		peer: "BenchmarkValidateCommand/kubeconform_10000_documents", peerTitle: "kubeconform"},
	{title: "validate --no-render, 50,000 documents", slow: true, pkg: "ichor.maesh.dev/internal/bench", benchmark: "BenchmarkValidateCommand/ichor_50000_documents",
		peer: "BenchmarkValidateCommand/kubeconform_50000_documents", peerTitle: "kubeconform"},
	{title: "kubeconform, 10,000 documents", slow: true, pkg: "ichor.maesh.dev/internal/bench", benchmark: "BenchmarkValidateCommand/kubeconform_10000_documents"},
	{title: "hash, check and seal a snapshot of 512 MiB into the spool", slow: true, pkg: "ichor.maesh.dev/internal/bench", benchmark: "BenchmarkSealing/take",
		peer: "BenchmarkSealing/age", peerTitle: "age alone, which hashes nothing"},
	{title: "age alone, the same bytes", slow: true, pkg: "ichor.maesh.dev/internal/bench", benchmark: "BenchmarkSealing/age",
		peer: "BenchmarkSealing/sha256", peerTitle: "SHA-256 alone"},
	{title: "a whole backup of 64 MiB: streamed, sealed, stored, listed", slow: true, pkg: "ichor.maesh.dev/reconcile", benchmark: "BenchmarkWholeBackup/ichor",
		peer: "BenchmarkWholeBackup/to_a_file", peerTitle: "the same stream into a file by Talos's client"},
	{title: "restore of three control planes, all wiped, until Kubernetes is right", slow: true, pkg: "ichor.maesh.dev/internal/bench", benchmark: "BenchmarkRestoreByHand/ichor",
		peer: "BenchmarkRestoreByHand/by_hand", peerTitle: "the same machines by hand, until all have joined"},
	{title: "the same by hand: a script with Talos's client", slow: true, pkg: "ichor.maesh.dev/internal/bench", benchmark: "BenchmarkRestoreByHand/by_hand"},
}
