package scaffold

import (
	"bytes"
	"embed"
	"fmt"
	"strconv"
	"strings"
	"text/template"
	"time"

	"sigs.k8s.io/yaml"

	"ichor.maesh.dev/internal/printable"
	"ichor.maesh.dev/schema"
)

//go:embed templates/*.tmpl
var files embed.FS

// Cluster is what cluster.yaml says.
type Cluster struct {
	Name, ID, Endpoint                        string
	TalosVersion, KubernetesVersion, Contract string
	ControlPlanes                             int
	// Schedulable says whether workloads may run on control planes.
	Schedulable bool
	// InstallImage may be empty: Talos's own installer. InstallDisk is that of every machine that names none.
	InstallImage, InstallDisk string
}

// YAML gives cluster.yaml.
func (c Cluster) YAML() ([]byte, error) { return render("cluster.yaml.tmpl", c) }

// Machine is what a TalosMachine document says.
type Machine struct {
	Name, Cluster string
	Role          schema.Role
	// RoleIsGuessed says beside the role that it is to be chosen.
	RoleIsGuessed               bool
	Endpoint, UUID, Fingerprint string
	// Hostname is what the machine is to be called; empty leaves that to Talos.
	Hostname string
	// Approval approves the machine; nil leaves it to someone else.
	Approval *schema.ApprovalDecision
	// Notes stand above the document as comments, one a line.
	Notes []string
}

// YAML gives one document.
func (m Machine) YAML() ([]byte, error) { return render("machine.yaml.tmpl", m) }

// CI is a system that checks every proposed change.
type CI string

// The systems that a workflow can be written for. Gitea and Forgejo run GitHub's.
const (
	GitHub CI = "github"
	GitLab CI = "gitlab"
)

// CIs lists the systems that a workflow can be written for.
func CIs() []CI { return []CI{GitHub, GitLab} }

// File is where a system looks for its workflow, from the top of the repository.
func (c CI) File() string {
	if c == GitLab {
		return ".gitlab-ci.yml"
	}
	return ".github/workflows/ichor.yaml"
}

// Workflow gives the workflow that runs ichor validate and ichor plan, with that version of ichor.
func (c CI) Workflow(version string) ([]byte, error) {
	return renderBetween("[[", "]]", string(c)+".yaml.tmpl", map[string]string{"Version": version}) // {{ is GitHub's own
}

// Readme gives README.md of a repository whose first cluster has that name. Identity is how the file with the age identity is
// named in it.
func Readme(cluster, identity string, cis []CI) ([]byte, error) {
	files := [][2]string{
		{"clusters/" + cluster + "/cluster.yaml", "the cluster: versions, how many control planes, secrets"},
		{"clusters/" + cluster + "/machines/*.yaml", "its machines, one a file"},
		{"clusters/" + cluster + "/secrets.age", "its Talos secrets, sealed to whom recipients.txt names"},
	}
	for _, ci := range cis {
		files = append(files, [2]string{ci.File(), "runs ichor on every proposed change"})
	}
	return render("README.md.tmpl", map[string]any{"Files": columns(files), "Identity": identity, "CIs": cis})
}

// columns gives a line a row, with what stands second beginning in the same column.
func columns(rows [][2]string) []string {
	var width int
	for _, row := range rows {
		width = max(width, len(row[0]))
	}
	lines := make([]string, 0, len(rows))
	for _, row := range rows {
		lines = append(lines, fmt.Sprintf("%-*s  %s", width, row[0], row[1]))
	}
	return lines
}

// Recipients gives recipients.txt.
func Recipients(recipients []string) []byte {
	text := "# Who can open the sealed files (*.age) beside this file: age or SSH public keys, one a line.\n"
	return []byte(text + strings.Join(recipients, "\n") + "\n")
}

func render(name string, values any) ([]byte, error) { return renderBetween("{{", "}}", name, values) }

func renderBetween(left, right, name string, values any) ([]byte, error) {
	parsed, err := template.New(name).Delims(left, right).Funcs(template.FuncMap{"scalar": scalar, "note": note, "time": timestamp}).ParseFS(files, "templates/"+name)
	if err != nil {
		return nil, fmt.Errorf("reading the template %s: %w", name, err)
	}
	var out bytes.Buffer
	if err := parsed.Execute(&out, values); err != nil {
		return nil, fmt.Errorf("filling in the template %s: %w", name, err)
	}
	return out.Bytes(), nil
}

// scalar gives a YAML scalar that reads as exactly that string: plain where that is certain, quoted otherwise.
func scalar(value any) string {
	text := fmt.Sprint(value)
	if !strings.ContainsAny(text, "#\n") && strings.TrimSpace(text) == text && printable.Text(text) == text {
		var read map[string]any
		if err := yaml.Unmarshal([]byte("v: "+text), &read); err == nil && read["v"] == text {
			return text
		}
	}
	return strconv.QuoteToASCII(text) // its escapes are among YAML's
}

// note keeps a comment on its line.
func note(text string) string { return printable.Text(text) }

func timestamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }
