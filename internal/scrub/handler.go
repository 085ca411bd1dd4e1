package scrub

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"slices"
	"time"
)

// Handler gives a handler that hands records on with their message and all attributes scrubbed. Attributes set with
// Logger.With are scrubbed when a record is handled, so a secret that became known in between is hidden too.
func (s *Scrubber) Handler(next slog.Handler) slog.Handler {
	return &handler{scrubber: s, next: next}
}

type handler struct {
	scrubber *Scrubber
	next     slog.Handler
	steps    []step
}

// step is one WithGroup or WithAttrs.
type step struct {
	group string
	attrs []slog.Attr
}

func (h *handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

func (h *handler) WithGroup(name string) slog.Handler {
	if name == "" {
		return h
	}
	return &handler{h.scrubber, h.next, append(slices.Clip(h.steps), step{group: name})}
}

func (h *handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	if len(attrs) == 0 {
		return h
	}
	return &handler{h.scrubber, h.next, append(slices.Clip(h.steps), step{attrs: attrs})}
}

func (h *handler) Handle(ctx context.Context, record slog.Record) error {
	next := h.next
	for _, step := range h.steps {
		if step.group != "" {
			next = next.WithGroup(h.scrubber.Text(step.group))
			continue
		}
		next = next.WithAttrs(h.attrs(step.attrs))
	}
	clean := slog.NewRecord(record.Time, record.Level, h.scrubber.Text(record.Message), record.PC)
	record.Attrs(func(attr slog.Attr) bool {
		clean.AddAttrs(h.attr(attr))
		return true
	})
	return next.Handle(ctx, clean)
}

func (h *handler) attrs(attrs []slog.Attr) []slog.Attr {
	clean := make([]slog.Attr, len(attrs))
	for n, attr := range attrs {
		clean[n] = h.attr(attr)
	}
	return clean
}

func (h *handler) attr(attr slog.Attr) slog.Attr {
	return slog.Attr{Key: h.scrubber.Text(attr.Key), Value: h.value(attr.Value.Resolve())}
}

func (h *handler) value(value slog.Value) slog.Value {
	switch value.Kind() {
	case slog.KindString:
		return slog.StringValue(h.scrubber.Text(value.String()))
	case slog.KindGroup:
		return slog.GroupValue(h.attrs(value.Group())...)
	case slog.KindAny:
		return slog.StringValue(h.scrubber.Text(text(value.Any())))
	case slog.KindDuration:
		return slog.StringValue(value.Duration().Round(time.Microsecond).String())
	default:
		// Numbers, booleans and times hold no secret text.
		return value
	}
}

func text(value any) string {
	switch v := value.(type) {
	case error:
		return v.Error()
	case []byte:
		return string(v)
	case fmt.Stringer:
		return v.String()
	default:
		return fmt.Sprintf("%+v", v)
	}
}

// Recover is to be deferred directly in a goroutine that must not take the process down, or print a secret when it does:
//
//	defer scrubber.Recover(func(text string) { ... })
//
// When the goroutine panics, report gets the panic's value and stack, scrubbed, line by line.
func (s *Scrubber) Recover(report func(text string)) {
	if value := recover(); value != nil {
		report(s.Panic(value))
	}
}

// Panic gives the text of a recovered panic and the stack, scrubbed. Line breaks of the stack stay.
func (s *Scrubber) Panic(value any) string {
	return "panic: " + s.Text(text(value)) + "\n\n" + s.String(string(debug.Stack()))
}
