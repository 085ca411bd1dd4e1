package kube

import (
	"context"
	"errors"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"ichor.maesh.dev/internal/printable"
)

// ErrUnavailable is in the chain of every error that says that no API server gave an answer. It says nothing about the
// cluster: the same call may be made again later.
var ErrUnavailable = errors.New("the Kubernetes API gives no answer")

// ErrChanged is in the chain of an error that says that an object isn't the one that was looked at: it has another UID,
// or it was changed again and again meanwhile. Look again and decide again.
var ErrChanged = errors.New("it is not what was looked at")

// ErrNotFound is in the chain of an error that says that there is no such object.
var ErrNotFound = errors.New("it is not there")

// CordonedError says that a node was cordoned by somebody else, and was left as it is. For a drain that is as good.
type CordonedError struct {
	Node string
	// By is the owner of the cordon when another operation of Ichor's made it, empty for anybody else.
	By string
}

func (e *CordonedError) Error() string {
	if e.By == "" {
		return fmt.Sprintf("%s was cordoned already, and not by Ichor: it stays cordoned until the one who did it lifts it (kubectl uncordon %s)", e.Node, e.Node)
	}
	return fmt.Sprintf("%s was cordoned already, by %s: it stays cordoned until that is over", e.Node, e.By)
}

// maxText bounds a text that comes from the cluster, in runes.
const maxText = 400

// clean makes a text from the cluster fit to be shown.
func clean(text string) string {
	text = printable.Text(text)
	if runes := []rune(text); len(runes) > maxText {
		return string(runes[:maxText]) + "…"
	}
	return text
}

// failure is an error of a call, in this package's words: doing is what was being done to what.
func failure(doing string, err error) error {
	if err == nil {
		return nil
	}
	var known *unreachableError
	switch {
	case errors.Is(err, context.Canceled):
		return fmt.Errorf("%s: %w", doing, context.Canceled)
	case errors.As(err, &known):
		return fmt.Errorf("%s: %w: %s", doing, ErrUnavailable, known.Error())
	case errors.Is(err, ErrUnavailable), errors.Is(err, ErrChanged), errors.Is(err, ErrNotFound):
		return fmt.Errorf("%s: %w", doing, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("%s: %w in time: %w", doing, ErrUnavailable, context.DeadlineExceeded)
	case apierrors.IsNotFound(err):
		return fmt.Errorf("%s: %w", doing, ErrNotFound)
	case apierrors.IsConflict(err):
		return fmt.Errorf("%s: %w: %s", doing, ErrChanged, clean(err.Error()))
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%s: the API server doesn't accept the certificate that Ichor minted; are the secrets bundle and the clock right? (%s)", doing, clean(err.Error()))
	case mayPass(err):
		return fmt.Errorf("%s: %w: %s", doing, ErrUnavailable, clean(err.Error()))
	}
	return fmt.Errorf("%s: %s", doing, clean(err.Error()))
}

// mayPass says whether an answer is of an API server that can't work at the moment: it starts, has lost its etcd, or has
// too much to do.
func mayPass(err error) bool {
	return apierrors.IsInternalError(err) || apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) ||
		apierrors.IsServiceUnavailable(err) || apierrors.IsTooManyRequests(err) || apierrors.IsUnexpectedServerError(err)
}

// uncertain says whether a write that ended with err may have been accepted all the same.
func uncertain(err error) bool {
	var known *unreachableError
	if errors.As(err, &known) {
		return known.sent
	}
	return errors.Is(err, context.DeadlineExceeded) || mayPass(err) && !apierrors.IsTooManyRequests(err)
}
