package main

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/internal/s3gateway"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// canaryToken is a session token that no text may show.
const canaryToken = "canary-session-token//with+more==0123"

// formsOf gives a secret as an error could carry it.
func formsOf(secret string) []string {
	quoted, _ := json.Marshal(secret)
	return []string{secret, url.QueryEscape(secret), url.PathEscape(secret), string(quoted[1 : len(quoted)-1]), hex.EncodeToString([]byte(secret)),
		base64.RawStdEncoding.EncodeToString([]byte(secret))}
}

func TestNoWritingOfASecretThatAStoreRepeatsIsPrinted(t *testing.T) {
	s := newSite(t, startServer(t, s3gateway.Options{}), "prod").fill(statefile.S3Config{})
	s.keys(canaryAccess, canarySecret, canaryToken)
	material, err := talos.LoadBundle(s.bundle)
	require.NoError(t, err)
	sealing := material.SealingMaterial()
	var echoes []string
	for _, secret := range []string{canarySecret, canaryToken, s.passphrase(s.bundle), sealing.ClusterSecret, sealing.EncryptionSecret} {
		quoted, err := json.Marshal(map[string]string{"secret": secret})
		require.NoError(t, err)
		echoes = append(echoes, append(formsOf(secret), strings.ToLower(url.QueryEscape(secret)), string(quoted), fmt.Sprintf("%q", secret),
			base64.StdEncoding.EncodeToString([]byte(secret)), base64.URLEncoding.EncodeToString([]byte(secret)),
			"Basic "+base64.StdEncoding.EncodeToString([]byte("user:"+secret)), base64.StdEncoding.EncodeToString(quoted))...)
	}
	echo := ""
	s.middlebox(func(w http.ResponseWriter, _ *http.Request) bool {
		var text bytes.Buffer
		require.NoError(t, xml.EscapeText(&text, []byte(echo)))
		w.Header().Set("Content-Type", "application/xml")
		w.WriteHeader(http.StatusForbidden)
		_, _ = fmt.Fprintf(w, "<Error><Code>%[1]s</Code><Message>denied for %[1]s</Message><Resource>%[1]s</Resource></Error>", text.String())
		return true
	})
	for n, each := range echoes {
		echo = each
		args := [][]string{{"list"}, {"verify"}, {"get", "--decrypt"}, {"drill"}}[n%4]
		code, _, stderr := s.run(args...)
		require.Equal(t, exitCannot, code, stderr)
		require.Contains(t, stderr, "it answered 403 ", "what the store says is said, without the secret")
		for shift := range 3 { // in base64 of something longer it stands at one of three alignments
			for _, secret := range []string{canarySecret, canaryToken, s.passphrase(s.bundle)} {
				inner := base64.RawStdEncoding.EncodeToString(append(make([]byte, shift), secret...))
				require.NotContains(t, stderr, inner[4:len(inner)-4], "%v: %s", args, stderr)
			}
		}
	}
}
