package machined

import (
	"context"
	"strconv"
	"sync"

	"github.com/siderolabs/talos/pkg/machinery/api/machine"
	"google.golang.org/protobuf/proto"
	"k8s.io/utils/clock"
)

// eventSlots is how many events Talos keeps; a reader that falls further behind is cut off.
const (
	eventSlots = 1000
	eventGap   = 10
)

type actorKey struct{}

func withActor(ctx context.Context, id string) context.Context {
	return context.WithValue(ctx, actorKey{}, id)
}

func actorOf(ctx context.Context) string {
	id, _ := ctx.Value(actorKey{}).(string)
	return id
}

type event struct {
	id      string
	seq     int64
	actor   string
	unix    int64
	payload proto.Message
}

// eventLog is the machine's event buffer. It lives as long as the boot.
type eventLog struct {
	clk clock.PassiveClock

	mu      sync.Mutex
	events  []event
	first   int64 // seq of events[0]
	changed chan struct{}
}

func newEventLog(clk clock.PassiveClock) *eventLog {
	return &eventLog{clk: clk, changed: make(chan struct{})}
}

// publish appends an event under the actor of the context.
func (l *eventLog) publish(ctx context.Context, payload proto.Message) {
	l.mu.Lock()
	defer l.mu.Unlock()
	seq := l.first + int64(len(l.events))
	now := l.clk.Now()
	l.events = append(l.events, event{
		id:  strconv.FormatInt(now.UnixNano(), 36) + "-" + strconv.FormatInt(seq, 36),
		seq: seq, actor: actorOf(ctx), unix: now.Unix(), payload: payload,
	})
	if over := len(l.events) - eventSlots; over > 0 {
		l.events = append([]event(nil), l.events[over:]...)
		l.first += int64(over)
	}
	close(l.changed)
	l.changed = make(chan struct{})
}

// next is the sequence number that the next event will have.
func (l *eventLog) next() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.first + int64(len(l.events))
}

// since returns the events from a sequence number on and a channel that closes at the next one. overrun says that some of
// them are gone.
func (l *eventLog) since(seq int64) (events []event, overrun bool, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq < l.first {
		return nil, true, l.changed
	}
	if i := seq - l.first; i < int64(len(l.events)) {
		events = append(events, l.events[i:]...)
	}
	return events, false, l.changed
}

// tail returns where a reader starts that asked for the last n events (-1: all that are safe to read).
func (l *eventLog) tail(match func(event) bool, n int) int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	end := l.first + int64(len(l.events))
	oldest := max(l.first, end-(eventSlots-eventGap))
	if match != nil {
		for i := len(l.events) - 1; i >= 0 && l.events[i].seq >= oldest; i-- {
			if match(l.events[i]) {
				return l.events[i].seq + 1
			}
		}
		return oldest
	}
	if n < 0 {
		return oldest
	}
	return max(oldest, end-int64(n))
}

func phaseEvent(name string, action machine.PhaseEvent_Action) *machine.PhaseEvent {
	return &machine.PhaseEvent{Phase: name, Action: action}
}
