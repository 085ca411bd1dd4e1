package safety

import (
	"encoding/json"
	"fmt"
)

// wipesForRestore says whether a call is a wipe that a restore makes: it gives the old etcd up, and wipes all that hold it in one pass.
func (t taken) wipesForRestore() bool {
	return t.method == "Reset" && t.intent != nil && t.intent.restores
}

// sameRestore says whether two calls belong to one restore, and the earlier is a wipe: what rejoins, or is wiped as well, needn't wait for it.
func sameRestore(earlier, later taken) bool {
	return earlier.wipesForRestore() && later.wipesForRestore() && earlier.intent.lock == later.intent.lock
}

// resets judges the wipes: each names what it wipes, and no boot of a machine is wiped twice.
func resets(calls []taken) (broken []string) {
	wiped := map[string]taken{}
	for _, c := range calls {
		if c.method != "Reset" {
			continue
		}
		if what := wipesWhat(c.Request); what != "" {
			broken = append(broken, fmt.Sprintf("%s: %s", c, what))
		}
		if first, twice := wiped[c.machine+" "+c.BootID]; twice {
			broken = append(broken, fmt.Sprintf("the same reset twice: %s, after %s", c, first))
		}
		wiped[c.machine+" "+c.BootID] = c
	}
	return broken
}

// wipesWhat says what is wrong with a reset's request; empty: nothing, or the journal doesn't have it.
func wipesWhat(request map[string]any) string {
	if request == nil {
		return ""
	}
	var r struct {
		Partitions []struct {
			Label string `json:"label"`
			Wipe  bool   `json:"wipe"`
		} `json:"partitions"`
	}
	data, err := json.Marshal(request)
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	switch {
	case err != nil:
		return "its request can't be read: " + err.Error()
	case len(r.Partitions) == 0:
		return "it names no partition, and wipes the whole disk"
	}
	for _, p := range r.Partitions {
		if !p.Wipe {
			return fmt.Sprintf("it names %s and doesn't wipe it", p.Label)
		}
	}
	return ""
}

// recoveries judges who recovers an etcd: a machine that was given the snapshot in that boot, and no second one for the same restore before the
// first was wiped again. A recovery uses the snapshot up: one more in the same boot follows only what was seen to come to nothing, with the
// snapshot given anew.
func recoveries(calls []taken) (broken []string) {
	given := map[string]bool{}      // by machine and boot, until a recovery uses it
	used := map[string]taken{}      // by machine and boot
	recovered := map[string]taken{} // by lock
	for _, c := range calls {
		at := c.machine + " " + c.BootID
		recovering, _ := c.Request["recoverEtcd"].(bool)
		switch {
		case c.method == "EtcdRecover":
			given[at] = true
		case c.method == "Reset":
			for lock, first := range recovered {
				if first.machine == c.machine {
					delete(recovered, lock)
				}
			}
		case c.method == "Bootstrap" && recovering && c.intent != nil:
			if first, again := used[at]; again && !given[at] {
				broken = append(broken, fmt.Sprintf("a second recovery in one boot: %s, after %s, with no other snapshot in between", c, first))
			} else if !given[at] {
				broken = append(broken, fmt.Sprintf("a recovery without a snapshot: %s", c))
			}
			delete(given, at)
			used[at] = c
			if first, twice := recovered[c.intent.lock]; twice && first.machine != c.machine {
				broken = append(broken, fmt.Sprintf("a second recovery: %s, after %s, which was not wiped since", c, first))
			}
			recovered[c.intent.lock] = c
		}
	}
	return broken
}
