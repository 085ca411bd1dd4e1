package recovery

import (
	"context"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"ichor.maesh.dev/talos"
)

// conn is a connection to one boot.
type conn struct {
	world *world
	box   *box
	boot  int
}

// alive runs f if the connection's boot still runs.
func (c *conn) alive(f func() error) error {
	c.world.mu.Lock()
	defer c.world.mu.Unlock()
	if c.box.boot != c.boot || c.box.off {
		return status.Error(codes.Unavailable, "the connection broke")
	}
	return f()
}

func (c *conn) accept(call string, f func() error) error {
	return c.alive(func() error {
		c.world.accepted = append(c.world.accepted, call+" "+c.box.name)
		return f()
	})
}

func (c *conn) Maintenance() bool { return c.box.maintenance }

func (c *conn) Fingerprint() string { return c.box.fingerprint() }

func (c *conn) Close() error { return nil }

func (c *conn) UUID(context.Context) (string, error) {
	return c.box.uuid, c.alive(func() error { return nil })
}

func (c *conn) BootID(context.Context) (string, error) {
	return c.box.bootID(), c.alive(func() error { return nil })
}

func (c *conn) EtcdData(context.Context) (data talos.Fact, err error) {
	err = c.alive(func() error {
		if data = talos.No; c.box.of != nil {
			data = talos.Yes
		}
		return nil
	})
	return data, err
}

func (c *conn) Services(context.Context) (services []talos.Service, err error) {
	err = c.alive(func() error { services = []talos.Service{c.box.service, c.box.kubelet.service}; return nil })
	return services, err
}

func (c *conn) EtcdSnapshot(context.Context) (io.ReadCloser, error) {
	return io.NopCloser(strings.NewReader("")), c.alive(func() error { return nil })
}

func (c *conn) Members(context.Context) (members []talos.EtcdMember, err error) {
	err = c.alive(func() error { members = slices.Clone(c.box.of.members); return nil })
	return members, err
}

func (c *conn) APIServer(context.Context) (server talos.Fact, err error) {
	err = c.alive(func() error {
		switch {
		case c.box.mute:
			return status.Error(codes.Unavailable, "the container runtime doesn't answer")
		case c.world.clock.Now().Before(c.box.server):
			server = talos.Yes
		default:
			server = talos.No
		}
		return nil
	})
	return server, err
}

func (c *conn) ApplyConfig(context.Context, talos.ApplyRequest) error {
	return c.accept("config", func() error {
		c.box.maintenance = false
		c.box.rebooted(c.world)
		return nil
	})
}

func (c *conn) Reset(context.Context, talos.ResetRequest) error {
	return c.accept("reset", func() error {
		if c.box.dropResets > 0 {
			c.box.dropResets--
			return nil
		}
		if c.box.resetIn > 0 {
			c.world.wrong = append(c.world.wrong, c.box.name+" was told twice in one boot to reset")
		}
		c.box.resetIn = c.box.slow
		return nil
	})
}

func (c *conn) Reboot(context.Context, talos.RebootMode) error {
	return c.accept("reboot", func() error { c.box.rebooted(c.world); return nil })
}

func (c *conn) RestartService(_ context.Context, id string) error {
	if c.box.kubelet.refuse > 0 {
		c.box.kubelet.refuse--
		return status.Error(codes.FailedPrecondition, "the service is not up yet")
	}
	return c.accept("restart "+id+" on", func() error {
		if !c.box.kubelet.drop {
			c.box.kubelet.start(c.world)
		}
		return nil
	})
}

func (c *conn) RemoveMember(_ context.Context, id uint64) error {
	return c.accept("remove-member", func() error {
		if !c.world.answers(c.box.of) {
			return status.Error(codes.DeadlineExceeded, "no quorum")
		}
		c.box.of.remove(id)
		for _, b := range c.world.machines {
			b.learner = max(b.learner-1, 0)
		}
		return nil
	})
}

func (c *conn) LeaveEtcd(context.Context) error {
	return c.accept("leave", func() error {
		old, b := c.world.old, c.box
		switch {
		case b.of != old || !c.world.answers(old):
			return status.Error(codes.Unknown, "etcdserver: no leader")
		case len(old.members) == 1:
			return status.Error(codes.Unknown, "re-configuration failed due to not enough started members")
		case b.dropLeaves > 0:
			b.dropLeaves--
			return status.Error(codes.Unknown, "etcdserver: unhealthy cluster")
		}
		old.remove(b.member)
		b.of, b.member, b.server = nil, 0, c.world.clock.Now().Add(40*time.Second)
		b.serve(c.world, "Finished", "Service finished successfully")
		return nil
	})
}

func (c *conn) UploadSnapshot(_ context.Context, snapshot io.Reader) error {
	content, err := io.ReadAll(snapshot)
	if err != nil {
		return err
	}
	if c.box.breakUploads > 0 {
		c.box.breakUploads--
		return status.Error(codes.Unavailable, "the connection broke")
	}
	return c.accept("upload", func() error {
		c.box.upload = string(content)
		if c.box.damageUploads > 0 {
			c.box.damageUploads--
			c.box.upload = "damaged"
		}
		if c.box.tearUploads > 0 {
			c.box.tearUploads--
			c.box.upload = ""
		}
		return nil
	})
}

func (c *conn) RecoverEtcd(context.Context) error {
	if c.box.refuseRecoveries > 0 {
		c.box.refuseRecoveries--
		return status.Error(codes.FailedPrecondition, "time is not in sync yet")
	}
	if c.box.of != nil {
		return status.Error(codes.AlreadyExists, "etcd data directory is not empty")
	}
	return c.accept("recover", func() error {
		b := c.box
		switch {
		case b.dropRecoveries > 0:
			b.dropRecoveries--
		case b.upload == "":
			b.serve(c.world, "Failed", "stat /var/lib/etcd.snapshot: no such file or directory")
		case b.upload == "damaged":
			b.of, b.upload = &cluster{name: "damaged"}, ""
			b.serve(c.world, "Failed", "expected sha256 [1], got [2]")
		default:
			id, err := talos.RestoredMemberID([]string{b.url()})
			if err != nil {
				return err
			}
			if len(c.world.recovered.members) > 0 {
				c.world.wrong = append(c.world.wrong, "a second etcd was recovered beside the first")
			}
			b.of, b.member, b.upload = c.world.recovered, id, ""
			c.world.recovered.members = []talos.EtcdMember{{ID: id, Name: b.name, PeerURLs: []string{b.url()}}}
			b.serve(c.world, "Running", "started")
		}
		return nil
	})
}
