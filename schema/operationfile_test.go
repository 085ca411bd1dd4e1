package schema

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"
)

func TestTheFileOfAnOperationIsReadAlikeByEveryone(t *testing.T) {
	reason := func(text string) string { return operationYAML + "  reason: " + text + "\n" }
	for _, c := range []struct{ name, document, want string }{
		{"as it should be", operationYAML, ""},
		{"a first line that begins the document", "---\n" + operationYAML, ""},
		{"a number sign inside a word", reason("issue#12"), ""},
		{"a number sign in double quotes", reason(`"see \"x\" # 12"`), ""},
		{"a number sign in single quotes", reason(`'it''s # 12'`), ""},
		{"a number sign in a block text", reason("|\n\n    # 12\n    # 13"), "13:11: spec.reason is"},
		{"a number sign in a folded text", reason(">-\n    see # 12"), ""},
		{"a yes in quotes", reason(`"yes"`), ""},
		{"no line feed at the end", strings.TrimSuffix(operationYAML, "\n"), ""},
		{"just as large as it may be", operationYAML + strings.Repeat(" ", MaxOperationSize-len(operationYAML)), ""},

		{"a byte more than it may have", operationYAML + strings.Repeat("\n", MaxOperationSize-len(operationYAML)+1), "a.yaml: the file has 16385 bytes, and the file of an operation may have 16384"},
		{"carriage returns", strings.ReplaceAll(operationYAML, "\n", "\r\n"), "1:37: the file of an operation is printable ASCII and line feeds, and this is a carriage return; end lines with a line feed alone"},
		{"a byte order mark", "\ufeff" + operationYAML, "1:1: the file of an operation is printable ASCII and line feeds, and this is a byte order mark"},
		{"a tab", reason("a\tb"), "13:12: the file of an operation is printable ASCII and line feeds, and this is a tab"},
		{"a letter beyond ASCII", reason("für"), "13:12: the file of an operation is printable ASCII and line feeds, and this is a character beyond ASCII (byte 0xc3)"},
		{"a word joiner in a name", edited(operationYAML, "name: w-1", "name: w-\u20601"), "a character beyond ASCII (byte 0xe2)"},
		{"a delete", reason("a\x7f"), "13:12: the file of an operation is printable ASCII and line feeds, and this is a control character (byte 0x7f)"},
		{"a second document", operationYAML + "---\n" + operationYAML, "an operation is alone in its file, and line 13 begins or ends a document"},
		{"a second, empty document", operationYAML + "---\n", "an operation is alone in its file, and line 13 begins or ends a document"},
		{"a machine beside it", operationYAML + "---\n" + machineYAML, "an operation is alone in its file, and line 13 begins or ends a document"},
		{"an end of the document", operationYAML + "...\n", "an operation is alone in its file, and line 13 begins or ends a document"},
		{"a document in the first line", "--- {apiVersion: ichor.maesh.dev/v1alpha1, kind: TalosOperation}\n", "an operation is alone in its file, and line 1 begins or ends a document"},
		{"a directive", "%YAML 1.1\n---\n" + operationYAML, "1:1: the file of an operation has no directives"},
		{"an anchor", edited(operationYAML, "name: w-1", "name: &a w-1"), "11:24: the file of an operation means what it says where it says it, so it has no anchors; leave &a out"},
		{"an alias", edited(edited(operationYAML, "name: w-1", "name: &a w-1"), "action: reboot", "action: *a"), "so it has no aliases; write the value of *a out"},
		{"a tag", edited(operationYAML, "name: w-1", "name: !!str w-1"), "so it has no tags; leave \"!!str\" out"},
		{"a tag on a mapping", edited(operationYAML, "machineRef: {", "machineRef: !!map {"), "so it has no tags"},
		{"a merge key", edited(operationYAML, "  kind: node", "  <<: {kind: node}"), "so it has no merge keys; write the fields out"},
		{"a comment of its own line", "# harmless\n" + operationYAML, "1:1: the file of an operation has no comments"},
		{"a comment behind a value", edited(operationYAML, "kind: node", "kind: node # reboot"), "7:14: the file of an operation has no comments"},
		{"a comment behind quotes", edited(operationYAML, "kind: node", `kind: "node" # "x"`), "7:16: the file of an operation has no comments"},
		{"a comment right behind quotes", edited(operationYAML, "kind: node", `kind: "node"#x`), "7:15: the file of an operation has no comments"},
		{"a comment in brackets", edited(operationYAML, "{name: w-1,", "{ # x\n      name: w-1,"), "11:19: the file of an operation has no comments"},
		{"a comment behind a block text", reason(">-\n    see\n  # 12"), "15:3: the file of an operation has no comments"},
		{"a comment in the head of a block text", reason(">- # 12\n    see"), "13:14: the file of an operation has no comments"},
		{"a comment under an empty block text", reason(">-\n  # 12"), "14:3: the file of an operation has no comments"},
		{"a text that says its indentation", reason(">1-\n   see"), "13:11: the file of an operation doesn't say how far a text is indented"},
		{"a yes", edited(operationYAML, "action: reboot", "action: remove\n    confirm: w-1\n    gone: yes"), `14:11: "yes" is a boolean to some readers of YAML and a text to others`},
		{"a name that is off", edited(operationYAML, "name: w-1", "name: Off"), `11:24: "Off" is a boolean to some readers`},
		{"a field called n", edited(operationYAML, "action:", "n:"), `12:5: "n" is a boolean to some readers`},
		{"a number in base 60", reason("12:30:45"), `13:11: "12:30:45" is a number to some readers of YAML and a text to others`},
	} {
		t.Run(c.name, func(t *testing.T) {
			fleet, problems := loadAll(map[string]string{"a.yaml": c.document})
			if c.want == "" {
				requireClean(t, problems)
				require.Equal(t, c.document, string(fleet.Operations[0].Raw))
				return
			}
			require.Empty(t, fleet.Operations)
			require.Contains(t, strings.NewReplacer("[prod] ", "", "[] ", "").Replace(lines(problems)), c.want)
		})
	}
}

func TestAFileThatHoldsNoOperationMayHoldWhatOthersMay(t *testing.T) {
	_, problems := loadAll(map[string]string{"a.yaml": "# für alle\r\n" + machineYAML + "  hostname: &a yes-1 # x\n"})
	requireClean(t, problems)
}

// FuzzOperationFile holds that a file which passes holds no byte that a reader of YAML takes for a comment, and reads alike
// once its quotes are the reader's own.
func FuzzOperationFile(f *testing.F) {
	for _, text := range []string{operationYAML, operationYAML + "  reason: \"a # b\"\n", operationYAML + "  reason: |-\n    a # b\n  # c\n",
		operationYAML + "  reason: 'a''#b' # c\n", operationYAML + "  reason: a#b\n", operationYAML + "  reason: >+\n\n\n  # x\n", "{kind: TalosOperation, \"a\":#\n 1}",
		"? \"a\\\\\"#\n: b", "a: [b,#c\n]", "a: |\n b\n #c\n", "|+#", "a: >-#x\n  b", "a: \"\n  # b\"\n"} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		documents, problem := parse("a.yaml", data)
		if problem != nil || len(documents) != 1 || len(checkOperationFile("a.yaml", data, documents[0].root)) > 0 {
			return
		}
		var look func(n *yaml.Node)
		look = func(n *yaml.Node) {
			require.Empty(t, n.HeadComment+n.LineComment+n.FootComment)
			require.Empty(t, n.Anchor)
			for _, child := range n.Content {
				look(child)
			}
		}
		look(documents[0].root)
	})
}
