package validate

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"github.com/google/cel-go/common/types/traits"
	"github.com/robfig/cron/v3"

	"ichor.maesh.dev/schema"
)

// library declares the functions of rules, beside CEL's own and the extensions. docs/rules.md describes each.
type library struct {
	set      *typeSet
	releases releases
}

// ProgramOptions implements cel.Library.
func (l *library) ProgramOptions() []cel.ProgramOption { return nil }

// CompileOptions implements cel.Library.
func (l *library) CompileOptions() []cel.EnvOption {
	options := l.machines()
	options = append(options, l.fleet()...)
	options = append(options, l.texts()...)
	options = append(options, semverFunctions()...)
	options = append(options, releaseFunctions(l.releases)...)
	options = append(options, networkFunctions()...)
	options = append(options, l.operations()...)
	return append(options, cronFunctions()...)
}

// machines declares what is asked of lists of machines.
func (l *library) machines() []cel.EnvOption {
	machine := l.set.celType(reflect.TypeFor[schema.TalosMachine]())
	machines := types.NewListType(machine)
	operations := types.NewListType(l.set.celType(reflect.TypeFor[schema.TalosOperation]()))
	return []cel.EnvOption{
		cel.Function("approved", cel.Overload("approved_machines_role", []*cel.Type{machines, types.StringType}, machines,
			cel.BinaryBinding(func(of, role ref.Val) ref.Val {
				list, ok := listOf(of)
				name, isText := role.(types.String)
				if !ok || !isText {
					return types.MaybeNoSuchOverloadErr(of)
				}
				return list.approvedAs(schema.Role(name)).val()
			}))),
		cel.Function("staying", cel.Overload("staying_machines_operations", []*cel.Type{machines, operations}, machines,
			cel.BinaryBinding(func(of, despite ref.Val) ref.Val {
				list, ok := listOf(of)
				removals, isList := listOf(despite)
				if !ok || !isList {
					return types.MaybeNoSuchOverloadErr(of)
				}
				return list.stayingDespite(removals).val()
			}))),
		cel.Function("removing", cel.Overload("removing_operations_machine", []*cel.Type{operations, machine}, types.BoolType,
			cel.BinaryBinding(func(operations, machine ref.Val) ref.Val {
				list, ok := listOf(operations)
				o, isMachine := machine.(*object)
				if !ok || !isMachine {
					return types.MaybeNoSuchOverloadErr(operations)
				}
				return types.Bool(list.removing(o))
			}))),
	}
}

// fleet declares what is asked of the whole repository.
func (l *library) fleet() []cel.EnvOption {
	machines := types.NewListType(l.set.celType(reflect.TypeFor[schema.TalosMachine]()))
	byText := func(name string, result *types.Type, answer func(*fleet, string) ref.Val) cel.EnvOption {
		return cel.Function(name, cel.MemberOverload("fleet_"+name, []*cel.Type{fleetType(), types.StringType}, result,
			cel.BinaryBinding(func(of, text ref.Val) ref.Val {
				f, ok := of.(*fleet)
				s, isText := text.(types.String)
				if !ok || !isText {
					return types.MaybeNoSuchOverloadErr(of)
				}
				return answer(f, string(s))
			})))
	}
	rivals := []cel.FunctionOpt{}
	for _, kind := range l.kinds() {
		rivals = append(rivals, cel.MemberOverload("fleet_rivals_"+kind.TypeName(),
			[]*cel.Type{fleetType(), types.StringType, kind}, types.NewListType(kind),
			cel.FunctionBinding(func(args ...ref.Val) ref.Val {
				f, ok := args[0].(*fleet)
				field, isText := args[1].(types.String)
				self, isObject := args[2].(*object)
				if !ok || !isText || !isObject {
					return types.MaybeNoSuchOverloadErr(args[0])
				}
				return f.rivals(string(field), self).val()
			})))
	}
	return []cel.EnvOption{
		cel.Function("rivals", rivals...),
		cel.Function("inside", cel.MemberOverload("fleet_inside_string_string",
			[]*cel.Type{fleetType(), types.StringType, types.StringType}, types.StringType,
			cel.FunctionBinding(func(args ...ref.Val) ref.Val {
				f, ok := args[0].(*fleet)
				endpoint, isText := args[1].(types.String)
				cluster, isName := args[2].(types.String)
				if !ok || !isText || !isName {
					return types.MaybeNoSuchOverloadErr(args[0])
				}
				return types.String(f.new.insideOf(string(endpoint), string(cluster)))
			}))),
		byText("hasCluster", types.BoolType, func(f *fleet, name string) ref.Val { return types.Bool(f.hasCluster(name)) }),
		byText("machinesWithUUID", machines, func(f *fleet, uuid string) ref.Val { return f.new.withUUID(uuid).val() }),
		byText(oldMachinesWithUUID, machines, func(f *fleet, uuid string) ref.Val { return f.old.withUUID(uuid).val() }),
	}
}

const oldMachinesWithUUID = "oldMachinesWithUUID"

func (l *library) kinds() []*types.Type {
	return []*types.Type{
		l.set.celType(reflect.TypeFor[schema.TalosCluster]()), l.set.celType(reflect.TypeFor[schema.TalosMachine]()),
		l.set.celType(reflect.TypeFor[schema.TalosEtcdBackup]()), l.set.celType(reflect.TypeFor[schema.TalosOperation]()),
		l.set.celType(reflect.TypeFor[schema.Policy]()),
	}
}

// texts declares what messages are made with.
func (l *library) texts() []cel.EnvOption {
	var names, files []cel.FunctionOpt
	for _, kind := range l.kinds() {
		names = append(names, cel.Overload("names_list_"+kind.TypeName(), []*cel.Type{types.NewListType(kind)}, types.StringType,
			cel.UnaryBinding(func(of ref.Val) ref.Val {
				list, ok := listOf(of)
				if !ok {
					return types.MaybeNoSuchOverloadErr(of)
				}
				return types.String(nameAll(list.objects))
			})))
		files = append(files, cel.Overload("file_"+kind.TypeName(), []*cel.Type{kind}, types.StringType,
			cel.UnaryBinding(func(of ref.Val) ref.Val {
				o, ok := of.(*object)
				if !ok || o.source == nil {
					return types.MaybeNoSuchOverloadErr(of)
				}
				return types.String(o.source.File)
			})))
	}
	return []cel.EnvOption{
		cel.Function("names", names...),
		cel.Function("file", files...),
		cel.Function("counted", cel.Overload("counted_int_string", []*cel.Type{types.IntType, types.StringType}, types.StringType,
			cel.BinaryBinding(func(number, noun ref.Val) ref.Val {
				n, ok := number.(types.Int)
				word, isText := noun.(types.String)
				if !ok || !isText {
					return types.MaybeNoSuchOverloadErr(number)
				}
				return types.String(counted(int(n), string(word)))
			}))),
	}
}

// counted gives "no workers", "1 worker", "3 workers".
func counted(n int, noun string) string {
	switch n {
	case 0:
		return "no " + noun + "s"
	case 1:
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

// maxNames bounds how many names a message lists.
const maxNames = 10

// nameAll gives "cp-1", "cp-1 and cp-2", "cp-1, cp-2 and cp-3"; of many the first ones and how many more there are.
func nameAll(objects []*object) string {
	names := make([]string, 0, len(objects))
	for _, o := range objects {
		names = append(names, o.name)
	}
	if more := len(names) - maxNames; more > 1 {
		names = append(names[:maxNames], fmt.Sprintf("%d more", more))
	}
	switch len(names) {
	case 0:
		return "none"
	case 1:
		return names[0]
	}
	return strings.Join(names[:len(names)-1], ", ") + " and " + names[len(names)-1]
}

// cronFunctions declares schedules: five fields, in UTC.
func cronFunctions() []cel.EnvOption {
	return []cel.EnvOption{
		cel.Function("isCron", cel.Overload("is_cron_string", []*cel.Type{types.StringType}, types.BoolType,
			cel.UnaryBinding(func(text ref.Val) ref.Val {
				s, ok := text.(types.String)
				if !ok {
					return types.MaybeNoSuchOverloadErr(text)
				}
				_, err := parseCron(string(s))
				return types.Bool(err == nil)
			}))),
		cel.Function("nextCron", cel.Overload("next_cron_string_timestamp",
			[]*cel.Type{types.StringType, types.TimestampType}, types.TimestampType,
			cel.BinaryBinding(func(text, after ref.Val) ref.Val {
				s, ok := text.(types.String)
				t, isTime := after.(types.Timestamp)
				if !ok || !isTime {
					return types.MaybeNoSuchOverloadErr(text)
				}
				schedule, err := parseCron(string(s))
				if err != nil {
					return types.NewErr("%v", err)
				}
				next := schedule.Next(t.UTC())
				if next.IsZero() {
					return types.NewErr("the schedule %q never comes", string(s))
				}
				return types.Timestamp{Time: next}
			}))),
		cel.Function("alwaysOpen", cel.Overload("always_open_string_duration",
			[]*cel.Type{types.StringType, types.DurationType}, types.BoolType,
			cel.BinaryBinding(func(text, duration ref.Val) ref.Val {
				s, ok := text.(types.String)
				d, isDuration := duration.(types.Duration)
				if !ok || !isDuration {
					return types.MaybeNoSuchOverloadErr(text)
				}
				schedule, err := parseCron(string(s))
				if err != nil {
					return types.WrapErr(err)
				}
				return types.Bool(alwaysOpen(schedule, d.Duration))
			}))),
	}
}

const (
	// mostOpenings and yearsAhead bound how far alwaysOpen looks: over a leap day, and over a week of minutes.
	mostOpenings = 11_000
	yearsAhead   = 9
)

// alwaysOpen says whether a window that opens by a schedule is open again whenever it would close.
func alwaysOpen(schedule cron.Schedule, duration time.Duration) bool {
	opened := schedule.Next(time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC))
	last := opened.AddDate(yearsAhead, 0, 0)
	for range mostOpenings {
		next := schedule.Next(opened)
		if next.IsZero() || next.Sub(opened) > duration {
			return false
		}
		if next.After(last) {
			return true
		}
		opened = next
	}
	return true
}

// parseCron reads the schedule that a rule gives.
func parseCron(text string) (cron.Schedule, error) {
	schedule, err := schema.ParseCron(text)
	if err != nil {
		return nil, fmt.Errorf("%q is not a schedule of five fields in UTC, as in \"0 2 * * SAT\": %w", text, err)
	}
	return schedule, nil
}

var _ traits.Lister = (*listValue)(nil)
