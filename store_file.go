package leasehold

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/leasehold-go/leasehold/internal/archive"
)

const (
	// maxRecordFile is more than the largest record, every byte of it escaped.
	maxRecordFile = 256 << 10
	// fileShards is how many locks a directory's records share, so that writers seldom wait for each other's disk.
	fileShards = 64
	// leftoverAge is when the temporary file of a writer, or the file of an owner, that is no longer used is removed.
	leftoverAge = time.Hour
	fileVersion = 1
)

// FileStoreOptions change what [NewFileStore] does. The zero value is useful.
type FileStoreOptions struct {
	// OnUnreadable is called with a file of the directory that is no record: torn, foreign, empty, too large, of a later
	// version, a directory, a link. It is left as it is, and nothing fails because of it; if it was a record, its sandbox
	// needs a look. It is called once for each such file, from within calls of the store, and so perhaps at the same time for
	// different files. Nil: nothing is reported.
	OnUnreadable func(file string, err error)
}

// NewFileStore returns a [Store] that keeps each record in a file of its own in dir, which it makes, with its parents,
// if there is none. Processes of one machine may share dir, each with a store of its own. It fails with [ErrInvalid] if dir is
// empty, and with [ErrStore] if dir cannot be used.
//
// A record is written to a temporary file, flushed to the disk and renamed, and then the directory is flushed: a full
// disk or a power cut leaves the record as it was before or as it is after. Files are for their owner only (0600, dir 0700
// where the store makes it). Writers exclude each other with advisory locks, flock on Unix and LockFileEx on Windows,
// which end with the process that holds them. So dir must be on a local disk: locks, renames and the clock of a network
// file system are not to be relied on. The clock is the machine's: see [Store] for what happens if it is set. Windows
// cannot flush a directory; there a power cut may bring back the record before the last one.
func NewFileStore(dir string, options FileStoreOptions) (*FileStore, error) {
	const op = "open store"
	var p problems
	if dir == "" { // which would mean the working directory of the process
		p.add("dir", "is empty")
	}
	if err := p.err(op); err != nil {
		return nil, err
	}
	s := &FileStore{dir: dir, options: options, reported: make(map[string]time.Time)}
	for i := range s.shards {
		s.shards[i] = make(chan struct{}, 1)
	}
	for _, d := range []string{dir, s.ownerDir(), s.lockDir()} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, cannotOpen(op, dir, err)
		}
	}
	if err := syncDir(dir); err != nil {
		return nil, cannotOpen(op, dir, err)
	}
	return s, nil
}

// FileStore is a [Store] in a directory. It holds nothing open between calls.
type FileStore struct {
	dir     string
	options FileStoreOptions
	onStep  func(step string)         // nil, but in tests: called after each step of a write
	shards  [fileShards]chan struct{} // one token each: within this process, whoever may try for the shard's lock

	mu       sync.Mutex
	due      []string             // attempts that the last scan found due, not handed out yet, oldest first
	reported map[string]time.Time // unreadable files that were reported, by when they had been written
}

// fileEntry is the content of a record's file.
type fileEntry struct {
	Version int             `json:"version"`
	Owner   string          `json:"owner,omitempty"`
	Token   int64           `json:"token"`
	Due     time.Time       `json:"due"`
	Record  json.RawMessage `json:"record"`

	record Record
}

// fileOwner is the content of an owner's file.
type fileOwner struct {
	Until time.Time `json:"until"`
}

var (
	recordFileForm = regexp.MustCompile(`^([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.json$`)
	temporaryForm  = regexp.MustCompile(`^\.tmp-[0-9]+$`)
)

func (s *FileStore) recordPath(attempt string) string { return filepath.Join(s.dir, attempt+".json") }
func (s *FileStore) ownerDir() string                 { return filepath.Join(s.dir, "owners") }
func (s *FileStore) ownerPath(owner string) string    { return filepath.Join(s.ownerDir(), owner+".json") }
func (s *FileStore) lockDir() string                  { return filepath.Join(s.dir, "locks") }

// Put implements [Store].
func (s *FileStore) Put(ctx context.Context, record Record, owner string) (Claim, error) {
	const op = "put record"
	var p problems
	record.problems(&p)
	checkIdentifier(&p, "owner", owner, true)
	if err := p.err(op); err != nil {
		return Claim{}, err
	}
	attempt := record.Envelope.Attempt
	lock, err := s.lock(ctx, op, attempt)
	if err != nil {
		return Claim{}, err
	}
	defer lock.release()
	if _, err := os.Lstat(s.recordPath(attempt)); err == nil {
		return Claim{}, &Error{Op: op, Kind: KindConflict, Message: "there is a record of this attempt"}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Claim{}, storeFault(op, err)
	}
	return s.grant(op, lock, fileEntry{record: record.clone()}, owner)
}

// Claim implements [Store].
func (s *FileStore) Claim(ctx context.Context, attempt, owner string) (Claim, error) {
	return s.claim(ctx, attempt, owner, func(e fileEntry) (bool, error) {
		if e.Owner == owner || e.record.State == StateLeased {
			return true, nil
		}
		alive, err := s.alive(e.Owner)
		return !alive, err
	})
}

// ClaimDue implements [Store]. It scans the directory when it has handed out all that it found due the last time.
func (s *FileStore) ClaimDue(ctx context.Context, owner string, limit int) ([]Claim, error) {
	const op = "claim due records"
	if err := checkOwner(op, owner); err != nil {
		return nil, err
	}
	var claims []Claim
	for scanned := false; len(claims) < limit; {
		attempt, ok := s.nextDue()
		if !ok {
			if scanned {
				break
			}
			scanned = true
			if err := s.findDue(ctx, op); err != nil {
				return claims, someClaims(claims, err)
			}
			continue
		}
		claim, err := s.claim(ctx, attempt, owner, s.isDue)
		switch {
		case err == nil:
			claims = append(claims, claim)
		case errors.Is(err, ErrConflict), errors.Is(err, ErrNotFound), errors.Is(err, errUnreadable): // another's, meanwhile
		default:
			return claims, someClaims(claims, err)
		}
	}
	return claims, nil
}

// someClaims keeps an error from hiding claims that were made before it.
func someClaims(claims []Claim, err error) error {
	if len(claims) > 0 {
		return nil
	}
	return err
}

func (s *FileStore) isDue(e fileEntry) (bool, error) {
	if e.Due.After(time.Now()) {
		return false, nil
	}
	alive, err := s.alive(e.Owner)
	return !alive, err
}

func (s *FileStore) nextDue() (attempt string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.due) == 0 {
		return "", false
	}
	attempt, s.due = s.due[0], s.due[1:]
	return attempt, true
}

// findDue fills the list that nextDue hands out.
func (s *FileStore) findDue(ctx context.Context, op string) error {
	type found struct {
		attempt string
		due     time.Time
	}
	var due []found
	if err := s.scan(ctx, op, "", func(attempt string, e fileEntry) (bool, error) {
		isDue, err := s.isDue(e)
		if isDue {
			due = append(due, found{attempt, e.Due})
		}
		return true, err
	}); err != nil {
		return err
	}
	slices.SortFunc(due, func(a, b found) int {
		if c := a.due.Compare(b.due); c != 0 {
			return c
		}
		return strings.Compare(a.attempt, b.attempt)
	})
	s.mu.Lock()
	defer s.mu.Unlock()
	s.due = s.due[:0:0]
	for _, f := range due {
		s.due = append(s.due, f.attempt)
	}
	return nil
}

// Renew implements [Store]. What it writes is not flushed: if the machine dies, so did the owner.
func (s *FileStore) Renew(ctx context.Context, owner string, ttl time.Duration) error {
	const op = "renew claims"
	if err := checkOwner(op, owner); err != nil {
		return err
	}
	lock, err := s.lock(ctx, op, owner)
	if err != nil {
		return err
	}
	defer lock.release()
	if ttl <= 0 { // an owner without a file is dead
		if err := os.Remove(s.ownerPath(owner)); !errors.Is(err, fs.ErrNotExist) {
			return storeFault(op, err)
		}
		return nil
	}
	data, err := json.Marshal(fileOwner{Until: time.Now().Add(ttl)})
	if err != nil {
		return storeFault(op, err)
	}
	return storeFault(op, s.replace(s.ownerPath(owner), data, false))
}

// alive reports whether an owner lives. One whose file is not there, or was torn when the machine died, does not; one
// whose file cannot be read is not dead for that: this process may have no files left to open.
func (s *FileStore) alive(owner string) (bool, error) {
	if owner == "" {
		return false, nil
	}
	data, err := readRegular(s.ownerPath(owner))
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errUnreadable) {
		return false, nil
	}
	var o fileOwner
	return err == nil && json.Unmarshal(data, &o) == nil && time.Now().Before(o.Until), err
}

// Update implements [Store].
func (s *FileStore) Update(ctx context.Context, claim Claim, record Record) error {
	const op = "update record"
	if err := checkWrite(op, claim, record); err != nil {
		return err
	}
	return s.write(ctx, op, claim, func(e *fileEntry) { e.record = record })
}

// Release implements [Store].
func (s *FileStore) Release(ctx context.Context, claim Claim, record Record, wait time.Duration) error {
	const op = "release record"
	if err := checkWrite(op, claim, record); err != nil {
		return err
	}
	return s.write(ctx, op, claim, func(e *fileEntry) {
		e.record, e.Owner, e.Due = record, "", time.Now().Add(max(wait, 0))
	})
}

// Delete implements [Store].
func (s *FileStore) Delete(ctx context.Context, claim Claim) error {
	return s.write(ctx, "delete record", claim, nil)
}

// List implements [Store].
func (s *FileStore) List(ctx context.Context, after string, limit int) ([]Entry, error) {
	var entries []Entry
	err := s.scan(ctx, "list records", after, func(_ string, e fileEntry) (bool, error) {
		alive, err := s.alive(e.Owner)
		if err == nil && len(entries) < limit {
			entries = append(entries, Entry{Record: e.record, Owner: e.Owner, Alive: alive, Due: e.Due})
		}
		return len(entries) < limit, err
	})
	return entries, err
}

// claim gives owner the record of attempt, if free says so.
func (s *FileStore) claim(ctx context.Context, attempt, owner string, free func(fileEntry) (bool, error)) (Claim, error) {
	const op = "claim record"
	if err := checkOwner(op, owner); err != nil {
		return Claim{}, err
	}
	if !recordFileForm.MatchString(attempt + ".json") {
		return Claim{}, &Error{Op: op, Kind: KindNotFound, Message: "there is no record of this attempt"}
	}
	lock, err := s.lock(ctx, op, attempt)
	if err != nil {
		return Claim{}, err
	}
	defer lock.release()
	e, err := s.read(attempt)
	may := false
	if err == nil {
		may, err = free(e)
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return Claim{}, &Error{Op: op, Kind: KindNotFound, Message: "there is no record of this attempt"}
	case err != nil:
		return Claim{}, storeFault(op, err)
	case !may:
		return Claim{}, &Error{Op: op, Kind: KindConflict, Message: "the record is held by another owner, or not due"}
	}
	return s.grant(op, lock, e, owner)
}

// grant writes an entry with a new claim. The claim makes it due, for when its owner is dead.
func (s *FileStore) grant(op string, lock *fileLock, e fileEntry, owner string) (Claim, error) {
	token, err := lock.nextToken(e.Token)
	if err != nil {
		return Claim{}, storeFault(op, err)
	}
	s.did("token")
	e.Owner, e.Token, e.Due = owner, token, time.Now()
	if err := s.save(e); err != nil {
		return Claim{}, storeFault(op, err)
	}
	return Claim{Owner: owner, Token: token, Record: e.record}, nil
}

// write changes the entry that claim is for or, without a change, removes it.
func (s *FileStore) write(ctx context.Context, op string, claim Claim, change func(*fileEntry)) error {
	attempt := claim.Record.Envelope.Attempt
	fenced := &Error{Op: op, Kind: KindFenced, Message: "the claim is no longer the record's newest"}
	if !recordFileForm.MatchString(attempt + ".json") {
		return fenced
	}
	lock, err := s.lock(ctx, op, attempt)
	if err != nil {
		return err
	}
	defer lock.release()
	e, err := s.read(attempt)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fenced
	case err != nil:
		return storeFault(op, err)
	case e.Owner == "" || e.Owner != claim.Owner || e.Token != claim.Token:
		return fenced
	}
	if change == nil {
		err := os.Remove(s.recordPath(attempt))
		s.did("remove")
		return storeFault(op, errors.Join(err, syncDir(s.dir)))
	}
	change(&e)
	return storeFault(op, s.save(e))
}

// save writes an entry's file. The caller has its lock.
func (s *FileStore) save(e fileEntry) error {
	record, err := e.record.Encode()
	if err != nil {
		return err
	}
	e.Version, e.Record = fileVersion, record
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	return s.replace(s.recordPath(e.record.Envelope.Attempt), data, true)
}

// replace puts a file in another's place. Whatever fails, and whenever the process or, with flush, the machine dies, the
// path holds all of the old content or all of the new.
func (s *FileStore) replace(path string, data []byte, flush bool) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, ".tmp-*") // 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name())
		}
	}()
	s.did("create")
	_, err = f.Write(data)
	s.did("write")
	if err == nil && flush {
		err = f.Sync()
		s.did("flush")
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	s.did("rename")
	if flush {
		return syncDir(dir)
	}
	return nil
}

func (s *FileStore) did(step string) {
	if s.onStep != nil {
		s.onStep(step)
	}
}

// errUnreadable is why a file that is there is no record.
var errUnreadable = errors.New("not a record")

// read returns the entry of an attempt. The caller has its lock.
func (s *FileStore) read(attempt string) (fileEntry, error) {
	data, err := readRegular(s.recordPath(attempt))
	if err != nil {
		return fileEntry{}, err
	}
	var e fileEntry
	if json.Unmarshal(data, &e) != nil {
		return fileEntry{}, fmt.Errorf("%w: not its JSON form", errUnreadable)
	}
	if e.Version != fileVersion {
		return fileEntry{}, fmt.Errorf("%w: version %d, this package reads %d", errUnreadable, e.Version, fileVersion)
	}
	if e.record, err = ParseRecord(e.Record); err != nil {
		return fileEntry{}, fmt.Errorf("%w: %w", errUnreadable, err)
	}
	if e.record.Envelope.Attempt != attempt {
		return fileEntry{}, fmt.Errorf("%w: it is another attempt's", errUnreadable)
	}
	if e.Owner != "" && !identifierForm.MatchString(e.Owner) {
		return fileEntry{}, fmt.Errorf("%w: the owner's name is none", errUnreadable)
	}
	return e, nil
}

// readRegular reads a small regular file, and nothing else: it follows no link and waits for no pipe, one that is put in
// the file's place at this moment included.
func readRegular(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: not a regular file", errUnreadable)
	}
	f, err := os.OpenFile(path, os.O_RDONLY|openFileOnly, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if opened, err := f.Stat(); err != nil {
		return nil, err
	} else if !opened.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: not a regular file", errUnreadable)
	}
	data, err := io.ReadAll(io.LimitReader(f, maxRecordFile+1))
	if err != nil {
		return nil, err
	}
	if len(data) > maxRecordFile {
		return nil, fmt.Errorf("%w: over %d bytes", errUnreadable, maxRecordFile)
	}
	return data, nil
}

// scan calls f for the records after one, in order, until it returns false or an error. What is no record is reported and
// left; what dead writers left behind is removed. A record that could not be looked at is no reason to go on without it.
func (s *FileStore) scan(ctx context.Context, op, after string, f func(attempt string, e fileEntry) (bool, error)) error {
	files, err := os.ReadDir(s.dir)
	if err != nil {
		return storeFault(op, err)
	}
	for _, file := range files {
		if err := ctx.Err(); err != nil {
			return failed(op, ctxError(ctx))
		}
		name := file.Name()
		form := recordFileForm.FindStringSubmatch(name)
		switch {
		case form != nil && form[1] <= after:
		case form != nil:
			lock, err := s.lock(ctx, op, form[1])
			if err != nil {
				return err
			}
			e, err := s.read(form[1])
			lock.release()
			switch {
			case err == nil:
				if more, err := f(form[1], e); err != nil || !more {
					return storeFault(op, err)
				}
			case errors.Is(err, fs.ErrNotExist): // removed meanwhile
			case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE): // which says nothing of the file
				return storeFault(op, err)
			default:
				s.report(file, err)
			}
		case temporaryForm.MatchString(name):
			s.sweepLeftover(filepath.Join(s.dir, name))
		case name == filepath.Base(s.ownerDir()), name == filepath.Base(s.lockDir()):
		default:
			s.report(file, fmt.Errorf("%w: a foreign name", errUnreadable))
		}
	}
	s.sweepOwners(ctx, op)
	return nil
}

// report tells once of a file that is no record.
func (s *FileStore) report(file fs.DirEntry, err error) {
	if s.options.OnUnreadable == nil {
		return
	}
	info, infoErr := file.Info()
	if infoErr != nil {
		return
	}
	s.mu.Lock()
	at, known := s.reported[file.Name()]
	s.reported[file.Name()] = info.ModTime()
	s.mu.Unlock()
	if !known || !at.Equal(info.ModTime()) {
		s.options.OnUnreadable(filepath.Join(s.dir, file.Name()), err)
	}
}

// sweepLeftover removes a file that a writer left behind when it died. A living one renames it within moments.
func (s *FileStore) sweepLeftover(path string) {
	if info, err := os.Lstat(path); err == nil && info.Mode().IsRegular() && time.Since(info.ModTime()) > leftoverAge {
		_ = os.Remove(path)
	}
}

// sweepOwners removes what says of owners that died long ago that they lived: without it, they are as dead.
func (s *FileStore) sweepOwners(ctx context.Context, op string) {
	files, err := os.ReadDir(s.ownerDir())
	if err != nil {
		return
	}
	for _, file := range files {
		path := filepath.Join(s.ownerDir(), file.Name())
		if temporaryForm.MatchString(file.Name()) {
			s.sweepLeftover(path)
		}
		owner, ok := strings.CutSuffix(file.Name(), ".json")
		if !ok || !identifierForm.MatchString(owner) {
			continue
		}
		if info, err := os.Lstat(path); err != nil || !info.Mode().IsRegular() || time.Since(info.ModTime()) < leftoverAge {
			continue
		}
		if lock, err := s.lock(ctx, op, owner); err == nil {
			if alive, err := s.alive(owner); err == nil && !alive {
				_ = os.Remove(path)
			}
			lock.release()
		}
	}
}

// fileLock is the lock of one shard, across processes. Its file holds the last token that was granted in the shard, so
// that tokens increase even for an attempt whose record was removed.
type fileLock struct {
	file  *os.File
	shard chan struct{}
}

// lock takes the lock of the shard that key falls into.
func (s *FileStore) lock(ctx context.Context, op, key string) (*fileLock, error) {
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	n := h.Sum32() % fileShards
	select {
	case <-ctx.Done():
		return nil, failed(op, ctxError(ctx))
	default:
	}
	select {
	case s.shards[n] <- struct{}{}:
	case <-ctx.Done():
		return nil, failed(op, ctxError(ctx))
	}
	f, err := os.OpenFile(filepath.Join(s.lockDir(), fmt.Sprintf("%02d", n)), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		<-s.shards[n]
		return nil, storeFault(op, err)
	}
	lock := &fileLock{file: f, shard: s.shards[n]}
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		taken, err := tryLock(f)
		if err != nil {
			lock.release()
			return nil, storeFault(op, err)
		}
		if taken {
			return lock, nil
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			lock.release()
			return nil, failed(op, ctxError(ctx))
		}
	}
}

// release gives the lock up, by closing its file.
func (l *fileLock) release() {
	_ = l.file.Close()
	<-l.shard
}

// nextToken returns a token greater than last and than all that were granted in the shard. It is the time as well, lest
// a file that lost its content in a power cut starts anew.
func (l *fileLock) nextToken(last int64) (int64, error) {
	var b [8]byte
	if _, err := l.file.ReadAt(b[:], 0); err != nil && err != io.EOF {
		return 0, err
	}
	token := max(last, int64(binary.BigEndian.Uint64(b[:])), time.Now().UnixNano()) + 1
	binary.BigEndian.PutUint64(b[:], uint64(token))
	_, err := l.file.WriteAt(b[:], 0)
	return token, err
}

// storeFault turns the error of a file into one of the store. It returns nil for nil.
func storeFault(op string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Kind: KindStore, Retryable: true, Message: "the store's file could not be read or written", cause: err}
}

// cannotOpen is the error of a store's directory. What a directory is, or who may write to it, does not mend itself.
func cannotOpen(op, dir string, err error) error {
	e := failed(op, storeFault(op, err))
	for _, lasting := range []error{fs.ErrPermission, syscall.ENOTDIR, syscall.EINVAL, syscall.ENAMETOOLONG, syscall.EROFS} {
		e.Retryable = e.Retryable && !errors.Is(err, lasting)
	}
	e.Message = "the store's directory " + archive.QuoteName(dir) + " cannot be made or used"
	var at *fs.PathError
	if errors.As(err, &at) {
		e.Message += ": " + at.Err.Error()
	}
	return e
}
