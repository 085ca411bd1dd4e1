package backup_test

import (
	"testing"
	"testing/fstest"

	"filippo.io/age"
	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
)

const backupDocument = `apiVersion: ichor.maesh.dev/v1alpha1
kind: TalosEtcdBackup
metadata: {name: hourly}
spec:
  clusterRef: {name: prod}
  destination:
    s3: {endpoint: https://s3.example.com, region: eu-1, bucket: backups, prefix: prod/etcd, addressing: host, credentials: {file: s3.age}, ca: {file: ca.crt}}
`

func TestABucketIsOpenedAsTheDocumentAndItsFilesSay(t *testing.T) {
	identity, err := age.GenerateX25519Identity()
	require.NoError(t, err)
	recipients, err := sealed.ParseRecipients("recipients.txt", []byte(identity.Recipient().String()))
	require.NoError(t, err)
	keys, err := sealed.Seal(recipients, []byte("accessKeyID: key\nsecretAccessKey: canary-of-the-secret\nsessionToken: canary-of-the-token\nca.crt: other\n"))
	require.NoError(t, err)
	files := fstest.MapFS{"prod/backup.yaml": {Data: []byte(backupDocument)}, "prod/s3.age": {Data: keys}, "prod/ca.crt": {Data: []byte("an authority")}}
	fleet, problems := schema.Load(files, []string{"."})
	require.Empty(t, problems)
	require.Len(t, fleet.Backups, 1)

	identities, err := sealed.ParseIdentities("key.txt", []byte(identity.String()))
	require.NoError(t, err)
	config, err := backup.BucketOf(fleet, fleet.Backups[0], identities)
	require.NoError(t, err)
	require.Equal(t, statefile.S3Config{Endpoint: "https://s3.example.com", Region: "eu-1", Bucket: "backups", Prefix: "prod/etcd", Addressing: "host",
		CA: []byte("an authority"), Credentials: &statefile.S3Credentials{AccessKeyID: "key", SecretAccessKey: "canary-of-the-secret",
			SessionToken: "canary-of-the-token", CA: []byte("other")}}, config)
	require.Contains(t, identities.Values(), "canary-of-the-token")

	_, err = backup.BucketOf(fleet, fleet.Backups[0], nil)
	require.ErrorIs(t, err, sealed.ErrNoIdentity)
	require.ErrorContains(t, err, "the credentials of the backup hourly: prod/s3.age can't be opened")

	files["prod/s3.age"].Data = []byte("secretAccessKey: canary-of-the-secret\n")
	_, err = backup.BucketOf(fleet, fleet.Backups[0], nil)
	require.ErrorContains(t, err, "prod/s3.age: the S3 credentials lack accessKeyID")
	require.NotContains(t, err.Error(), "canary")
}
