package reconcile

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"ichor.maesh.dev/backup"
	"ichor.maesh.dev/backup/keeper"
	"ichor.maesh.dev/internal/sealed"
	"ichor.maesh.dev/recovery"
	"ichor.maesh.dev/schema"
	"ichor.maesh.dev/statefile"
	"ichor.maesh.dev/talos"
)

// tappedRecovery are the machines of a restore behind a tap.
type tappedRecovery struct {
	tap   *tap
	inner recovery.Nodes
}

func (n tappedRecovery) Observe(ctx context.Context, target talos.Target) talos.Observation {
	if err := n.tap.alive(); err != nil {
		return talos.Observation{Problem: err.Error()}
	}
	return n.inner.Observe(ctx, target)
}

func (n tappedRecovery) Dial(ctx context.Context, target talos.Target) (recovery.Session, error) {
	return n.session(target, func() (recovery.Session, error) { return n.inner.Dial(ctx, target) })
}

func (n tappedRecovery) DialMaintenance(ctx context.Context, target talos.Target, fingerprint string) (recovery.Session, error) {
	return n.session(target, func() (recovery.Session, error) { return n.inner.DialMaintenance(ctx, target, fingerprint) })
}

func (n tappedRecovery) session(target talos.Target, dial func() (recovery.Session, error)) (session recovery.Session, err error) {
	err = n.tap.around("restore's dial "+target.Name, func() error {
		session, err = dial()
		return err
	})
	if err != nil {
		if session != nil {
			_ = session.Close()
		}
		return nil, err
	}
	return tappedRestore{tap: n.tap, name: target.Name, Session: session}, nil
}

// tappedRestore is a restore's session behind a tap.
type tappedRestore struct {
	tap  *tap
	name string
	recovery.Session
}

func (s tappedRestore) around(call string, effect func() error) error {
	return s.tap.around("restore's "+call+" "+s.name, effect)
}

func (s tappedRestore) UUID(ctx context.Context) (uuid string, err error) {
	err = s.around("UUID", func() error { uuid, err = s.Session.UUID(ctx); return err })
	return uuid, err
}

func (s tappedRestore) BootID(ctx context.Context) (id string, err error) {
	err = s.around("BootID", func() error { id, err = s.Session.BootID(ctx); return err })
	return id, err
}

func (s tappedRestore) EtcdData(ctx context.Context) (data talos.Fact, err error) {
	err = s.around("EtcdData", func() error { data, err = s.Session.EtcdData(ctx); return err })
	return data, err
}

func (s tappedRestore) Services(ctx context.Context) (services []talos.Service, err error) {
	err = s.around("Services", func() error { services, err = s.Session.Services(ctx); return err })
	return services, err
}

func (s tappedRestore) EtcdSnapshot(ctx context.Context) (stream io.ReadCloser, err error) {
	err = s.around("EtcdSnapshot", func() error { stream, err = s.Session.EtcdSnapshot(ctx); return err })
	return stream, err
}

func (s tappedRestore) ApplyConfig(ctx context.Context, request talos.ApplyRequest) error {
	return s.around("ApplyConfig", func() error { return s.Session.ApplyConfig(ctx, request) })
}

func (s tappedRestore) Reset(ctx context.Context, request talos.ResetRequest) error {
	return s.around("Reset", func() error { return s.Session.Reset(ctx, request) })
}

func (s tappedRestore) Reboot(ctx context.Context, mode talos.RebootMode) error {
	return s.around("Reboot", func() error { return s.Session.Reboot(ctx, mode) })
}

func (s tappedRestore) UploadSnapshot(ctx context.Context, snapshot io.Reader) error {
	return s.around("UploadSnapshot", func() error { return s.Session.UploadSnapshot(ctx, snapshot) })
}

func (s tappedRestore) RecoverEtcd(ctx context.Context) error {
	return s.around("RecoverEtcd", func() error { return s.Session.RecoverEtcd(ctx) })
}

func (s tappedRestore) LeaveEtcd(ctx context.Context) error {
	return s.around("LeaveEtcd", func() error { return s.Session.LeaveEtcd(ctx) })
}

func (s tappedRestore) RemoveMember(ctx context.Context, id uint64) error {
	return s.around("RemoveMember", func() error { return s.Session.RemoveMember(ctx, id) })
}

func (s tappedRestore) RestartService(ctx context.Context, id string) error {
	return s.around("RestartService", func() error { return s.Session.RestartService(ctx, id) })
}

// tappedPlaces opens destinations whose writes of a restore are behind a tap.
type tappedPlaces struct {
	tap        *tap
	identities func() (*sealed.Identities, error)
}

func (p tappedPlaces) Open(ctx context.Context, fleet *schema.Fleet, b *schema.TalosEtcdBackup, owner backup.Owner) (*keeper.Place, error) {
	identities, err := p.identities()
	if err != nil {
		return nil, err
	}
	config, err := backup.BucketOf(fleet, b, identities)
	if err != nil {
		return nil, err
	}
	bucket, err := statefile.OpenBucket(ctx, config)
	if err != nil {
		return nil, err
	}
	objects := &tappedBucket{Bucket: bucket, tap: p.tap, sealer: owner.Sealer, markerKey: config.Prefix + "/" + backup.MarkerKey}
	return &keeper.Place{Destination: backup.NewDestination(objects, config.Prefix, owner), Key: config.Bucket, Close: bucket.Close}, nil
}

// tappedBucket is a bucket whose writes of a restore are behind a tap: the marker, named by what is new in it, and the pinned copy.
type tappedBucket struct {
	*statefile.Bucket
	tap       *tap
	sealer    *statefile.Sealer
	markerKey string
	seen      *recovery.Marker
}

func (b *tappedBucket) decoded(data []byte) *recovery.Marker {
	record, err := statefile.DecodeRecord(b.sealer, b.markerKey, data)
	if err != nil {
		return nil
	}
	marker, _ := recovery.DecodeMarker(record.Content) // nil where it isn't one
	return marker
}

func (b *tappedBucket) Get(ctx context.Context, key, known string) (*statefile.Object, error) {
	if err := b.tap.alive(); err != nil {
		return nil, err
	}
	object, err := b.Bucket.Get(ctx, key, known)
	if err == nil && key == backup.MarkerKey {
		b.seen = b.decoded(object.Data)
	}
	return object, err
}

func (b *tappedBucket) Put(ctx context.Context, key string, data []byte, condition statefile.If) (etag string, err error) {
	put := func() error { etag, err = b.Bucket.Put(ctx, key, data, condition); return err }
	if key != backup.MarkerKey {
		if err := b.tap.alive(); err != nil {
			return "", err
		}
		err := put()
		return etag, err
	}
	marker := b.decoded(data)
	name := "marker " + changed(b.seen, marker)
	err = b.tap.around(name, put)
	if err == nil {
		b.seen = marker
	}
	return etag, err
}

func (b *tappedBucket) Upload(ctx context.Context, key string, content *io.SectionReader, metadata map[string]string) (stat statefile.Stat, err error) {
	upload := func() error { stat, err = b.Bucket.Upload(ctx, key, content, metadata); return err }
	if _, snapshot := backup.ParseName(key); snapshot {
		if err := b.tap.alive(); err != nil {
			return stat, err
		}
		err := upload()
		return stat, err
	}
	return stat, b.tap.around("pinned copy", upload)
}

func (b *tappedBucket) Remove(ctx context.Context, key string) error {
	remove := func() error { return b.Bucket.Remove(ctx, key) }
	if _, snapshot := backup.ParseName(key); snapshot {
		if err := b.tap.alive(); err != nil {
			return err
		}
		return remove()
	}
	return b.tap.around("pinned copy away", remove)
}

// changed names what is new in a marker.
func changed(before, after *recovery.Marker) string {
	if after == nil {
		return "unreadable"
	}
	if before == nil || before.ID != after.ID {
		return "made"
	}
	if before.Driver != after.Driver {
		return fmt.Sprintf("driven in %s", after.Phase)
	}
	if before.Phase != after.Phase {
		return fmt.Sprintf("enters %s", after.Phase)
	}
	had := map[string]recovery.Intent{}
	for _, i := range before.Intents {
		had[i.Nonce] = i
	}
	for _, i := range after.Intents {
		old, known := had[i.Nonce]
		switch {
		case !known:
			return fmt.Sprintf("intent %s %s", i.Action, i.Machine)
		case old.Outcome != i.Outcome:
			return fmt.Sprintf("outcome %s %s", i.Action, i.Machine)
		}
	}
	return fmt.Sprintf("noted in %s", after.Phase)
}

func TestAWriteOfTheMarkerIsNamedByWhatIsNewInIt(t *testing.T) {
	at := func(change func(*recovery.Marker)) *recovery.Marker {
		m := &recovery.Marker{ID: "recover:1", Phase: recovery.PhaseLeaving, Driver: statefile.Writer{ID: "a", Epoch: 1},
			Intents: []recovery.Intent{{Nonce: "n1", Action: recovery.ActLeave, Machine: "cp-1"}}}
		if change != nil {
			change(m)
		}
		return m
	}
	for name, test := range map[string]struct{ before, after *recovery.Marker }{
		"made":              {nil, at(nil)},
		"unreadable":        {at(nil), nil},
		"driven in leaving": {at(nil), at(func(m *recovery.Marker) { m.Driver.Epoch++; m.Problem = "" })},
		"enters joining":    {at(nil), at(func(m *recovery.Marker) { m.Phase = recovery.PhaseJoining })},
		"intent reboot cp-2": {at(nil), at(func(m *recovery.Marker) {
			m.Intents = append(m.Intents, recovery.Intent{Nonce: "n2", Action: recovery.ActReboot, Machine: "cp-2"})
		})},
		"outcome leave cp-1": {at(nil), at(func(m *recovery.Marker) { m.Intents[0].Outcome = statefile.OutcomeOK })},
		"noted in leaving":   {at(nil), at(func(m *recovery.Marker) { m.Problem = "something"; m.Began = time.Now() })},
	} {
		require.Equal(t, name, changed(test.before, test.after))
	}
}
