package main

import (
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"time"

	"github.com/leasehold-go/leasehold"
)

// settings are the configuration of one environment, as its administrator entered it and the manifest describes it. The
// host sends it with each call, with secrets resolved: from the environment's record at first, later from the metadata
// of the lease, which also holds other things. So unknown keys mean nothing.
type settings struct {
	APIKey   string `json:"apiKey,omitempty"` // the one secret
	APIURL   string `json:"apiUrl,omitempty"`
	Target   string `json:"target,omitempty"`
	Snapshot string `json:"snapshot,omitempty"`
	Image    string `json:"image,omitempty"`
	Language string `json:"language,omitempty"`
	CPU      int    `json:"cpu,omitempty"`    // cores
	Memory   int    `json:"memory,omitempty"` // GiB
	Disk     int    `json:"disk,omitempty"`   // GiB
	GPU      int    `json:"gpu,omitempty"`

	TimeoutMs         *int64 `json:"timeoutMs,omitempty"`
	LivenessTimeoutMs int64  `json:"livenessTimeoutMs,omitempty"`

	AutoStopInterval    *int `json:"autoStopInterval,omitempty"` // minutes, as the other intervals
	AutoArchiveInterval *int `json:"autoArchiveInterval,omitempty"`
	AutoDeleteInterval  *int `json:"autoDeleteInterval,omitempty"`
	TTLMinutes          int  `json:"ttlMinutes,omitempty"`

	ReuseLease       bool `json:"reuseLease,omitempty"`
	ArchiveOnRelease bool `json:"archiveOnRelease,omitempty"`
}

const (
	// defaultTimeoutMs is what validation enters where nothing was chosen, so that the host, too, grants that much.
	defaultTimeoutMs = 300_000
	// hostDefault is what the host grants a call of an environment without timeoutMs. With it, the host adds as much.
	hostDefault = 30 * time.Second
	// reserve is how much earlier than the host the worker gives up. What the host gives up itself carries no evidence:
	// neither what failed nor what may have been left behind.
	reserve = 5 * time.Second
)

// timeout is the budget of a provider operation.
func (s settings) timeout() time.Duration {
	if s.TimeoutMs == nil {
		return hostDefault - reserve
	}
	return time.Duration(*s.TimeoutMs) * time.Millisecond
}

// deadline is when the worker gives up a call for whose provider operation the host grants the timeout and 30 s more. It
// is a backstop: the provider itself keeps to the timeout.
func (s settings) deadline() time.Duration {
	if s.TimeoutMs == nil {
		return hostDefault - reserve/2
	}
	return s.timeout() + hostDefault - reserve
}

// atMost returns a budget that is also bounded by what the host grants a call whatever its settings, less the reserve.
func atMost(host time.Duration) func(settings) time.Duration {
	return func(s settings) time.Duration { return min(s.deadline(), host-reserve) }
}

// config returns the provider's configuration for these settings. There is no Store: what a worker that is killed during a
// creation leaves behind ends by ttlMinutes, or not at all.
func (s settings) config(log *slog.Logger) leasehold.Config {
	callTimeout := time.Duration(s.LivenessTimeoutMs) * time.Millisecond
	if callTimeout < 0 {
		callTimeout = s.timeout()
	}
	return leasehold.Config{
		APIKey: s.APIKey, APIURL: s.APIURL, Target: s.Target,
		Snapshot: s.Snapshot, Image: s.Image, Language: s.Language,
		Resources: leasehold.Resources{CPU: s.CPU, Memory: s.Memory, Disk: s.Disk, GPU: s.GPU},
		Timeout:   s.timeout(), CallTimeout: callTimeout,
		AutoStopMinutes: s.AutoStopInterval, AutoArchiveMinutes: s.AutoArchiveInterval, AutoDeleteMinutes: s.AutoDeleteInterval,
		TTL:   time.Duration(s.TTLMinutes) * time.Minute,
		Reuse: s.ReuseLease,
		// The host takes only labels and names that begin so: see ownership.go.
		LabelPrefix: labelPrefix,
		Logger:      log,
	}
}

// settingsNames turns the fields of a Config, in what the library says of them, into the settings that fill them.
var settingsNames = strings.NewReplacer(
	"Config.", "", "APIKey", "apiKey", "APIURL", "apiUrl", "Target", "target", "Snapshot", "snapshot", "Image", "image", "Language", "language",
	"Resources.CPU", "cpu", "Resources.Memory", "memory", "Resources.Disk", "disk", "Resources.GPU", "gpu",
	"Resources", "cpu, memory, disk and gpu", "CallTimeout", "livenessTimeoutMs", "Timeout", "timeoutMs",
	"AutoStopMinutes", "autoStopInterval", "AutoArchiveMinutes", "autoArchiveInterval", "AutoDeleteMinutes", "autoDeleteInterval",
	"TTL", "ttlMinutes", "Reuse", "reuseLease",
)

// parseSettings reads a configuration. The error names the setting that has the wrong type.
func parseSettings(config json.RawMessage) (settings, error) {
	var s settings
	if len(config) == 0 {
		return s, nil
	}
	err := json.Unmarshal(config, &s)
	if wrong, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && wrong.Field != "" {
		return s, invalidParams(wrong.Field + " has the wrong type")
	} else if err != nil {
		return s, invalidParams("the configuration is not an object")
	}
	for _, text := range []*string{&s.APIKey, &s.APIURL, &s.Target, &s.Snapshot, &s.Image, &s.Language} {
		*text = strings.TrimSpace(*text)
	}
	return s, nil
}

// problems returns what is wrong with the settings, in the administrator's words. Nothing is sent to find out.
func (w *worker) problems(s settings) []string {
	if s.TimeoutMs != nil && *s.TimeoutMs < 1 {
		return []string{"timeoutMs must be at least 1"}
	}
	if s.APIURL != "" && s.APIKey == "" {
		// Else one tenant's URL would be sent the key that the worker's operator put into its environment.
		return []string{"apiUrl needs an apiKey of its own"}
	}
	if w.localDir != "" {
		s.APIKey, s.APIURL = "local", ""
	}
	err := s.config(nil).Validate()
	if err == nil {
		return nil
	}
	failed, ok := errors.AsType[*leasehold.Error](err)
	if !ok || len(failed.Fields) == 0 {
		return []string{toRPC(err).Message}
	}
	var found []string
	for _, field := range failed.Fields {
		found = append(found, settingsNames.Replace(field.Field+" "+field.Problem))
	}
	return found
}

type validateParams struct {
	Config json.RawMessage `json:"config"`
}

// validate is environmentValidateConfig.
func (w *worker) validate(p validateParams) (any, error) {
	s, err := parseSettings(p.Config)
	var found []string
	if err != nil {
		found = []string{toRPC(err).Message}
	} else {
		found = w.problems(s)
	}
	if len(found) > 0 {
		return validation{Errors: found}, nil
	}
	if s.TimeoutMs == nil {
		s.TimeoutMs = new(int64(defaultTimeoutMs))
	}
	return validation{OK: true, Normalized: &s}, nil
}

type validation struct {
	OK         bool      `json:"ok"`
	Errors     []string  `json:"errors,omitempty"`
	Normalized *settings `json:"normalizedConfig,omitempty"`
}
