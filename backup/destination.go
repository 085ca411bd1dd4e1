package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"ichor.maesh.dev/statefile"
)

const (
	// MarkerKey is the object of a restore that is under way, beside the snapshots.
	MarkerKey = "etcd-restore.marker.json"
	// probeKey is the throw-away object with which a destination is tried.
	probeKey = "etcd-probe.json"
	// mostObjects is how many objects that are called like snapshots are looked at: hourly ones of eleven years.
	mostObjects = 100_000
	// askedAtOnce is how many objects are asked about at a time.
	askedAtOnce = 16
)

// Metadata of a snapshot's object. It is for people and for telling clusters apart; what proves a snapshot is the index.
const (
	metadataCluster    = "cluster-id"
	metadataRevision   = "etcd-revision"
	metadataTalos      = "talos-version"
	metadataKubernetes = "kubernetes-version"
)

// Objects is the bucket, below a destination's prefix; *statefile.Bucket is one.
type Objects interface {
	statefile.Store
	Stat(ctx context.Context, key string) (statefile.Stat, error)
	Upload(ctx context.Context, key string, content *io.SectionReader, metadata map[string]string) (statefile.Stat, error)
	Download(ctx context.Context, key string) (io.ReadCloser, statefile.Stat, error)
	Remove(ctx context.Context, key string) error
}

// Destination is where the snapshots of one cluster's TalosEtcdBackup are kept. It is safe for use by one goroutine at a time.
type Destination struct {
	objects    Objects
	prefix     string
	clusterID  string
	passphrase Passphrase
	sealer     *statefile.Sealer
	// owners remembers whose an object that isn't listed is, by its name and time.
	owners sync.Map
	// digests remembers the SHA-256 of objects whose ETag isn't the one in the index, by name and ETag.
	digests sync.Map
}

// Owner is whose snapshots a destination keeps: what its bundle gives. Without a Sealer the index is only shown, never trusted.
type Owner struct {
	// ClusterID is the cluster's spec.id.
	ClusterID  string
	Passphrase Passphrase
	Sealer     *statefile.Sealer
}

// NewDestination makes a destination; it sends nothing. Prefix is the one that objects are below: the seal of the index covers it.
func NewDestination(objects Objects, prefix string, owner Owner) *Destination {
	return &Destination{objects: objects, prefix: strings.Trim(prefix, "/"), clusterID: owner.ClusterID, passphrase: owner.Passphrase,
		sealer: owner.Sealer}
}

// Location says where it is, without credentials.
func (d *Destination) Location() string { return d.objects.Location() }

// sealedKey is an object's key as its seal covers it: with the prefix, so that an index can't be put under another one.
func (d *Destination) sealedKey(key string) string {
	if d.prefix == "" {
		return key
	}
	return d.prefix + "/" + key
}

// Probe tries the destination with a throw-away object and says which permissions are missing, of "read", "write", "list" and "delete".
// Only a missing right to delete is no error: then nothing is pruned.
func (d *Destination) Probe(ctx context.Context) (*statefile.ProbeResult, error) {
	result, err := statefile.ProbeKey(ctx, d.objects, probeKey, "the backup destination "+d.Location())
	if err == nil {
		err = d.objects.Delete(ctx, probeKey)
		if errors.Is(err, statefile.ErrPermission) {
			err = nil
		}
	}
	return result, err
}

// Contents is what a destination holds.
type Contents struct {
	// Snapshots are those in the index, newest first. One that the bucket doesn't hold any more, or in whose place another object is, is Missing.
	Snapshots []Snapshot
	// Foreign are the names of snapshots that another cluster uploaded, or that nobody knows who did; Unlisted those that say they are this
	// cluster's and that the index doesn't list.
	Foreign, Unlisted []string
	// Marker says that the marker of a restore is there that has not ended, or that can't be believed; MarkerEnded that there is one of a
	// restore that has ended.
	Marker, MarkerEnded bool
	// Indexed says that there is an index, and IndexProblem why it can't be trusted.
	Indexed      bool
	IndexProblem error
	// Sizes are of every snapshot's object that the bucket lists, in bytes.
	Sizes map[string]int64
}

// Missing are the listed snapshots that the bucket doesn't hold as they were stored.
func (c Contents) Missing() []string {
	var names []string
	for _, s := range c.Snapshots {
		if s.Missing && !s.Deleting {
			names = append(names, s.Name)
		}
	}
	return names
}

// Contents lists the destination. An index that can't be trusted is an error.
func (d *Destination) Contents(ctx context.Context) (Contents, error) {
	c, err := d.Look(ctx)
	if err == nil {
		err = c.IndexProblem
	}
	if err != nil {
		return Contents{}, err
	}
	return c, nil
}

// Look is [Destination.Contents] for who must see what there is all the same: an index that is forged, damaged or sealed with another
// bundle is said in IndexProblem, and then every snapshot is Foreign or Unlisted.
func (d *Destination) Look(ctx context.Context) (Contents, error) {
	found := map[string]statefile.ObjectInfo{}
	c := Contents{Sizes: map[string]int64{}}
	err := d.objects.List(ctx, namePrefix, "", func(o statefile.ObjectInfo) error {
		if _, ok := ParseName(o.Key); ok {
			if len(found) == mostObjects {
				return fmt.Errorf("more than %d objects in %s are called like snapshots, which no cluster stored: find out who can write there, and delete them",
					mostObjects, d.Location())
			}
			found[o.Key] = o
			c.Sizes[o.Key] = o.Size
		}
		c.Marker = c.Marker || o.Key == MarkerKey
		c.Indexed = c.Indexed || o.Key == indexKey
		return nil
	})
	if err != nil {
		return Contents{}, err
	}
	// The index is read after the listing, so that a snapshot that is being added is in the index at least.
	list, err := d.readIndex(ctx)
	switch {
	case unreached(err):
		return Contents{}, err
	case err != nil:
		c.IndexProblem, list = err, &indexAt{}
	case list.record != nil:
		c.Indexed = true
	}
	if c.Marker {
		if err := d.lookAtMarker(ctx, &c); err != nil {
			return Contents{}, err
		}
	}
	for _, s := range slices.Backward(list.Snapshots) {
		object, ok := found[s.Name]
		if !ok && !s.Deleting { // it may have come after the listing
			stat, err := d.objects.Stat(ctx, s.Name)
			if err != nil && !errors.Is(err, statefile.ErrNotFound) {
				return Contents{}, err
			}
			object, ok = statefile.ObjectInfo{Key: s.Name, Size: stat.Size, ETag: stat.ETag}, err == nil
		}
		s.Missing = !ok
		if ok {
			if s.Missing, err = d.isReplaced(ctx, s, object); err != nil {
				return Contents{}, err
			}
		}
		c.Snapshots = append(c.Snapshots, s)
		delete(found, s.Name)
	}
	if err := d.sort(ctx, found, &c); err != nil {
		return Contents{}, err
	}
	return c, nil
}

// lookAtMarker finds out whether the restore of a marker that is there has ended. Nobody is believed that without a seal that is checked.
func (d *Destination) lookAtMarker(ctx context.Context, c *Contents) error {
	if d.sealer == nil {
		return nil
	}
	content, err := d.Marker().Read(ctx)
	var forged *statefile.StateForgedError
	switch {
	case errors.As(err, &forged), errors.Is(err, statefile.ErrNewerSchema):
		return nil
	case err != nil:
		return err
	case content == nil || ended(content):
		c.Marker, c.MarkerEnded = false, content != nil
	}
	return nil
}

// unreached says whether an error of reading the index says nothing about the index.
func unreached(err error) bool {
	var forged *statefile.StateForgedError
	return err != nil && !errors.As(err, &forged) && !errors.Is(err, errIndex)
}

// sort says of objects that aren't listed whose they are. Where many are, as without an index, they are asked for side by side.
func (d *Destination) sort(ctx context.Context, found map[string]statefile.ObjectInfo, c *Contents) error {
	names := slices.Sorted(maps.Keys(found))
	owners := make([]string, len(names))
	gone := make([]bool, len(names))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(askedAtOnce)
	for n, name := range names {
		group.Go(func() error {
			var err error
			owners[n], err = d.owner(ctx, found[name])
			if errors.Is(err, statefile.ErrNotFound) { // deleted meanwhile
				gone[n] = true
				return nil
			}
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	for n, name := range names {
		switch {
		case gone[n]:
		case owners[n] == d.clusterID:
			c.Unlisted = append(c.Unlisted, name)
		default:
			c.Foreign = append(c.Foreign, name)
		}
	}
	return nil
}

// owner asks once for whose an object says it is.
func (d *Destination) owner(ctx context.Context, o statefile.ObjectInfo) (string, error) {
	key := o.Key + "@" + o.Modified.UTC().Format(time.RFC3339Nano)
	if owner, ok := d.owners.Load(key); ok {
		return owner.(string), nil
	}
	stat, err := d.objects.Stat(ctx, o.Key)
	if err != nil {
		return "", err
	}
	owner := stat.Metadata[metadataCluster]
	d.owners.Store(key, owner)
	return owner, nil
}

// ClockBehindError: a snapshot would get a name that is not after the newest one's.
type ClockBehindError struct{ Name, Newest string }

func (e *ClockBehindError) Error() string {
	return fmt.Sprintf("the new snapshot would be called %s, and %s is there already: this machine's clock, or that of an earlier agent, is wrong; "+
		"set it right, or if it was the earlier one, wait until that time has passed or move the snapshot away", e.Name, e.Newest)
}

// Describe makes the entry of a snapshot that was taken, before anything is stored, so that it can be remembered first.
func (d *Destination) Describe(t *Taken, talosVersion, kubernetesVersion string) Snapshot {
	return Snapshot{Name: ObjectName(t.At), Time: t.At.UTC().Truncate(time.Second), SHA256: t.SHA256, SealedSize: t.SealedSize, Size: t.Size, Revision: t.Revision,
		Member: t.Member, TalosVersion: talosVersion, KubernetesVersion: kubernetesVersion}
}

// CheckName says whether a snapshot of this name may be stored: [*ClockBehindError].
func (d *Destination) CheckName(ctx context.Context, name string) error {
	list, err := d.readIndex(ctx)
	if err != nil {
		return err
	}
	return checkName(&list.index, name)
}

func checkName(i *index, name string) error {
	if newest := i.newest(); name <= newest {
		return &ClockBehindError{Name: name, Newest: newest}
	}
	return nil
}

// Store uploads a snapshot that was taken and lists it. The store must report what was sent; another object under that name is never
// replaced.
func (d *Destination) Store(ctx context.Context, s Snapshot, t *Taken) error {
	if err := d.CheckName(ctx, s.Name); err != nil {
		return err
	}
	stat, err := d.objects.Upload(ctx, s.Name, t.Sealed(), map[string]string{metadataCluster: d.clusterID, metadataRevision: fmt.Sprint(s.Revision),
		metadataTalos: s.TalosVersion, metadataKubernetes: s.KubernetesVersion})
	if err != nil {
		return err
	}
	s.ETag = stat.ETag
	return d.list(ctx, s)
}

// list puts a stored snapshot into the index.
func (d *Destination) list(ctx context.Context, s Snapshot) error {
	err := d.swapIndex(ctx, func(i *index) error {
		if have := i.find(s.Name); have != nil && have.SHA256 == s.SHA256 {
			return nil // an earlier write of this process, whose answer was lost
		}
		if err := checkName(i, s.Name); err != nil {
			return err
		}
		i.add(s)
		return nil
	})
	if err != nil {
		return fmt.Errorf("the snapshot %s is stored and could not be listed: %w", s.Name, err)
	}
	return nil
}

// Finish ends what a process that died may have begun: a snapshot that was described and remembered. It says whether it is stored and
// listed now; if not, it never will be. Its content is read once, since only its digest tells that it is the one.
func (d *Destination) Finish(ctx context.Context, s Snapshot) (stored bool, err error) {
	list, err := d.readIndex(ctx)
	if err != nil {
		return false, err
	}
	if have := list.find(s.Name); have != nil {
		return have.SHA256 == s.SHA256, nil
	}
	digest, size, etag, err := d.digest(ctx, s.Name)
	switch {
	case errors.Is(err, statefile.ErrNotFound):
		return false, nil
	case err != nil:
		return false, err
	case digest != s.SHA256 || size != s.SealedSize:
		return false, nil
	}
	s.ETag = etag
	return true, d.list(ctx, s)
}

// NoteDrill puts the result of a drill beside its snapshot.
func (d *Destination) NoteDrill(ctx context.Context, name string, result DrillResult) error {
	return d.swapIndex(ctx, func(i *index) error {
		have := i.find(name)
		if have == nil {
			return fmt.Errorf("the drilled snapshot %s is no longer in the index", name)
		}
		have.Drill = &result
		return nil
	})
}
