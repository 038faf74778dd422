package leasehold

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestConfigReportsEveryProblemAtOnce(t *testing.T) {
	t.Setenv("DAYTONA_API_KEY", "")
	_, err := New(Config{
		APIURL: "ftp://example.test", Image: "debian", Snapshot: "small", Language: "cobol",
		Timeout: -1, CallTimeout: 25 * time.Hour, TTL: time.Second,
		AutoStopMinutes: new(-1), AutoArchiveMinutes: new(-1), AutoDeleteMinutes: new(-2),
		Resources: Resources{CPU: -1}, Workspace: "../out", LabelPrefix: "Bad", MaxCreations: -1,
	})
	var e *Error
	if !errors.As(err, &e) || !errors.Is(err, ErrInvalid) {
		t.Fatalf("New() = %v, want an *Error of KindInvalid", err)
	}
	var fields []string
	for _, f := range e.Fields {
		fields = append(fields, f.Field)
	}
	want := []string{
		"Config.APIKey", "Config.APIURL", "Config.Image", "Config.Resources.CPU", "Config.Language", "Config.Timeout", "Config.CallTimeout",
		"Config.AutoStopMinutes", "Config.AutoArchiveMinutes", "Config.AutoDeleteMinutes", "Config.TTL", "Config.Workspace", "Config.LabelPrefix", "Config.MaxCreations",
	}
	if diff := cmp.Diff(want, fields); diff != "" {
		t.Errorf("fields mismatch (-want +got):\n%s", diff)
	}
	for _, field := range want {
		if !strings.Contains(err.Error(), field) {
			t.Errorf("error text does not name %s: %s", field, err)
		}
	}
	if e.Dispatched != DispatchedNo {
		t.Errorf("Dispatched = %q, want %q", e.Dispatched, DispatchedNo)
	}
}

func TestConfigProblems(t *testing.T) {
	valid := Config{APIKey: "key"}
	tests := []struct {
		name   string
		change func(*Config)
		field  string // empty: valid
	}{
		{"zero value with a key", func(*Config) {}, ""},
		{"missing key", func(c *Config) { c.APIKey = "" }, "Config.APIKey"},
		{"key with a newline", func(c *Config) { c.APIKey = "a\nb" }, "Config.APIKey"},
		{"URL without a host", func(c *Config) { c.APIURL = "https:///api" }, "Config.APIURL"},
		{"URL that does not parse", func(c *Config) { c.APIURL = "http://[::1" }, "Config.APIURL"},
		{"URL with a password", func(c *Config) { c.APIURL = "https://u:p@example.test/api" }, "Config.APIURL"},
		{"URL with a query", func(c *Config) { c.APIURL = "https://example.test/api?x=1" }, "Config.APIURL"},
		{"blank image", func(c *Config) { c.Image = "  " }, "Config.Image"},
		{"blank snapshot", func(c *Config) { c.Snapshot = "\t" }, "Config.Snapshot"},
		{"image with a newline", func(c *Config) { c.Image = "debian\nRUN rm -rf /" }, "Config.Image"},
		{"image that is not UTF-8", func(c *Config) { c.Image = "a\xff" }, "Config.Image"},
		{"snapshot beyond any name", func(c *Config) { c.Snapshot = strings.Repeat("x", 4097) }, "Config.Snapshot"},
		{"image with a password", func(c *Config) { c.Image = "https://user:hunter2@registry.example/a" }, "Config.Image"},
		{"image with a password, and no scheme", func(c *Config) { c.Image = "user:hunter2@registry.example/a" }, "Config.Image"},
		{"image by digest", func(c *Config) { c.Image = "registry.example:5000/a/b@sha256:0123" }, ""},
		{"image and snapshot", func(c *Config) { c.Image, c.Snapshot = "debian", "small" }, "Config.Image"},
		{"resources with an image", func(c *Config) { c.Image, c.Resources.CPU = "debian", 2 }, ""},
		{"resources with a snapshot", func(c *Config) { c.Snapshot, c.Resources.CPU = "small", 2 }, "Config.Resources"},
		{"resources with neither", func(c *Config) { c.Resources.GPU = 1 }, "Config.Resources"},
		{"explicit zero intervals", func(c *Config) { c.AutoStopMinutes, c.AutoArchiveMinutes, c.AutoDeleteMinutes = new(0), new(0), new(0) }, ""},
		{"automatic deletion off", func(c *Config) { c.AutoDeleteMinutes = new(-1) }, ""},
		{"deleted on stop, and reused", func(c *Config) { c.AutoDeleteMinutes, c.Reuse = new(0), true }, "Config.AutoDeleteMinutes"},
		{"deleted on stop, and stopped while it is set up", func(c *Config) {
			c.AutoDeleteMinutes, c.AutoStopMinutes, c.Timeout = new(0), new(4), 5*time.Minute
		}, "Config.AutoDeleteMinutes"},
		{"deleted on stop, and stopped after it was set up", func(c *Config) {
			c.AutoDeleteMinutes, c.AutoStopMinutes, c.Timeout = new(0), new(5), 5*time.Minute
		}, ""},
		{"deleted on stop, and never stopped", func(c *Config) { c.AutoDeleteMinutes, c.AutoStopMinutes = new(0), new(0) }, ""},
		{"never stopped, without a lifetime", func(c *Config) { c.AutoStopMinutes, c.AutoDeleteMinutes = new(0), new(-1) }, ""},
		{"stopped later than destroyed", func(c *Config) { c.AutoStopMinutes, c.TTL = new(60), 10*time.Minute }, ""},
		{"archived later than deleted", func(c *Config) { c.AutoArchiveMinutes, c.AutoDeleteMinutes = new(60), new(30) }, ""},
		{"lifetime under the budget", func(c *Config) { c.TTL = DefaultTimeout - time.Second }, "Config.TTL"},
		{"lifetime of the budget", func(c *Config) { c.TTL = DefaultTimeout }, ""},
		{"interval beyond the API's integer", func(c *Config) { c.AutoStopMinutes = new(1 << 31) }, "Config.AutoStopMinutes"},
		{"timeout of a day", func(c *Config) { c.Timeout = 24 * time.Hour }, ""},
		{"timeout over a day", func(c *Config) { c.Timeout = 24*time.Hour + 1 }, "Config.Timeout"},
		{"timeout under a millisecond", func(c *Config) { c.Timeout = 1 }, "Config.Timeout"},
		{"lifetime of 59 s", func(c *Config) { c.TTL = 59 * time.Second }, "Config.TTL"},
		{"claims of a moment", func(c *Config) { c.ClaimTime = 100 * time.Millisecond }, "Config.ClaimTime"},
		{"claims for days", func(c *Config) { c.ClaimTime = 48 * time.Hour }, "Config.ClaimTime"},
		{"negative lifetime", func(c *Config) { c.TTL = -time.Hour }, "Config.TTL"},
		{"workspace with spaces and a newline", func(c *Config) { c.Workspace = "/a b'\n\"c" }, ""},
		{"workspace with a NUL", func(c *Config) { c.Workspace = "a\x00b" }, "Config.Workspace"},
		{"workspace that is the root", func(c *Config) { c.Workspace = "//" }, "Config.Workspace"},
		{"workspace that is the working directory", func(c *Config) { c.Workspace = "a/.." }, "Config.Workspace"},
		{"workspace with a tilde", func(c *Config) { c.Workspace = "~/work" }, "Config.Workspace"},
		{"prefix without a hyphen", func(c *Config) { c.LabelPrefix = "abc" }, "Config.LabelPrefix"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Setenv("DAYTONA_API_KEY", "")
			c := valid
			tt.change(&c)
			err := c.Validate()
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("S1: a password in %v", err)
			}
			var e *Error
			switch {
			case tt.field == "" && err != nil:
				t.Errorf("Validate() = %v, want no error", err)
			case tt.field != "" && (!errors.As(err, &e) || len(e.Fields) != 1 || e.Fields[0].Field != tt.field):
				t.Errorf("Validate() = %v, want one problem of %s", err, tt.field)
			}
		})
	}
}

func TestConfigDefaults(t *testing.T) {
	t.Setenv("DAYTONA_API_KEY", " from-the-environment ")
	for _, name := range []string{"DAYTONA_API_URL", "DAYTONA_SERVER_URL", "DAYTONA_TARGET", "DAYTONA_JWT_TOKEN", "DAYTONA_ORGANIZATION_ID"} {
		t.Setenv(name, "https://elsewhere.test")
	}
	c, err := Config{}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	c.Logger = nil
	want := Config{
		APIKey: "from-the-environment", APIURL: "https://app.daytona.io/api", Language: "python",
		Timeout: 5 * time.Minute, CallTimeout: 30 * time.Second,
		AutoStopMinutes: new(15), AutoArchiveMinutes: new(60), AutoDeleteMinutes: new(10080),
		Workspace: "workspace", LabelPrefix: "leasehold-", MaxCreations: 8, ClaimTime: 5 * time.Minute,
	}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("withDefaults() mismatch (-want +got):\n%s", diff)
	}
}

func TestConfigKeepsNothingOfTheCallers(t *testing.T) {
	minutes := 5
	c, err := Config{APIKey: "key", AutoStopMinutes: &minutes}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	minutes = 7
	if *c.AutoStopMinutes != 5 {
		t.Errorf("AutoStopMinutes = %d after the caller changed its own, want 5", *c.AutoStopMinutes)
	}
}

func TestAPIURLIsCanonical(t *testing.T) {
	for _, raw := range []string{"https://Example.TEST/api", "https://example.test/api/", "HTTPS://example.test/api//"} {
		c, err := Config{APIKey: "key", APIURL: raw}.withDefaults()
		if err != nil || c.APIURL != "https://example.test/api" {
			t.Errorf("APIURL %q became %q, %v", raw, c.APIURL, err)
		}
	}
}

// TestCommandThatOutlivesItsSandbox: a command that may last longer than the sandbox is refused before it is sent.
func TestCommandThatOutlivesItsSandbox(t *testing.T) {
	for _, tt := range []struct {
		autoStop, autoDelete int
		timeout              time.Duration
		refused              bool
	}{
		{10, 0, 11 * time.Minute, true}, {10, 0, 10 * time.Minute, false}, {10, 0, 0, false},
		{0, 0, time.Hour, false}, {10, -1, time.Hour, false}, {10, 1, time.Hour, false},
	} {
		c, err := Config{APIKey: "key", AutoStopMinutes: &tt.autoStop, AutoDeleteMinutes: &tt.autoDelete}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		var p problems
		if c.checkTimeout(&p, "Timeout", tt.timeout); (len(p) == 1) != tt.refused {
			t.Errorf("checkTimeout(%v) with auto-stop %d and auto-delete %d = %v, want refused: %t", tt.timeout, tt.autoStop, tt.autoDelete, p, tt.refused)
		}
	}
}
