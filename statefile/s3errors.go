package statefile

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/minio/minio-go/v7"

	"ichor.maesh.dev/internal/printable"
)

// storeError has a text that was cleaned of credentials and control characters, and the errors that callers act on.
type storeError struct {
	text  string
	cause error
}

func (e *storeError) Error() string { return printable.Text(e.text) }

// Is finds the sentinel errors only: what lies below could hold what the text was cleaned of.
func (e *storeError) Is(target error) bool {
	switch target {
	case ErrNotFound, ErrUnchanged, ErrConflict, ErrUnacknowledged, ErrUnavailable, ErrPermission, ErrTooLarge, ErrNoConditions, ErrLocked,
		context.Canceled, context.DeadlineExceeded:
		return errors.Is(e.cause, target)
	}
	return false
}

// lateError is a call that took longer than one may.
type lateError struct{ limit time.Duration }

func (e *lateError) Error() string {
	return fmt.Sprintf("no answer in time: one call may take %s", e.limit)
}
func (e *lateError) Unwrap() error { return context.DeadlineExceeded }

// oneCall bounds a call, and says of an error whether it is that bound which was met.
func oneCall(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc, func(error) error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, &lateError{limit})
	return ctx, cancel, func(err error) error {
		if errors.Is(err, context.DeadlineExceeded) && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return err
	}
}

// answer gives what an S3 server answered, nil when it did not.
func answer(err error) *minio.ErrorResponse {
	var response minio.ErrorResponse
	if errors.As(err, &response) && response.StatusCode != 0 {
		return &response
	}
	return nil
}

// classifyRead names an error of a call that changes nothing, or may be repeated.
func classifyRead(err error) error {
	if err == nil || errors.Is(err, ErrTooLarge) || errors.Is(err, ErrUnchanged) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrLocked) {
		return err
	}
	response := answer(err)
	if response == nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, hint(err))
	}
	switch status := response.StatusCode; {
	case status == http.StatusNotModified:
		return ErrUnchanged
	case response.Code == minio.NoSuchBucket:
		return errors.New("there is no such bucket; make it, or mend the bucket's name")
	case noSuchKey(response):
		return ErrNotFound
	case isDenied(response):
		return denied(response)
	case otherRegion(response):
		return elsewhere(response)
	case status == http.StatusTooManyRequests, status >= 500 && status != http.StatusNotImplemented:
		return fmt.Errorf("%w: it answered %d %s", ErrUnavailable, status, response.Code)
	default:
		return fmt.Errorf("the store answered %d %s: %w", status, response.Code, err)
	}
}

// classifyWrite names an error of a write that was sent once. Only an answer that rules the write out, or that there never was
// a connection, proves that nothing was written.
func classifyWrite(err error, connected bool) error {
	response := answer(err)
	if response == nil {
		if connected {
			return fmt.Errorf("%w: %w", ErrUnacknowledged, hint(err))
		}
		return fmt.Errorf("nothing was written: %w: %w", ErrUnavailable, hint(err))
	}
	switch status := response.StatusCode; {
	case response.Code == minio.NoSuchBucket:
		return errors.New("there is no such bucket; make it, or mend the bucket's name")
	case isDenied(response):
		return denied(response)
	case otherRegion(response):
		return elsewhere(response)
	case noSuchKey(response), status == http.StatusConflict, status == http.StatusPreconditionFailed:
		return fmt.Errorf("%w (the store answered %d %s)", ErrConflict, status, response.Code)
	case status == http.StatusTooManyRequests:
		return fmt.Errorf("nothing was written: %w: it answered %d %s", ErrUnavailable, status, response.Code)
	case status == http.StatusNotImplemented:
		return fmt.Errorf("%w (it answered %d %s)", ErrNoConditions, status, response.Code)
	case status >= 500, status < 300:
		// A gateway before the store may say so after the store did its work.
		return fmt.Errorf("%w: it answered %d %s", ErrUnacknowledged, status, response.Code)
	default:
		return fmt.Errorf("nothing was written: the store answered %d %s: %w", status, response.Code, err)
	}
}

// noSuchKey says whether the server itself said that there is no object. A 404 without S3's own error is some other server's, in front
// of it or in its place: that an object is gone must not be concluded from it.
func noSuchKey(response *minio.ErrorResponse) bool {
	return response.StatusCode == http.StatusNotFound && response.Code == minio.NoSuchKey && response.XMLName.Local == "Error"
}

// isDenied goes by the code too, because some servers answer an unknown key with 404.
func isDenied(response *minio.ErrorResponse) bool {
	return response.StatusCode == http.StatusUnauthorized || response.StatusCode == http.StatusForbidden ||
		unknownKeys(response) || badToken(response)
}

func badToken(response *minio.ErrorResponse) bool {
	switch response.Code { // AWS answers 400 or 403 with them
	case "ExpiredToken", "TokenRefreshRequired", "InvalidToken":
		return true
	}
	return false
}

// otherRegion says whether the bucket is where the request was not meant for.
func otherRegion(response *minio.ErrorResponse) bool {
	switch response.Code {
	case "AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException":
		return true
	}
	return response.StatusCode == http.StatusMovedPermanently || response.StatusCode == http.StatusTemporaryRedirect
}

func elsewhere(response *minio.ErrorResponse) error {
	if response.Region != "" {
		return fmt.Errorf("the bucket is in the region %.40s; give that region (it answered %d %s)", response.Region, response.StatusCode, response.Code)
	}
	return fmt.Errorf("the bucket is in another region, or behind another endpoint; give its region and its endpoint (it answered %d %s)",
		response.StatusCode, response.Code)
}

func unknownKeys(response *minio.ErrorResponse) bool {
	switch response.Code {
	case minio.InvalidAccessKeyID, minio.SignatureDoesNotMatch, "XAdminUserNotFound": // the last is versitygw's
		return true
	}
	return false
}

func denied(response *minio.ErrorResponse) error {
	if unknownKeys(response) {
		return fmt.Errorf("%w: it does not know these keys (%s)", ErrPermission, response.Code)
	}
	switch {
	case response.Code == minio.RequestTimeTooSkewed:
		return fmt.Errorf("%w: this machine's clock and the store's are too far apart; set this machine's clock right", ErrPermission)
	case badToken(response):
		return fmt.Errorf("%w: the session token has expired or is wrong (%s)", ErrPermission, response.Code)
	}
	return &accessError{response.StatusCode, response.Code}
}

// accessError: the keys are good, and have no right to this.
type accessError struct {
	status int
	code   string
}

func (e *accessError) Error() string {
	return fmt.Sprintf("%v (it answered %d %s)", ErrPermission, e.status, e.code)
}

func (e *accessError) Unwrap() error { return ErrPermission }

// rights names S3's right that is needed to do what a text of this package calls by these verbs.
var rights = map[string]string{"listing": "s3:ListBucket", "reading": "s3:GetObject", "looking at": "s3:GetObject", "downloading": "s3:GetObject",
	"writing": "s3:PutObject", "uploading": "s3:PutObject", "deleting": "s3:DeleteObject"}

// hint says what to do about a failed connection where the reason is a common one.
func hint(err error) error {
	var untrusted *tls.CertificateVerificationError
	var late *lateError
	switch {
	case errors.As(err, &late):
		return late
	case errors.As(err, &untrusted):
		return fmt.Errorf("its certificate is not trusted here; give its authority (ca.crt): %w", untrusted.Err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("no answer in time: %w", context.DeadlineExceeded)
	}
	// What was asked for is said by who asked; the address stays in what lies below.
	var request *url.Error
	if errors.As(err, &request) {
		return request.Err
	}
	return err
}
