package statefile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/minio/minio-go/v7/pkg/credentials"
	"sigs.k8s.io/yaml"
)

// instanceTimeout bounds the question for an instance's credentials, which hangs where there is nobody to answer.
const instanceTimeout = 5 * time.Second

// S3Credentials opens a bucket. It never prints its values.
type S3Credentials struct {
	AccessKeyID     string
	SecretAccessKey string
	SessionToken    string
	// CA is PEM that came with the credentials; the caller passes it on as [S3Config.CA].
	CA []byte
}

// String hides the values.
func (S3Credentials) String() string { return "S3Credentials{…}" }

// GoString hides the values.
func (S3Credentials) GoString() string { return "statefile.S3Credentials{…}" }

// ParseS3Credentials reads the YAML of a credentials file, opened already if it was sealed: accessKeyID, secretAccessKey and
// optionally sessionToken and ca.crt. Its errors hold no values.
func ParseS3Credentials(data []byte) (*S3Credentials, error) {
	var fields map[string]string
	if len(data) > 1<<20 || yaml.UnmarshalStrict(data, &fields) != nil {
		return nil, errNoS3Credentials
	}
	given := &S3Credentials{}
	for name, value := range fields { // one by one, because a decoder into a struct would not mind the case
		switch name {
		case "accessKeyID":
			given.AccessKeyID = value
		case "secretAccessKey":
			given.SecretAccessKey = value
		case "sessionToken":
			given.SessionToken = value
		case "ca.crt":
			given.CA = []byte(value)
		default:
			return nil, errNoS3Credentials
		}
	}
	if given.AccessKeyID == "" || given.SecretAccessKey == "" {
		return nil, errors.New("the S3 credentials lack accessKeyID or secretAccessKey")
	}
	return given, nil
}

var errNoS3Credentials = errors.New("the S3 credentials are not YAML with accessKeyID, secretAccessKey and optionally sessionToken and ca.crt, and nothing else")

// s3Keys gives the client its keys, and keeps them out of texts.
type s3Keys struct {
	minio *credentials.Credentials

	mu   sync.Mutex
	seen map[string]bool // every value that was ever used, for redacting
}

// newS3Keys takes the given credentials, else those of the AWS_* environment, else the instance's.
func newS3Keys(given *S3Credentials, endpoint *url.URL) (*s3Keys, error) {
	keys := &s3Keys{seen: map[string]bool{}}
	access, secret := os.Getenv("AWS_ACCESS_KEY_ID"), os.Getenv("AWS_SECRET_ACCESS_KEY")
	shared := os.Getenv("AWS_SHARED_CREDENTIALS_FILE")
	profile := os.Getenv("AWS_PROFILE")
	switch {
	case given != nil:
		keys.minio = credentials.NewStaticV4(given.AccessKeyID, given.SecretAccessKey, given.SessionToken)
	case access != "" && secret != "":
		keys.minio = credentials.NewStaticV4(access, secret, os.Getenv("AWS_SESSION_TOKEN"))
	case access != "" || secret != "":
		return nil, errors.New("of AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY only one is set; set both")
	case shared != "" || profile != "":
		keys.minio = credentials.NewFileAWSCredentials(shared, profile)
	case isAWS(endpoint) || instanceNamed():
		keys.minio = credentials.New(&credentials.IAM{Client: &http.Client{Timeout: instanceTimeout}})
	default:
		return nil, errors.New("there are no S3 credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give a credentials file")
	}
	return keys, nil
}

// instanceNamed says whether the environment names where an instance's credentials come from.
func instanceNamed() bool {
	for _, name := range []string{"AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_CONTAINER_CREDENTIALS_FULL_URI"} {
		if os.Getenv(name) != "" {
			return true
		}
	}
	return false
}

// get fetches the keys if they are not there yet or have expired. The client does the same before each request, but would go on
// as nobody without any.
func (k *s3Keys) get(ctx context.Context) (credentials.Value, error) {
	value, err := k.minio.GetWithContext(&credentials.CredContext{Client: &http.Client{Timeout: instanceTimeout}, Context: ctx})
	if err != nil {
		return credentials.Value{}, fmt.Errorf("%w: there are no S3 credentials in the environment, and the instance gave none; set AWS_ACCESS_KEY_ID and "+
			"AWS_SECRET_ACCESS_KEY, or give a credentials file: %w", ErrUnavailable, err)
	}
	if value.AccessKeyID == "" || value.SecretAccessKey == "" {
		return credentials.Value{}, errors.New("there are no S3 credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give a credentials file")
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, part := range []string{value.AccessKeyID, value.SecretAccessKey, value.SessionToken} {
		if part != "" {
			k.seen[part] = true
		}
	}
	return value, nil
}

// redact takes every key out of a text, as it stands and as a URL would carry it.
func (k *s3Keys) redact(text string) string {
	k.mu.Lock()
	defer k.mu.Unlock()
	longestFirst := slices.SortedFunc(maps.Keys(k.seen), func(a, b string) int { return len(b) - len(a) })
	var pairs []string
	for _, part := range longestFirst {
		for _, form := range []string{part, url.QueryEscape(part), url.PathEscape(part)} {
			pairs = append(pairs, form, "[redacted]")
		}
	}
	// One walk over the text: what was put in is not looked at again.
	return strings.NewReplacer(pairs...).Replace(text)
}
