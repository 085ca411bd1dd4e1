package signedcommit

import (
	"fmt"
	"strings"
	"testing"

	"github.com/go-git/go-git/v5/plumbing"
	"github.com/go-git/go-git/v5/plumbing/object"
	"github.com/stretchr/testify/require"
)

var (
	treeA, treeB = strings.Repeat("a", 40), strings.Repeat("b", 40)
	parentC      = strings.Repeat("c", 40)
)

const armour = "-----BEGIN SSH SIGNATURE-----\n AAAA\n -----END SSH SIGNATURE-----"

// signed is a commit object as git writes it, its parts changed by the caller.
func signed(extra string) string {
	return fmt.Sprintf("tree %s\nparent %s\nauthor A <a@x> 1767225600 +0000\ncommitter A <a@x> 1767225600 +0000\n%sgpgsig %s\n\nA change\n", treeA, parentC, extra, armour)
}

func TestACommitIsTakenApartIntoWhatWasSignedAndTheSignature(t *testing.T) {
	c, err := Parse([]byte(signed("encoding UTF-8\n")))
	require.NoError(t, err)
	require.Equal(t, treeA, c.Tree)
	require.Equal(t, []string{parentC}, c.Parents)
	require.Equal(t, SSH, c.Format)
	require.Equal(t, "-----BEGIN SSH SIGNATURE-----\nAAAA\n-----END SSH SIGNATURE-----\n", string(c.Signature))
	require.Equal(t, strings.Replace(signed("encoding UTF-8\n"), "gpgsig "+armour+"\n", "", 1), string(c.Payload))
}

func TestTheSignatureOfATagThatWasMergedIsNotTheCommits(t *testing.T) {
	tag := "mergetag object " + parentC + "\n type commit\n tag v1\n tagger A <a@x> 1 +0000\n \n v1\n -----BEGIN PGP SIGNATURE-----\n \n AAAA\n -----END PGP SIGNATURE-----\n"
	c, err := Parse([]byte(strings.Replace(signed(tag), "gpgsig "+armour+"\n", "", 1)))
	require.NoError(t, err)
	require.Equal(t, None, c.Format)
	c, err = Parse([]byte(signed(tag)))
	require.NoError(t, err)
	require.Equal(t, SSH, c.Format)
	require.Contains(t, string(c.Payload), tag)
}

func TestWhatTwoProgramsMayReadDifferentlyIsNoCommit(t *testing.T) {
	good := signed("")
	for name, c := range map[string]struct{ object, want string }{
		"nothing":                          {"", "no value"},
		"a tag":                            {"object " + parentC + "\ntype commit\ntag v1\ntagger A <a@x> 1 +0000\n\nv1\n", "not those of a commit"},
		"headers that end early":           {"tree " + treeA + "\nauthor A <a@x> 1 +0000\n\nx\n", "end before its committer"},
		"a second tree behind the first":   {strings.Replace(good, "\nparent", "\ntree "+treeB+"\nparent", 1), "not those of a commit"},
		"a second tree at the end":         {signed("tree " + treeB + "\n"), "second tree"},
		"a parent at the end":              {signed("parent " + parentC + "\n"), "second parent"},
		"a second committer":               {signed("committer B <b@x> 1 +0000\n"), "second committer"},
		"two signatures":                   {signed("gpgsig " + armour + "\n"), "two signatures"},
		"a signature that nothing covers":  {signed("gpgsig-sha256 " + armour + "\n"), "no signature covers"},
		"a header that looks like one":     {signed("gpgsigx " + armour + "\n"), "no signature covers"},
		"carriage returns":                 {strings.Replace(good, "\nparent", "\r\nparent", 1), "control character (byte 0x0d)"},
		"a carriage return in a signature": {strings.Replace(good, " AAAA\n", " AAAA\r\n", 1), "control character (byte 0x0d)"},
		"a terminal's escape in an author": {strings.Replace(good, "author A", "author \x1b[2JA", 1), "control character (byte 0x1b)"},
		"a zero byte in a header":          {strings.Replace(good, "author A", "author A\x00", 1), "zero byte"},
		"a zero byte in the message":       {good + "\x00more", "zero byte"},
		"a short tree":                     {strings.Replace(good, treeA, treeA[:39], 1), "not those of a commit"},
		"a tree in capitals":               {strings.Replace(good, treeA, strings.ToUpper(treeA), 1), "not those of a commit"},
		"a tree that goes on":              {strings.Replace(good, treeA, treeA+"\n "+treeB, 1), "where none goes on"},
		"a parent before the tree":         {"parent " + parentC + "\n" + good, "not those of a commit"},
		"a signature of no known kind":     {strings.Replace(good, "BEGIN SSH SIGNATURE", "BEGIN SIGNATURE", 1), "no kind that Git knows"},
		"a signature before the committer": {strings.Replace(good, "\ncommitter", "\ngpgsig "+armour+"\ncommitter", 1), "not those of a commit"},
		"a signature of more than 64 KiB":  {strings.Replace(good, "AAAA", strings.Repeat("A", 70<<10), 1), "and may have"},
		"a header without a value":         {signed("strange\n"), "no value"},
		"an object of more than 16 MiB":    {good + strings.Repeat("x", 17<<20), "and may have"},
		"a committer that goes on":         {signed(" tree " + treeB + "\n"), "where none goes on"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(c.object))
			require.ErrorContains(t, err, c.want)
		})
	}
}

// What is taken apart here is read by go-git in the same way, and nothing is lost between payload and signature.
func FuzzWhatIsReadHereIsReadAlike(f *testing.F) {
	for _, seed := range []string{signed(""), signed("encoding x\n"), signed(" tree " + treeB + "\n"), signed("mergetag object x\n y\n"), "tree " + treeA} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err != nil {
			return
		}
		encoded := &plumbing.MemoryObject{}
		encoded.SetType(plumbing.CommitObject)
		_, _ = encoded.Write(data)
		var other object.Commit
		if err := other.Decode(encoded); err != nil {
			return // gitsource refuses it
		}
		require.Equal(t, c.Tree, other.TreeHash.String())
		require.Len(t, other.ParentHashes, len(c.Parents))
		for n, parent := range other.ParentHashes {
			require.Equal(t, c.Parents[n], parent.String())
		}
	})
}
