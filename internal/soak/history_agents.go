package soak

import "time"

func (r *run) kill() bool {
	h := r.aHost()
	p := h.process
	if p == nil || p.isDead() {
		return false
	}
	if r.lot.IntN(3) == 0 {
		p.kill("at once")
		return true
	}
	n := 1 + r.lot.IntN(60)
	r.w.say("%s will die at its %dth call from now", p.id, n)
	p.after(n, func(point string) { p.kill(point) })
	return true
}

func (r *run) freeze() bool {
	p := r.aHost().process
	if p == nil || p.isDead() {
		return false
	}
	d := time.Duration(1+r.lot.IntN(100)) * time.Second
	if r.lot.IntN(3) == 0 {
		p.freeze("at once", d)
		return true
	}
	n := 1 + r.lot.IntN(60)
	r.w.say("%s will freeze at its %dth call from now", p.id, n)
	p.after(n, func(point string) { p.freeze(point, d) })
	return true
}

// freezeLong freezes an agent for minutes at one of its next calls: what it was about to send is late when it goes on, and another agent may have
// taken its place.
func (r *run) freezeLong() bool {
	p := r.aHost().process
	if p == nil || p.isDead() {
		return false
	}
	d, n := time.Duration(20+r.lot.IntN(580))*time.Second, 1+r.lot.IntN(40)
	r.w.say("%s will freeze at its %dth call from now", p.id, n)
	p.after(n, func(point string) { p.freeze(point, d) })
	return true
}

func (r *run) jump() bool {
	h := r.aHost()
	d := time.Duration(r.lot.IntN(1200)-600) * time.Second
	r.w.say("the clock of %s jumps by %s", h.name, d)
	r.w.befell("clock jump")
	r.locked(func() { h.ahead += d })
	return true
}
