package leasehold

import (
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"go.opentelemetry.io/otel/trace"
)

// Defaults of [Config].
const (
	DefaultAPIURL             = "https://app.daytona.io/api"
	DefaultTimeout            = 5 * time.Minute
	DefaultCallTimeout        = 30 * time.Second
	DefaultAutoStopMinutes    = 15
	DefaultAutoArchiveMinutes = 60
	DefaultAutoDeleteMinutes  = 7 * 24 * 60
	DefaultWorkspace          = "workspace"
	DefaultLabelPrefix        = "leasehold-"
	DefaultMaxCreations       = 8
	DefaultClaimTime          = 5 * time.Minute

	maxTimeout     = 24 * time.Hour
	maxMinutes     = math.MaxInt32 // the API's integer
	maxWorkspace   = 1024          // bytes
	maxText        = 4096          // bytes of the name of an image, a snapshot or a region
	maxLabelPrefix = 32
)

// Resources are the resources of an image-backed sandbox. A zero field leaves the value to the provider's default.
type Resources struct {
	CPU    int `json:"cpu,omitempty"`    // cores
	Memory int `json:"memory,omitempty"` // GiB
	Disk   int `json:"disk,omitempty"`   // GiB
	GPU    int `json:"gpu,omitempty"`    // units
}

// Config configures [New]. Only an API key is needed: the zero value with DAYTONA_API_KEY in the environment is useful.
// Beside it, HTTP_PROXY, HTTPS_PROXY and NO_PROXY have influence, unless Transport is set, and no other environment variable.
type Config struct {
	APIKey string // credential of the Daytona API; empty: DAYTONA_API_KEY
	APIURL string // base of the API, with its path, http or https; empty: [DefaultAPIURL]
	Target string // region in which sandboxes are created; empty: the organisation's default

	// A sandbox is made from a snapshot or from an image, never from both; with neither, from the provider's default
	// snapshot. Resources can be chosen with an image only: a snapshot has its own.
	Snapshot  string
	Image     string
	Resources Resources
	Language  string // python (the default), javascript or typescript: the sandbox's code runner

	// Timeout is the one budget of an acquisition (creation, set-up and compensating deletion), and of each resume,
	// release, destroy, inspection, cleanup and proof of idleness, and of a sweep for each record. A probe has two: that of
	// its acquisition, and that of its destroy. Zero: [DefaultTimeout]. At most 24 hours.
	Timeout time.Duration
	// CallTimeout bounds each single read of the provider, and each short command of the library's own in a sandbox. A
	// provider that gives no useful answer for that long is taken to be down, and the operation fails: so a resume against
	// one that swallows every request ends after one CallTimeout. Only a creation and a start may take 30 s more, for
	// which the provider holds their replies. A rate limit is an answer.
	// Zero: [DefaultCallTimeout]. At most 24 hours.
	CallTimeout time.Duration

	// The quota intervals, in minutes, are set on every sandbox, so that one nobody comes back for stops costing money
	// even if this process dies. Nil means the default; an explicit 0 and -1 are kept. A stopped sandbox still counts
	// against the storage quota, an archived one does not. What contradicts itself is refused: a sandbox that is deleted
	// when it stops can neither be reused nor stop while it is set up or runs a command. What is merely unusual is not:
	// without auto-stop and TTL a sandbox that nobody comes back for runs for ever.
	//
	// A command is activity only while a host observes it: after [Process.Detach], [Provider.Close] or the host's end the sandbox
	// is stopped under it after AutoStopMinutes.
	AutoStopMinutes    *int // of inactivity until it is stopped; nil: 15; 0: never
	AutoArchiveMinutes *int // stopped until it is archived; nil: 60; 0: the provider's maximum
	AutoDeleteMinutes  *int // stopped until it is deleted; nil: 7 days; 0: at once; -1: never

	// TTL is a sandbox's wall-clock lifetime, rounded down to whole minutes, after which the provider destroys it in
	// whatever state it is. An acquisition whose expiry the provider does not confirm fails. It must not be under Timeout,
	// or an acquisition could end with a sandbox that is destroyed already. Zero: none.
	TTL time.Duration

	Reuse bool // release stops the sandbox, so that resume can start it again; false: release deletes it

	// NoBwrap runs every command without the advisory wrapper, and does without the probe for it: see [Bwrap]. False: a
	// command is wrapped where the sandbox has what that needs.
	NoBwrap bool

	// Workspace is the directory of the lease's work, absolute, or relative to the sandbox's working directory. Empty:
	// [DefaultWorkspace].
	Workspace string
	// LabelPrefix starts the labels and names of all sandboxes. Lower-case letters, digits and inner hyphens, ending
	// in a hyphen. Empty: [DefaultLabelPrefix].
	LabelPrefix string
	// MaxCreations bounds the creations under way at once; others wait, within their budget, in the order of their
	// acquisitions. While the provider answers with a rate limit none is sent, and afterwards they are spaced as it was
	// found to bear. An acquisition that cannot wait that long fails with [ErrRateLimited]. Zero: [DefaultMaxCreations].
	MaxCreations int

	// Store keeps a durable record of every sandbox, from before its creation is sent until it is proved to be given
	// back, so that what this host leaves behind if it is killed is found by a [Sweeper]. What cannot be recorded is not
	// sent. Nil: none; then the host itself must keep references, and the envelopes of errors.
	//
	// A lease is its host's who acquired or resumed it, or first used it after [Provider.Bind], last. If that host is
	// not heard of for ClaimTime, the lease is an orphan, even if another host still uses it.
	Store Store
	// ClaimTime is how long this host may be silent before others may sweep what it holds: longer than a planned restart
	// takes until the leases are resumed. It says that it lives every third of that time, and takes no longer than another
	// third to say it. Only with Store. Zero: [DefaultClaimTime]. 1 second to 24 hours.
	ClaimTime time.Duration

	Logger         *slog.Logger         // nil is silent
	TracerProvider trace.TracerProvider // nil is none
	// Transport carries every request and WebSocket of the library. Nil: a transport of its own, which honours
	// HTTP_PROXY and its kin. A transport that is given must return a body that is an io.ReadWriteCloser with status
	// 101, as [http.Transport] does.
	Transport http.RoundTripper
}

// Format writes the configuration without its API key. Package fmt does not ask it about a Config in an unexported field of
// another struct: who prints that struct prints the key.
func (c Config) Format(s fmt.State, verb rune) {
	type plain Config // without this method
	if c.APIKey != "" {
		c.APIKey = "(hidden)"
	}
	fmt.Fprintf(s, fmt.FormatString(s, verb), plain(c))
}

// LogValue is what Format writes with %+v.
func (c Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprintf("%+v", c)) }

// FieldError is one problem of one field of a request or configuration.
type FieldError struct {
	Field   string // type and field, such as "Config.APIKey" or "AcquireRequest.Scope.Tenant", or the name of a parameter
	Problem string // what is wrong with it, to follow the field's name
}

// problems collects what is wrong with an input, so that all of it is reported at once.
type problems []FieldError

func (p *problems) add(field, format string, args ...any) {
	*p = append(*p, FieldError{Field: field, Problem: fmt.Sprintf(format, args...)})
}

// of returns a function that adds a problem of a part of field.
func (p *problems) of(field string) func(part, problem string) {
	return func(part, problem string) { p.add(field+part, "%s", problem) }
}

// err returns nil, or one [*Error] of [KindInvalid] that lists every problem.
func (p problems) err(op string) error {
	if len(p) == 0 {
		return nil
	}
	lines := make([]string, len(p))
	for i, f := range p {
		lines[i] = f.Field + " " + f.Problem
	}
	return &Error{Op: op, Kind: KindInvalid, Dispatched: DispatchedNo, Message: strings.Join(lines, "; "), Fields: p}
}

var (
	labelPrefixForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?-$`)
	identifierForm  = regexp.MustCompile(`^[A-Za-z0-9_-]{1,200}$`)
	languages       = []string{"python", "javascript", "typescript"}
)

// Validate reports whether [New] accepts the configuration. It sends nothing. It fails with [ErrInvalid], naming every
// problem in [Error.Fields].
func (c Config) Validate() error {
	_, err := c.withDefaults()
	return err
}

// withDefaults returns a copy with every default filled in, and all problems of the input. The copy shares nothing
// with the caller's value that the caller could change later.
func (c Config) withDefaults() (Config, error) {
	var p problems
	if c.APIKey == "" {
		c.APIKey = strings.TrimSpace(os.Getenv("DAYTONA_API_KEY"))
	}
	switch {
	case c.APIKey == "":
		p.add("Config.APIKey", "is missing: set it, or DAYTONA_API_KEY")
	case !validHeaderValue(c.APIKey):
		p.add("Config.APIKey", "has characters that a header cannot carry")
	}
	if c.APIURL == "" {
		c.APIURL = DefaultAPIURL
	}
	checkAPIURL(&p, &c.APIURL)
	checkText(&p, "Config.Target", c.Target)
	c.origin().check(&p, "Config")
	if c.Language == "" {
		c.Language = languages[0]
	} else if !slices.Contains(languages, c.Language) {
		p.add("Config.Language", "is not one of %s", strings.Join(languages, ", "))
	}
	c.Timeout = checkDuration(&p, "Config.Timeout", c.Timeout, DefaultTimeout)
	c.CallTimeout = checkDuration(&p, "Config.CallTimeout", c.CallTimeout, DefaultCallTimeout)
	c.AutoStopMinutes = checkMinutes(&p, "Config.AutoStopMinutes", c.AutoStopMinutes, 0, DefaultAutoStopMinutes)
	c.AutoArchiveMinutes = checkMinutes(&p, "Config.AutoArchiveMinutes", c.AutoArchiveMinutes, 0, DefaultAutoArchiveMinutes)
	c.AutoDeleteMinutes = checkMinutes(&p, "Config.AutoDeleteMinutes", c.AutoDeleteMinutes, -1, DefaultAutoDeleteMinutes)
	switch {
	case c.TTL == 0:
	case c.TTL < time.Minute:
		p.add("Config.TTL", "is under one minute")
	case c.TTL < c.Timeout:
		p.add("Config.TTL", "is under Timeout: a sandbox could be destroyed before its acquisition ends")
	}
	if *c.AutoDeleteMinutes == 0 {
		if c.Reuse {
			p.add("Config.AutoDeleteMinutes", "0 deletes a sandbox when it stops, which contradicts Reuse")
		}
		if c.stopsWithin(c.Timeout) {
			p.add("Config.AutoDeleteMinutes", "0 deletes a sandbox when it stops, and AutoStopMinutes is under Timeout: it could be deleted while it is set up")
		}
	}
	c.Workspace = checkWorkspace(&p, c.Workspace)
	if c.LabelPrefix == "" {
		c.LabelPrefix = DefaultLabelPrefix
	}
	if !labelPrefixForm.MatchString(c.LabelPrefix) || len(c.LabelPrefix) > maxLabelPrefix {
		p.add("Config.LabelPrefix", "must be lower-case letters, digits and inner hyphens, end in a hyphen, and have at most %d bytes", maxLabelPrefix)
	}
	switch {
	case c.MaxCreations == 0:
		c.MaxCreations = DefaultMaxCreations
	case c.MaxCreations < 0:
		p.add("Config.MaxCreations", "is negative")
	}
	if c.ClaimTime = checkDuration(&p, "Config.ClaimTime", c.ClaimTime, DefaultClaimTime); c.ClaimTime >= time.Millisecond && c.ClaimTime < time.Second {
		p.add("Config.ClaimTime", "is under one second")
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return c, p.err("configure")
}

// stopsWithin reports whether a sandbox that is used no more is stopped in less than d.
func (c *Config) stopsWithin(d time.Duration) bool {
	minutes := *c.AutoStopMinutes
	return minutes > 0 && d > time.Duration(minutes)*time.Minute
}

// checkTimeout refuses a command that may last until its sandbox is stopped under it, and thereby deleted. As long as
// this process watches a command it counts as use; but the command is to outlive the process.
func (c *Config) checkTimeout(p *problems, field string, timeout time.Duration) {
	if *c.AutoDeleteMinutes == 0 && c.stopsWithin(timeout) {
		p.add(field, "is over Config.AutoStopMinutes, and Config.AutoDeleteMinutes 0 deletes a sandbox when it stops: its output would be lost with it")
	}
}

// checkAPIURL puts the URL into its canonical form: no trailing slash, so that the account fingerprint of one endpoint
// does not depend on how it was written.
func checkAPIURL(p *problems, raw *string) {
	u, err := url.Parse(*raw)
	switch {
	case err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http"):
		p.add("Config.APIURL", "is not an http or https URL")
	case u.User != nil:
		p.add("Config.APIURL", "must not carry user information")
	case u.RawQuery != "" || u.Fragment != "":
		p.add("Config.APIURL", "must not have a query or fragment")
	default:
		u.Scheme, u.Host = strings.ToLower(u.Scheme), strings.ToLower(u.Host)
		*raw = strings.TrimRight(u.String(), "/")
	}
}

func checkText(p *problems, field, value string) {
	switch {
	case value == "":
	case strings.TrimSpace(value) == "":
		p.add(field, "is blank")
	case len(value) > maxText || !utf8.ValidString(value):
		p.add(field, "is over %d bytes, or not UTF-8", maxText)
	case strings.ContainsFunc(value, func(r rune) bool { return r < ' ' || r == 0x7f }):
		p.add(field, "has control characters")
	}
}

// origin is what a sandbox is made from.
type origin struct {
	snapshot, image string
	resources       Resources
}

func (c *Config) origin() origin { return origin{c.Snapshot, c.Image, c.Resources} }

// quoted is a caller's text for a message, of which the beginning will do.
func quoted(text string) string {
	const most = 200
	if len(text) > most {
		return strconv.Quote(text[:most]) + "…"
	}
	return strconv.Quote(text)
}

// String names what the caller can correct.
func (o origin) String() string {
	var b strings.Builder
	switch {
	case o.snapshot != "":
		b.WriteString("snapshot " + quoted(o.snapshot))
	case o.image != "":
		b.WriteString("image " + quoted(o.image))
	default:
		b.WriteString("its default snapshot")
	}
	if o.resources != (Resources{}) {
		fmt.Fprintf(&b, " with %+v", o.resources)
	}
	return b.String()
}

func (o origin) check(p *problems, of string) {
	checkText(p, of+".Snapshot", o.snapshot)
	checkText(p, of+".Image", o.image)
	if at := strings.LastIndexByte(o.image, '@'); strings.Contains(o.image, "://") || at >= 0 && strings.Contains(o.image[at:], "/") {
		p.add(of+".Image", "is an address: name the image without scheme or credentials")
	}
	if o.image != "" && o.snapshot != "" {
		p.add(of+".Image", "and Snapshot are both set: set one")
	}
	if o.resources != (Resources{}) && o.image == "" {
		p.add(of+".Resources", "need an Image: a snapshot has its own")
	}
	o.resources.check(p, of)
}

func (r Resources) check(p *problems, of string) {
	for _, v := range []struct {
		field string
		value int
	}{{"CPU", r.CPU}, {"Memory", r.Memory}, {"Disk", r.Disk}, {"GPU", r.GPU}} {
		if v.value < 0 || v.value > math.MaxInt32 {
			p.add(of+".Resources."+v.field, "is out of range")
		}
	}
}

func checkDuration(p *problems, field string, d, fallback time.Duration) time.Duration {
	switch {
	case d == 0:
		return fallback
	case d < time.Millisecond:
		p.add(field, "is under one millisecond")
	case d > maxTimeout:
		p.add(field, "is over 24 hours")
	}
	return d
}

func checkMinutes(p *problems, field string, minutes *int, lowest, fallback int) *int {
	if minutes == nil {
		return &fallback
	}
	value := *minutes
	if value < lowest || value > maxMinutes {
		p.add(field, "is out of range: %d to %d minutes", lowest, maxMinutes)
	}
	return &value
}

func checkWorkspace(p *problems, dir string) string {
	if dir == "" {
		return DefaultWorkspace
	}
	clean := path.Clean(dir)
	switch {
	case strings.ContainsRune(dir, 0):
		p.add("Config.Workspace", "has a NUL byte")
	case len(dir) > maxWorkspace:
		p.add("Config.Workspace", "is over %d bytes", maxWorkspace)
	case strings.HasPrefix(dir, "~"):
		p.add("Config.Workspace", "starts with ~, which is not expanded")
	case clean == "/" || clean == ".":
		p.add("Config.Workspace", "must be a directory of its own")
	case clean == ".." || strings.HasPrefix(clean, "../"):
		p.add("Config.Workspace", "leaves the working directory")
	}
	return clean
}

// validHeaderValue reports whether an Authorization header can carry s unchanged.
func validHeaderValue(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f })
}

func checkIdentifier(p *problems, field, value string, required bool) {
	if value == "" {
		if required {
			p.add(field, "is missing")
		}
		return
	}
	if !identifierForm.MatchString(value) {
		p.add(field, "must be 1 to 200 of A-Z a-z 0-9 _ -")
	}
}
