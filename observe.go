package leasehold

import (
	"context"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/leasehold-go/leasehold/internal/daytona"
)

// What the library logs and traces has attribute values from closed sets, and numbers: no id, name, path, command, URL
// or provider text.

// span starts the span of one operation.
func (p *provider) span(ctx context.Context, op string) (context.Context, trace.Span) {
	return p.tracer.Start(ctx, "leasehold."+op, trace.WithSpanKind(trace.SpanKindClient))
}

// endSpan ends a span with what err says of itself.
func endSpan(span trace.Span, err error) {
	if err != nil {
		e := failed("", err)
		span.SetAttributes(attribute.String("leasehold.kind", string(e.Kind)))
		if e.Phase != "" {
			span.SetAttributes(attribute.String("leasehold.phase", string(e.Phase)))
		}
		if e.HTTPStatus != 0 {
			span.SetAttributes(attribute.Int("http.response.status_code", e.HTTPStatus))
		}
		span.SetStatus(codes.Error, string(e.Kind))
	}
	span.End()
}

// logRequest logs one request of the provider at debug level.
func (p *provider) logRequest(call daytona.Call) {
	if !p.cfg.Logger.Enabled(context.Background(), slog.LevelDebug) {
		return
	}
	p.cfg.Logger.LogAttrs(context.Background(), slog.LevelDebug, "leasehold: provider request",
		slog.String("op", call.Op), slog.String("method", call.Method), slog.Int("status", call.Status),
		slog.Duration("duration", call.Duration.Round(time.Microsecond)),
		slog.Int64("sent", call.Sent), slog.Int64("received", call.Received))
}

// log logs the failure of an operation.
func (p *provider) log(err *Error) {
	level := slog.LevelWarn
	if err.Cleanup != nil {
		level = slog.LevelError // somebody must look after it
	}
	p.cfg.Logger.LogAttrs(context.Background(), level, "leasehold: operation failed",
		slog.String("op", err.Op), slog.String("kind", string(err.Kind)), slog.String("phase", string(err.Phase)),
		slog.String("reason", string(err.Reason)), slog.Int("status", err.HTTPStatus),
		slog.Duration("elapsed", err.Elapsed), slog.Bool("unaccounted", err.Cleanup != nil))
}
