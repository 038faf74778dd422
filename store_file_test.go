package leasehold

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
)

// storedRecord returns a valid record, in state creating.
func storedRecord() Record {
	scope := request().Scope
	attempt := uuid.NewString()
	creation := creationOperation{
		Attempt: attempt, Name: "leasehold-create-" + attempt, Scope: scope, Credential: strings.Repeat("0a", 32),
		Labels: map[string]string{
			"leasehold-provider": "daytona", "leasehold-tenant": scope.Tenant, "leasehold-environment": scope.Environment,
			"leasehold-run": scope.Run, "leasehold-reuse": "false", "leasehold-attempt": attempt,
		},
	}
	return Record{Version: recordVersion, State: StateCreating, Orphan: OrphanDestroy, Envelope: *creation.envelope(PhaseCreate, ""), CreatedAt: time.Now().UTC().Round(0)}
}

// leasedRecord returns a valid record of a lease.
func leasedRecord() Record {
	r := storedRecord()
	r.State, r.Envelope.Observed = StateLeased, "sandbox-"+r.Envelope.Attempt
	e := r.Envelope
	r.Lease = &LeaseRef{
		Version: leaseRefVersion, Sandbox: e.Observed, Name: e.Name, Scope: e.Scope, Attempt: e.Attempt, Labels: e.Labels,
		Account: strings.Repeat("1b", 32), Credential: e.Credential, Workspace: "/work", Sentinel: strings.Repeat("2c", 32),
		Shell: "sh", CreatedAt: r.CreatedAt,
	}
	return r
}

// unreadable collects what a store reports.
type unreadable struct {
	mu    sync.Mutex
	files []string
}

func (u *unreadable) options() FileStoreOptions {
	return FileStoreOptions{OnUnreadable: func(file string, err error) {
		u.mu.Lock()
		defer u.mu.Unlock()
		if !errors.Is(err, errUnreadable) {
			file += ": " + err.Error()
		}
		u.files = append(u.files, filepath.Base(file))
	}}
}

func (u *unreadable) want(t *testing.T, want ...string) {
	t.Helper()
	u.mu.Lock()
	defer u.mu.Unlock()
	slices.Sort(u.files)
	slices.Sort(want)
	if !slices.Equal(u.files, want) {
		t.Errorf("reported as unreadable: %q, want %q", u.files, want)
	}
}

func fileStore(t *testing.T, dir string, options FileStoreOptions) *FileStore {
	t.Helper()
	s, err := NewFileStore(dir, options)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// listed returns how many records the store lists, by attempt.
func listed(t *testing.T, s Store) map[string]Record {
	t.Helper()
	entries, err := s.List(t.Context(), "", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	records := make(map[string]Record)
	for _, e := range entries {
		records[e.Record.Envelope.Attempt] = e.Record
	}
	return records
}

// TestFileStoreNamesEveryProblem: what it refuses to keep is not found out about one by one.
func TestFileStoreNamesEveryProblem(t *testing.T) {
	s := fileStore(t, t.TempDir(), FileStoreOptions{})
	record := leasedRecord()
	record.Orphan, record.Envelope.Phase, record.Lease.Shell = OrphanKeep, "?", "fish"
	_, err := s.Put(t.Context(), record, "not an owner")
	var fields []string
	for _, f := range wantError(t, err, KindInvalid).Fields {
		fields = append(fields, f.Field)
	}
	if want := []string{"CleanupEnvelope.Phase", "LeaseRef.Shell", "Record.Orphan", "owner"}; !slices.Equal(fields, want) {
		t.Errorf("Put() names %q, want %q", fields, want)
	}
}

func TestFileStoreNamesADirectoryThatCannotBeUsed(t *testing.T) {
	_, err := NewFileStore("", FileStoreOptions{})
	if e := wantError(t, err, KindInvalid); fieldsOf(e) != "dir" || e.Dispatched != DispatchedNo {
		t.Errorf("got %+v, want the field dir", e)
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below"), "a\x00b"} {
		_, err := NewFileStore(dir, FileStoreOptions{})
		if e := wantError(t, err, KindStore); e.Retryable || !strings.Contains(e.Message, strconv.Quote(dir)) {
			t.Errorf("got %+v, want the name of the directory, and that it is not retryable", e)
		}
	}
}

// TestFileStoreModes: nobody else may read what is stored.
func TestFileStoreModes(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no modes")
	}
	dir := filepath.Join(t.TempDir(), "a", "b")
	s := fileStore(t, dir, FileStoreOptions{})
	if err := s.Renew(t.Context(), "owner", time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), storedRecord(), "owner"); err != nil {
		t.Fatal(err)
	}
	seen := 0
	if err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		want := fs.FileMode(0o600)
		if info.IsDir() {
			want = 0o700
		}
		seen++
		if got := info.Mode().Perm(); got != want {
			t.Errorf("%s has mode %o, want %o", path, got, want)
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	if seen < 6 { // three directories, an owner, a record, and their locks, which may be one
		t.Errorf("looked at %d files, want 6 or more", seen)
	}
}

// TestFileStoreLeavesWhatItCannotRead: torn, foreign, empty and huge files, directories, links and pipes are reported
// once, left, and in nobody's way.
func TestFileStoreLeavesWhatItCannotRead(t *testing.T) {
	dir := t.TempDir()
	var reports unreadable
	s := fileStore(t, dir, reports.options())
	good := storedRecord()
	claim, err := s.Put(t.Context(), good, "dead")
	if err != nil {
		t.Fatal(err)
	}
	whole, err := os.ReadFile(s.recordPath(good.Envelope.Attempt))
	if err != nil {
		t.Fatal(err)
	}
	var bad []string
	add := func(name string, data []byte) {
		t.Helper()
		bad = append(bad, name)
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	torn := uuid.NewString()
	own := []byte(strings.ReplaceAll(string(whole), good.Envelope.Attempt, torn))
	add(torn+".json", own[:len(own)/2])
	add(uuid.NewString()+".json", nil)
	add(uuid.NewString()+".json", whole) // another attempt's
	add(uuid.NewString()+".json", []byte(`{"version":1,"token":1,"record":{}}`))
	add(uuid.NewString()+".json", slices.Concat(whole, make([]byte, maxRecordFile)))
	later := uuid.NewString()
	add(later+".json", []byte(strings.ReplaceAll(strings.Replace(string(whole), `"version":1`, `"version":2`, 1), good.Envelope.Attempt, later)))
	add("README", []byte("hello"))
	add(strings.ToUpper(uuid.NewString())+".json", whole)
	directory, link := uuid.NewString(), uuid.NewString()
	if err := os.Mkdir(filepath.Join(dir, directory+".json"), 0o700); err != nil {
		t.Fatal(err)
	}
	bad = append(bad, directory+".json")
	if err := os.Symlink(s.recordPath(good.Envelope.Attempt), filepath.Join(dir, link+".json")); err == nil {
		bad = append(bad, link+".json")
	}
	for range 2 {
		if got := listed(t, s); len(got) != 1 || got[good.Envelope.Attempt].State != StateCreating {
			t.Errorf("List() = %v, want the one record", got)
		}
	}
	reports.want(t, bad...)
	for _, attempt := range []string{torn, directory} {
		if _, err := s.Claim(t.Context(), attempt, "o"); !errors.Is(err, ErrStore) {
			t.Errorf("Claim(unreadable) = %v, want ErrStore", err)
		}
		occupied := storedRecord()
		occupied.Envelope.Name, occupied.Envelope.Attempt = "leasehold-create-"+attempt, attempt
		occupied.Envelope.Labels["leasehold-attempt"] = attempt
		if _, err := s.Put(t.Context(), occupied, "o"); !errors.Is(err, ErrConflict) {
			t.Errorf("Put(over an unreadable file) = %v, want ErrConflict", err)
		}
	}
	if claims, err := s.ClaimDue(t.Context(), "sweeper", 100); err != nil || len(claims) != 1 {
		t.Errorf("ClaimDue() = %v, %v, want the one record", claims, err)
	}
	if err := s.Delete(t.Context(), claim); !errors.Is(err, ErrFenced) {
		t.Errorf("Delete(fenced) = %v, want ErrFenced", err)
	}
	for _, name := range bad {
		if _, err := os.Lstat(filepath.Join(dir, name)); err != nil {
			t.Errorf("an unreadable file was not left: %v", err)
		}
	}
}

// TestFileStoreTornAnywhere: a record's file that ends anywhere but at its end is no record.
func TestFileStoreTornAnywhere(t *testing.T) {
	t.Parallel()
	s := fileStore(t, t.TempDir(), FileStoreOptions{})
	r := leasedRecord()
	if _, err := s.Put(t.Context(), r, "o"); err != nil {
		t.Fatal(err)
	}
	path := s.recordPath(r.Envelope.Attempt)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := s.read(r.Envelope.Attempt); !errors.Is(err, errUnreadable) {
			t.Fatalf("read(the first %d of %d bytes) = %v, want errUnreadable", n, len(whole), err)
		}
	}
}

// TestFileStoreSweepsLeftovers: what killed writers left is removed when it is old; what is not the store's is not.
func TestFileStoreSweepsLeftovers(t *testing.T) {
	dir := t.TempDir()
	s := fileStore(t, dir, FileStoreOptions{})
	if err := s.Renew(t.Context(), "living", 24*time.Hour); err != nil {
		t.Fatal(err)
	}
	if err := s.Renew(t.Context(), "dead", 1); err != nil { // a nanosecond
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Renew(t.Context(), "gone", time.Hour); err != nil {
			t.Fatal(err)
		}
		if err := s.Renew(t.Context(), "gone", 0); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(s.ownerPath("gone")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the file of an owner that ended: %v", err)
		}
	}
	if err := s.Renew(t.Context(), "gone", 0); err != nil {
		t.Errorf("Renew() of an owner that is gone = %v", err)
	}
	old := time.Now().Add(-2 * leftoverAge)
	for name, stays := range map[string]bool{
		".tmp-1": false, ".tmp-new": true, "tmp-2": true, "owners/dead.json": false, "owners/living.json": true, "owners/.tmp-3": false,
	} {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err != nil {
			if err := os.WriteFile(path, []byte("half"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		if err := os.Chtimes(path, old, old); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if _, err := os.Stat(path); (err == nil) != stays {
				t.Errorf("%s: stat = %v, want it to stay: %t", name, err, stays)
			}
		}()
	}
	fresh := filepath.Join(dir, ".tmp-77")
	if err := os.WriteFile(fresh, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	listed(t, s)
	if _, err := os.Stat(fresh); err != nil {
		t.Errorf("the file of a writer at work: %v", err)
	}
}

// TestFileStoreTokensOutliveRecords: the clock may be set back between a deletion and the next put.
func TestFileStoreTokensOutliveRecords(t *testing.T) {
	s := fileStore(t, t.TempDir(), FileStoreOptions{})
	r := storedRecord()
	lock, err := s.lock(t.Context(), "test", r.Envelope.Attempt)
	if err != nil {
		t.Fatal(err)
	}
	ahead := time.Now().Add(1000 * time.Hour).UnixNano()
	granted, err := lock.nextToken(ahead)
	lock.release()
	if err != nil || granted != ahead+1 {
		t.Fatalf("nextToken(%d) = %d, %v, want the next", ahead, granted, err)
	}
	claim, err := s.Put(t.Context(), r, "o")
	if err != nil || claim.Token <= granted {
		t.Errorf("Put() = token %d, %v, want more than %d", claim.Token, err, granted)
	}
}

// Variables that make the test binary a process that writes to a store until it is killed, or is done.
const (
	writerDirVariable = "LEASEHOLD_TEST_WRITER_DIR"
	writerHotVariable = "LEASEHOLD_TEST_WRITER_ATTEMPT"
)

func init() {
	if dir := os.Getenv(writerDirVariable); dir != "" {
		beWriter(dir, os.Getenv(writerHotVariable))
	}
}

// beWriter puts records, and prints each when it is stored; in between it counts up the record that all writers share, and
// prints each success.
func beWriter(dir, hot string) {
	check := func(err error) {
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	s, err := NewFileStore(dir, FileStoreOptions{})
	check(err)
	ctx, owner := context.Background(), "writer-"+strconv.Itoa(os.Getpid())
	check(s.Renew(ctx, owner, time.Hour))
	for range 1000 {
		r := storedRecord()
		claim, err := s.Put(ctx, r, owner)
		check(err)
		r.Envelope.Observed = "seen"
		fmt.Println("put", r.Envelope.Attempt)
		check(s.Update(ctx, claim, r))
		fmt.Println("updated", r.Envelope.Attempt)
		shared, err := s.Claim(ctx, hot, owner)
		check(err)
		shared.Record.Failures++
		switch err := s.Update(ctx, shared, shared.Record); {
		case err == nil:
			fmt.Println("counted")
		case !errors.Is(err, ErrFenced):
			check(err)
		}
	}
	os.Exit(0)
}

// TestFileStoreProcesses: processes share a directory and are killed while they write. Whatever they were told is
// stored is there, whole; the record that all of them write holds every change that was accepted.
func TestFileStoreProcesses(t *testing.T) {
	dir := t.TempDir()
	var reports unreadable
	s := fileStore(t, dir, reports.options())
	hot := leasedRecord()
	if _, err := s.Put(t.Context(), hot, "test"); err != nil {
		t.Fatal(err)
	}
	const writers, lines = 3, 60
	var wg sync.WaitGroup
	said := make([][]string, writers)
	for i := range writers {
		host := exec.CommandContext(t.Context(), os.Args[0])
		host.Env = append(os.Environ(), writerDirVariable+"="+dir, writerHotVariable+"="+hot.Envelope.Attempt)
		out, err := host.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := host.Start(); err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			scanner := bufio.NewScanner(out)
			for scanner.Scan() {
				said[i] = append(said[i], scanner.Text())
				if len(said[i]) == lines+i {
					_ = host.Process.Kill() // somewhere in the middle; what it still said is read
				}
			}
			_ = host.Wait()
		})
	}
	wg.Wait()
	records := listed(t, s)
	counted, killed := 0, 0
	for i, lines := range said {
		for _, line := range lines {
			verb, attempt, _ := strings.Cut(line, " ")
			r, stored := records[attempt]
			switch verb {
			case "put":
				if !stored {
					t.Errorf("writer %d put %s, and it is gone", i, attempt)
				}
			case "updated":
				if r.Envelope.Observed != "seen" {
					t.Errorf("writer %d updated %s, and the change is gone", i, attempt)
				}
			case "counted":
				counted++
			default:
				t.Errorf("writer %d said %q", i, line)
			}
		}
		killed++
	}
	// A writer may have been killed after its change was accepted and before it could say so.
	if got := records[hot.Envelope.Attempt].Failures; got < counted || got > counted+killed {
		t.Errorf("the shared record counts %d changes, want %d to %d", got, counted, counted+killed)
	}
	if counted == 0 {
		t.Error("no change of the shared record was accepted: the test proves nothing")
	}
	reports.want(t)
}
