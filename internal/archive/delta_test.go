//go:build unix

package archive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// send uploads loads, each to its stage, and returns the request that takes them in.
func send(t testing.TB, scratch string, loads []*Load, dests []string) RemoteImport {
	t.Helper()
	r := RemoteImport{Scratch: scratch, Own: filepath.Join(dests[0], ".leasehold")}
	for i, load := range loads {
		var sum Summary
		for _, part := range load.Parts() {
			path := filepath.Join(Stage(dests[i], scratch, i), part.Name)
			var b bytes.Buffer
			one, err := part.Write(t.Context(), &b, nil)
			if err := errors.Join(err, os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, b.Bytes(), 0o644)); err != nil {
				t.Fatal(err)
			}
			sum.Add(one)
		}
		r.Stages = append(r.Stages, load.Stage(dests[i], sum.Archive))
	}
	return r
}

func loadTree(t testing.TB, dir string, opt WriteOptions) *Load {
	t.Helper()
	opt.RepeatDirs = true
	src, err := Dir(dir)
	if err != nil {
		t.Fatal(err)
	}
	load, err := LoadTree(t.Context(), src, opt)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(load.Close)
	return load
}

func TestDeltaInEverySandbox(t *testing.T) {
	for _, kind := range sandboxes {
		for _, digests := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, digests %v", kind, digests), func(t *testing.T) {
				path := userland(t, kind)
				src, dest := t.TempDir(), t.TempDir()
				oddTree(t, src)
				// What GNU's sha256sum escapes, busybox does not, and no links: those are sent whenever digests are compared.
				for _, name := range []string{"link", ".hidden/up", "dangling", "long link", "zz hard link", "line\nbreak"} {
					if err := os.Remove(filepath.Join(src, name)); err != nil {
						t.Fatal(err)
					}
				}
				t.Cleanup(func() { removeAll(t, dest) })
				deltas := func(what string, opt CompareOptions, entries int64, gone int64) {
					t.Helper()
					load, scratch := loadTree(t, src, WriteOptions{Reserved: Reserved("")}), StageName()
					opt.Digests = digests
					got := deliver(t, path, RemoteList{Dir: dest, Scratch: scratch, Own: filepath.Join(dest, ".leasehold"), Digests: digests}.Script(), scratch)
					if got.Word != WordOK {
						t.Fatalf("%s: listed with %q, want ok", what, got.Word)
					}
					onlyEntries(t, filepath.Join(dest, scratch), RemoteListed)
					list, err := os.Open(filepath.Join(dest, scratch, RemoteListed))
					if err != nil {
						t.Fatal(err)
					}
					defer list.Close()
					if fi, err := list.Stat(); err != nil || fi.Size() != got.Bytes {
						t.Errorf("the list has %v bytes, %v, want %d", fi.Size(), err, got.Bytes)
					}
					if err := load.Compare(t.Context(), list, opt); err != nil {
						t.Fatal(err)
					}
					if load.Total.Entries != entries || load.Gone != gone || load.Nothing() != (entries+gone == 0) {
						t.Errorf("%s: %d entries to send, %d to remove, want %d, %d", what, load.Total.Entries, load.Gone, entries, gone)
					}
					r := send(t, scratch, []*Load{load}, []string{dest})
					if got := deliver(t, path, r.Script(), scratch); got.Word != WordOK {
						t.Fatalf("%s: word %q, want ok", what, got.Word)
					}
				}
				all := loadTree(t, src, WriteOptions{}).Total.Entries
				deltas("new", CompareOptions{}, all, 0)
				deltas("unchanged", CompareOptions{Remove: true}, 0, 0)
				changed := filepath.Join(src, "-C")
				if err := errors.Join(os.WriteFile(changed, []byte("DASH"), 0o644), os.Chmod(filepath.Join(src, "shared"), 0o600)); err != nil {
					t.Fatal(err)
				}
				deltas("changed content and mode", CompareOptions{}, 2, 0)
				put(t, dest, map[string]string{"gone/x\n'y": "", "gone/deeper/z": "", "-v": ""})
				deltas("removed", CompareOptions{Remove: true}, 0, 5)
				if diff := cmp.Diff(contents(t, src), contents(t, dest)); diff != "" {
					t.Errorf("tree mismatch (-want +got):\n%s", diff)
				}
			})
		}
	}
}

// What a source does not have is removed, but for the lease's own directory and what leads to it, whatever its names are.
func TestDeltaKeepsTheLeasesDirectory(t *testing.T) {
	for _, kind := range append([]string{"zsh"}, sandboxes...) {
		path, src := userland(t, kind), t.TempDir()
		for name, tc := range map[string]struct {
			dest, own string // own by the paths
			want      []string
		}{
			"workspace": {"alias", "", []string{".leasehold"}},
			"above":     {"above", "", []string{"ws"}},
			"top":       {".", "alias/.leasehold", []string{"alias", "it's *\n[u]"}},
		} {
			t.Run(kind+", "+name, func(t *testing.T) {
				ws, alias, _ := aliased(t)
				dest, scratch := filepath.Join(filepath.Dir(alias), tc.dest), StageName()
				put(t, dest, map[string]string{"gone/.leasehold/x": "x"})
				list := RemoteList{Dir: dest, Scratch: scratch, Own: filepath.Join(ws, ".leasehold")}
				if got := deliver(t, path, list.Script(), scratch); got.Word != WordOK {
					t.Fatalf("listed with %q, want ok", got.Word)
				}
				data, err := os.ReadFile(filepath.Join(dest, scratch, RemoteListed))
				if err != nil {
					t.Fatal(err)
				}
				load := loadTree(t, src, WriteOptions{Reserved: Reserved("")})
				if err := load.Compare(t.Context(), bytes.NewReader(data), CompareOptions{Remove: true, Own: tc.own}); err != nil {
					t.Fatal(err)
				}
				r := send(t, scratch, []*Load{load}, []string{dest})
				r.Own = list.Own
				if got := deliver(t, path, r.Script(), scratch); got.Word != WordOK {
					t.Errorf("word %q, want ok", got.Word)
				}
				onlyEntries(t, dest, tc.want...)
				if diff := cmp.Diff(map[string]string{".leasehold/lease.json": "mine"}, contents(t, ws)); diff != "" {
					t.Errorf("workspace mismatch (-want +got):\n%s", diff)
				}
			})
		}
		_, alias, _ := aliased(t)
		list := RemoteList{Dir: filepath.Join(alias, ".leasehold"), Scratch: StageName(), Own: filepath.Join(alias, ".leasehold")}
		if got := deliver(t, path, list.Script(), list.Scratch); got.Word != WordReserved {
			t.Errorf("%s: listed with %q, want reserved", kind, got.Word)
		}
	}
}

// A list that the sandbox made up, or that was cut, is an error, and moves nothing out of the tree.
func TestF1ListsAreNotTrusted(t *testing.T) {
	src := t.TempDir()
	put(t, src, map[string]string{"f": "x"})
	fi, err := os.Stat(filepath.Join(src, "f"))
	if err != nil {
		t.Fatal(err)
	}
	whole := fmt.Sprintf("41ed 0 0 .//\n81a4 1 %d ./f//\n81a4 1 1 ./other\nname//\n0 0 0 =//\n0 0 0 =//\n", fi.ModTime().Unix())
	for cut := range len(whole) {
		load := loadTree(t, src, WriteOptions{})
		if err := load.Compare(t.Context(), strings.NewReader(whole[:cut]), CompareOptions{Remove: true}); !errors.Is(err, ErrCorrupt) {
			t.Fatalf("a list cut after %d bytes: error %v, want %v", cut, err, ErrCorrupt)
		}
		if load.gone != "" || load.has("f") {
			t.Errorf("a list cut after %d bytes changed the load", cut)
		}
	}
	load := loadTree(t, src, WriteOptions{})
	if err := load.Compare(t.Context(), strings.NewReader(whole), CompareOptions{Remove: true}); err != nil || !load.has("f") || load.Gone != 1 {
		t.Errorf("%v, has %v, %d gone", err, load.has("f"), load.Gone)
	}
	for _, list := range []string{"81a4 1 1 f//\n", "x 1 1 ./f//\n", "81a4 ./f//\n", strings.Repeat("a", 1<<20), "81a4 1 1 /etc/passwd//\n", "81a4 1 1 .//etc/passwd//\n", "81a4 1 1 ./../f//\n", "81a4 1 1 ./..//\n"} {
		load := loadTree(t, src, WriteOptions{})
		err := load.Compare(t.Context(), strings.NewReader(list), CompareOptions{Remove: true})
		if !errors.Is(err, ErrCorrupt) || load.gone != "" {
			t.Errorf("%.20q: error %v, want %v; %q is to be removed", list, err, ErrCorrupt, load.gone)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := loadTree(t, src, WriteOptions{}).Compare(ctx, strings.NewReader(whole), CompareOptions{}); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want the context's", err)
	}
}

func TestBundleInEverySandbox(t *testing.T) {
	for _, kind := range sandboxes {
		t.Run(kind, func(t *testing.T) {
			path := userland(t, kind)
			src, ws := t.TempDir(), t.TempDir()
			oddTree(t, src)
			t.Cleanup(func() { removeAll(t, ws) })
			marker := filepath.Join(ws, ".leasehold", "bundles", "x")
			var digest string
			bundle := func() Word {
				t.Helper()
				load, scratch := loadTree(t, src, WriteOptions{ReadOnly: true, Prefix: "b/"}), StageName()
				var err error
				if digest, err = load.Digest(t.Context()); err != nil {
					t.Fatal(err)
				}
				r := send(t, scratch, []*Load{load}, []string{ws})
				r.Bundle, r.Digest, r.Marker = "b", digest, marker
				return deliver(t, path, r.Script(), scratch).Word
			}
			look := func() Word {
				t.Helper()
				mark := StageName()
				return deliver(t, path, RemoteBundle{Mark: mark, Dir: filepath.Join(ws, "b"), Digest: digest, Marker: marker}.Script(), mark).Word
			}
			for range 2 { // new, and over itself
				if got := bundle(); got != WordOK {
					t.Fatalf("word %q, want ok", got)
				}
				if diff := cmp.Diff(contents(t, src), contents(t, filepath.Join(ws, "b"))); diff != "" {
					t.Errorf("tree mismatch (-want +got):\n%s", diff)
				}
				if got := look(); got != WordOK {
					t.Errorf("word %q for an unchanged bundle, want ok", got)
				}
			}
			onlyEntries(t, ws, ".leasehold", "b")
			file := filepath.Join(ws, "b", "plain.txt")
			fi, err := os.Stat(file)
			if err != nil || fi.Mode() != 0o444 {
				t.Fatalf("mode %v, %v, want read-only", fi.Mode(), err)
			}
			for name, harm := range map[string]func() error{
				"its marker": func() error { return os.Truncate(marker, 64) },
				"a byte, with the time as it was": func() error {
					return errors.Join(os.Chmod(file, 0o644), os.WriteFile(file, []byte("HELLO\n"), 0o644), os.Chmod(file, 0o444), os.Chtimes(file, fi.ModTime(), fi.ModTime()))
				},
			} {
				if err := harm(); err != nil {
					t.Fatal(err)
				}
				if got := look(); got != WordChanged {
					t.Errorf("%s changed: word %q, want changed", name, got)
				}
				if got := bundle(); got != WordOK {
					t.Fatalf("word %q, want ok", got)
				}
			}
		})
	}
}

func TestF2BundleThatChangesWhileItIsSentIsRefused(t *testing.T) {
	src := t.TempDir()
	put(t, src, map[string]string{"a": "1", "b": "2"})
	load := loadTree(t, src, WriteOptions{ReadOnly: true, Prefix: "b/"})
	if _, err := load.Digest(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(src, "a"), []byte("9"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(filepath.Join(src, "a"), time.Time{}, time.Unix(1e9, 0)); err != nil {
		t.Fatal(err)
	}
	parts := load.Parts()
	_, err := parts[len(parts)-1].Write(t.Context(), &bytes.Buffer{}, nil)
	wantKind(t, err, ErrChanged)
}

func TestStagesInEverySandbox(t *testing.T) {
	for _, kind := range sandboxes {
		t.Run(kind, func(t *testing.T) {
			path := userland(t, kind)
			src, base := t.TempDir(), t.TempDir()
			put(t, src, map[string]string{"f": "x"})
			dests := []string{filepath.Join(base, "a"), filepath.Join(base, "b c'"), filepath.Join(base, "link")}
			if err := errors.Join(os.MkdirAll(dests[0], 0o755), os.Symlink("a", dests[2])); err != nil {
				t.Fatal(err)
			}
			take := func() Reply {
				var loads []*Load
				for i := range dests {
					load, err := LoadFiles(t.Context(), []HostFile{{filepath.Join(src, "f"), fmt.Sprint("f", i), 0}}, WriteOptions{})
					if err != nil {
						t.Fatal(err)
					}
					loads = append(loads, load)
				}
				scratch := StageName()
				return deliver(t, path, send(t, scratch, loads, dests).Script(), scratch)
			}
			if got := take(); got.Word != WordOK {
				t.Fatalf("word %q, want ok", got.Word)
			}
			onlyEntries(t, base, "a", "b c'", "link")
			onlyEntries(t, dests[0], "f0", "f2")
			onlyEntries(t, dests[1], "f1")
			// One in conflict keeps all of them back.
			if err := errors.Join(os.Remove(filepath.Join(dests[0], "f0")), os.Remove(filepath.Join(dests[1], "f1")), os.Mkdir(filepath.Join(dests[1], "f1"), 0o755)); err != nil {
				t.Fatal(err)
			}
			if got := take(); got.Word != WordConflict {
				t.Errorf("word %q, want %q", got.Word, WordConflict)
			}
			onlyEntries(t, dests[0], "f2")
			onlyEntries(t, dests[1], "f1")
		})
	}
}

func TestPathsThatNoShellCouldNameAreRefused(t *testing.T) {
	src := t.TempDir()
	put(t, src, map[string]string{strings.Repeat("d/", 20) + "f": "x"})
	dir, err := Dir(src)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := LoadTree(t.Context(), dir, WriteOptions{MaxName: 40}); !errors.Is(err, ErrLimit) {
		t.Errorf("error %v, want %v", err, ErrLimit)
	}
	if load := loadTree(t, src, WriteOptions{MaxName: 41}); load.Total.Entries != 21 {
		t.Errorf("%d entries, want 21", load.Total.Entries)
	}
	if dir, err = Dir(src); err != nil {
		t.Fatal(err)
	}
	if _, err := LoadTree(t.Context(), dir, WriteOptions{MaxDepth: 20}); !errors.Is(err, ErrLimit) {
		t.Errorf("error %v, want %v", err, ErrLimit)
	}
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]error{"abc": nil, "abcd": ErrLimit} {
		if _, err := LoadFiles(t.Context(), []HostFile{{file, name, 0}}, WriteOptions{MaxName: 3}); !errors.Is(err, want) {
			t.Errorf("%s: error %v, want %v", name, err, want)
		}
	}
	stream := tarball(t, entry{name: strings.Repeat("d/", 20) + "f"})
	for most, want := range map[int]error{40: ErrLimit, 41: nil} {
		load := LoadTar(bytes.NewReader(stream), ExtractOptions{}, WriteOptions{MaxName: most})
		if _, err := load.Parts()[0].Write(t.Context(), &bytes.Buffer{}, nil); !errors.Is(err, want) {
			t.Errorf("error %v, want %v", err, want)
		}
	}
}

// Should a name in the scratch directory be too long for the shell all the same, nothing is published, and it says so.
func TestF2ScriptTakesNothingForPublishedThatItCannotName(t *testing.T) {
	file := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, kind := range sandboxes {
		t.Run(kind, func(t *testing.T) {
			dest := t.TempDir()
			for len(dest) < 3900 {
				dest += "/" + strings.Repeat("d", min(200, 3900-len(dest)))
			}
			load, err := LoadFiles(t.Context(), []HostFile{{file, strings.Repeat("n", 170), 0}, {file, "short", 0}}, WriteOptions{})
			if err != nil {
				t.Fatal(err)
			}
			r := send(t, StageName(), []*Load{load}, []string{dest})
			if got := deliver(t, userland(t, kind), r.Script(), r.Scratch); got.Word != WordExtract {
				t.Errorf("word %q, want %q", got.Word, WordExtract)
			}
			if _, err := os.Lstat(filepath.Join(dest, "short")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the other file was published: %v", err)
			}
		})
	}
}

// FuzzStream passes any stream on, and extracts what came of it with the checks of an export: nothing that was passed on
// may be unsafe.
func FuzzStream(f *testing.F) {
	f.Add(tarball(f, entry{name: "d/f", body: "x"}, entry{kind: '2', name: "l", link: "d"}, entry{kind: '1', name: "h", link: "d/f"}))
	f.Add(tarball(f, entry{name: "../f", body: "x"}))
	f.Add(tarball(f, entry{kind: '2', name: "l", link: ".."}, entry{name: "l/f"}))
	f.Fuzz(func(t *testing.T, data []byte) {
		var b bytes.Buffer
		load := LoadTar(bytes.NewReader(data), ExtractOptions{MaxBytes: 1 << 20, MaxEntries: 100}, WriteOptions{MaxName: 4000, Reserved: Reserved("")})
		sum, err := load.Parts()[0].Write(t.Context(), &b, nil)
		if err != nil {
			return
		}
		a := newArena(t)
		got, err := a.extract(b.Bytes(), ExtractOptions{MaxDepth: 2000, Reserve: -1})
		a.outsideIntact(t)
		if err != nil && !errors.Is(err, ErrDest) {
			t.Errorf("what was passed on is refused: %v", err)
		}
		if err == nil && got.Bytes != sum.Bytes {
			t.Errorf("%d bytes passed on, %d arrived", sum.Bytes, got.Bytes)
		}
	})
}

// quotedWord is one word as the shell is given it.
var quotedWord = regexp.MustCompile(`'(?:[^']|'\\'')*'`)

// FuzzReplies feeds what a hostile sandbox may say, as the words of a script and as the list of what it has: nothing of it is
// held without bound, and nothing but what lies below the directory is to be removed.
func FuzzReplies(f *testing.F) {
	mark := StagePrefix + "x"
	for _, s := range []string{
		"", "\n" + mark + " ok 12\n", "\n" + mark + " skip ./a\n" + mark + " skip\n" + mark + " ok -1\n", mark + " \n" + mark, mark + " ok 99999999999999999999\n",
		mark + " piece 0 12 5\n" + mark + " piece 1 - 1\n" + mark + " busy\n", mark + " piece -1 1 0\n",
		"41ed 0 0 .//\n81a4 1 5 ./f//\n81a4 1 1 ./other\nname//\n41ed 0 0 ./d//\n0 0 0 =//\n" + strings.Repeat("0", 64) + "  ./f\n0 0 0 =//\n",
		"81a4 1 1 ./../x//\na1ff 1 1 ./.leasehold/y//\n0 0 0 =//\n0 0 0 =//\n", "81a4 1 1 .//x//\n0 0 0 =//\n0 0 0 =//\n", "81a4 1 1 ./x/./y//\n0 0 0 =//\n0 0 0 =//\n",
		"4 1 1 ./..0 0 \na'1ff ./.leasehold/y'//\n0 0 0 =//\n0 0 0 =//\n",
	} {
		f.Add(s)
	}
	src := f.TempDir()
	put(f, src, map[string]string{"f": "x", "d/g": ""})
	f.Fuzz(func(t *testing.T, output string) {
		r, ok := ParseReply(output, "/ws/"+mark)
		if ok != (r.Word != "" || len(r.Pieces) > 0) || strings.ContainsAny(string(r.Word), " \n") || r.Bytes < 0 || len(r.Sockets) > MaxSkipped || r.SocketCount < len(r.Sockets) {
			t.Errorf("ParseReply(%q) = %+v, %v", output, r, ok)
		}
		for _, piece := range r.Pieces {
			if piece.Number < 0 || piece.Size <= 0 {
				t.Errorf("ParseReply(%q) has piece %+v", output, piece)
			}
		}
		for _, digests := range []bool{false, true} {
			load := loadTree(t, src, WriteOptions{Reserved: Reserved(".leasehold")})
			total := load.Total
			err := load.Compare(t.Context(), strings.NewReader(output), CompareOptions{Remove: true, Digests: digests})
			if err != nil {
				if load.gone != "" || load.has("f") {
					t.Errorf("the list %q is refused, and changed the load: %v", output, err)
				}
				continue
			}
			if load.Have.Entries+load.Total.Entries != total.Entries || load.Have.Bytes+load.Total.Bytes != total.Bytes || load.Have.Entries < 0 || load.Total.Entries < 0 {
				t.Errorf("of %+v there are %+v, and %+v are sent", total, load.Have, load.Total)
			}
			for _, word := range quotedWord.FindAllString(load.gone, -1) {
				name, below := strings.CutPrefix(strings.ReplaceAll(word[1:len(word)-1], `'\''`, "'"), "./")
				if first, _, _ := strings.Cut(name, "/"); !below || path.Clean(name) != name || first == "" || first == ".." || first == ".leasehold" {
					t.Errorf("the list %q removes %q", output, name)
				}
			}
			if len(load.gone) > 64*len(output) {
				t.Errorf("a list of %d bytes makes %d", len(output), len(load.gone))
			}
		}
	})
}
