package machined

import (
	"errors"
	"fmt"
	"time"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// eventPrefix is the type URL that Talos gives its events.
const eventPrefix = "talos/runtime/"

// Events streams the event buffer. It opens with an empty event, and ends cleanly when the machine goes down or the reader
// falls too far behind.
func (a *api) Events(in *machine.EventsRequest, srv grpc.ServerStreamingServer[machine.Event]) error {
	m := a.m
	// The place is taken before the greeting: what happens after it is not missed.
	seen, err := a.startOfEvents(in)
	if err != nil {
		return err
	}
	if err := srv.Send(&machine.Event{Data: &anypb.Any{}, ActorId: in.GetWithActorId()}); err != nil {
		return err
	}
	for {
		events, overrun, changed := m.events.since(seen)
		if overrun {
			return nil
		}
		for _, e := range events {
			seen = e.seq + 1
			if in.GetWithActorId() != "" && e.actor != in.GetWithActorId() {
				continue
			}
			if err := sendEvent(e, srv); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-srv.Context().Done():
			return srv.Context().Err()
		case <-m.ctx.Done():
			return nil
		}
	}
}

func sendEvent(e event, srv grpc.ServerStreamingServer[machine.Event]) error {
	value, err := proto.Marshal(e.payload)
	if err != nil {
		return fmt.Errorf("encoding an event: %w", err)
	}
	return srv.Send(&machine.Event{
		Data: &anypb.Any{TypeUrl: eventPrefix + string(e.payload.ProtoReflect().Descriptor().FullName()), Value: value},
		Id:   e.id, ActorId: e.actor,
	})
}

func (a *api) startOfEvents(in *machine.EventsRequest) (int64, error) {
	log := a.m.events
	// The options are taken in this order, and a later one complains about an earlier (internal/app/machined/pkg/runtime/events.go).
	switch {
	case in.GetTailId() != "" && in.GetTailEvents() != 0:
		return 0, errors.New("WithTailID can't be specified at the same time with WithTailEvents or WithTailDuration")
	case in.GetTailSeconds() != 0 && (in.GetTailEvents() != 0 || in.GetTailId() != ""):
		return 0, errors.New("WithTailDuration can't be specified at the same time with WithTailEvents or WithTailID")
	case in.GetTailEvents() != 0:
		return log.tail(nil, int(in.GetTailEvents())), nil
	case in.GetTailId() != "":
		return log.tail(func(e event) bool { return e.id <= in.GetTailId() && len(e.id) <= len(in.GetTailId()) }, 0), nil
	case in.GetTailSeconds() != 0:
		since := a.m.pace.Clock.Now().Add(-time.Duration(in.GetTailSeconds()) * time.Second).Unix()
		return log.tail(func(e event) bool { return e.unix < since }, 0), nil
	}
	return log.next(), nil
}
