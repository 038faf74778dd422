package main

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
)

// kept keeps what it exports: the in-memory exporter forgets it when it is shut down.
type kept struct {
	*tracetest.InMemoryExporter
	spans tracetest.SpanStubs
}

func (k *kept) Shutdown(ctx context.Context) error {
	k.spans = k.GetSpans()
	return k.InMemoryExporter.Shutdown(ctx)
}

func TestTheLibrarysSpansAreBelowTheHosts(t *testing.T) {
	exporter := &kept{InMemoryExporter: tracetest.NewInMemoryExporter()}
	var logged bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&logged, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if err := run(t.Context(), exporter, logger); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, span := range exporter.spans {
		names = append(names, span.Name)
		if trace := exporter.spans[0].SpanContext.TraceID(); span.SpanContext.TraceID() != trace {
			t.Errorf("span %s is of trace %s, want %s: one job is one trace", span.Name, span.SpanContext.TraceID(), trace)
		}
	}
	slices.Sort(names)
	if want := []string{"job", "leasehold.acquire", "leasehold.release", "leasehold.run"}; !slices.Equal(names, want) {
		t.Errorf("spans %q, want %q", names, want)
	}
	if want := "leasehold: provider request"; !strings.Contains(logged.String(), want) {
		t.Errorf("the log lacks %q:\n%s", want, &logged)
	}
}

func TestSpansReachAReceiver(t *testing.T) {
	var paths []string
	receiver := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		paths = append(paths, r.Method+" "+r.URL.Path)
	}))
	var exporter sdktrace.SpanExporter
	exporter, err := otlptracehttp.New(t.Context(), otlptracehttp.WithEndpointURL(receiver.URL+"/v1/traces"))
	if err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), exporter, slog.New(slog.DiscardHandler)); err != nil {
		t.Error(err)
	}
	receiver.Close()
	if len(paths) == 0 || paths[0] != "POST /v1/traces" {
		t.Errorf("the receiver got %q, want the spans", paths)
	}
}
