// Command otel runs a command in a sandbox with OpenTelemetry traces of what the library does, and debug logs of its
// requests.
package main

import (
	"context"
	"errors"
	"log"
	"log/slog"
	"os"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/leasehold-go/leasehold"
)

func main() {
	ctx := context.Background()
	exporter, err := otlptracehttp.New(ctx) // to OTEL_EXPORTER_OTLP_ENDPOINT; without one, to localhost:4318
	if err != nil {
		log.Fatal(err)
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if err := run(ctx, exporter, logger); err != nil {
		log.Fatal(err)
	}
}

// run does a host's work under a span of its own: those of the library are below it.
func run(ctx context.Context, exporter sdktrace.SpanExporter, logger *slog.Logger) (err error) {
	traces := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter),
		sdktrace.WithResource(resource.NewSchemaless(attribute.String("service.name", "otel-example"))),
	)
	defer func() {
		flush, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, traces.Shutdown(flush)) // last: what was recorded is sent now
	}()
	provider, err := leasehold.NewLocal(leasehold.LocalConfig{
		Config: leasehold.Config{TracerProvider: traces, Logger: logger},
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, provider.Close(context.WithoutCancel(ctx))) }()

	ctx, span := traces.Tracer("host").Start(ctx, "job")
	defer span.End()
	lease, err := provider.Acquire(ctx, leasehold.AcquireRequest{
		Scope: leasehold.Scope{Tenant: "examples", Environment: "otel", Run: "1"},
	})
	if err != nil {
		return err
	}
	_, err = lease.Executor().Run(ctx, leasehold.Command{Args: []string{"true"}})
	_, releaseErr := provider.Release(context.WithoutCancel(ctx), lease.Ref(), leasehold.ReleaseOptions{})
	return errors.Join(err, releaseErr)
}
