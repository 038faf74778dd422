package openapicheck

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
)

// Kind is what a document and an exchange disagree about.
type Kind string

// The kinds.
const (
	Operation    Kind = "operation"     // the document has no such method and path; nothing else was compared
	Parameter    Kind = "parameter"     // a path, query or header parameter that is undocumented, missing or wrong
	Credential   Kind = "credential"    // the operation demands one, the request has none, and was not refused with 401
	RequestType  Kind = "request type"  // the content type of the request
	RequestBody  Kind = "request body"  // a body where none is documented, the reverse, or one that breaks its schema
	Status       Kind = "status"        // the status is undocumented, so that the reply's body was not compared
	ResponseType Kind = "response type" // the content type of the reply
	ResponseBody Kind = "response body" // a body where none is documented, the reverse, or one that breaks its schema
)

// Finding is one disagreement.
type Finding struct {
	Method string
	Path   string // the path's template, or the path itself of an undocumented operation
	Status int
	Kind   Kind
	// At is the name of the parameter, or a JSON pointer into the body, with * for the indexes of arrays.
	// It is empty for a body as a whole.
	At   string
	Text string
}

func (f Finding) String() string {
	return fmt.Sprintf("%s %s %d: %s %s: %s", f.Method, f.Path, f.Status, f.Kind, f.At, f.Text)
}

// Result of a check.
type Result struct {
	Path     string // the operation's path template, or the path itself of an undocumented one
	Findings []Finding
}

// Check compares an exchange with the document. The path is the escaped one below the document's root.
//
// A request that the server refused with 400 may be as wrong as it likes: that is what such a reply is for.
func (d *Document) Check(e *Exchange, escaped string) Result {
	operation, p, values := d.find(e.Method, escaped)
	if operation == nil {
		f := Finding{e.Method, escaped, e.Status, Operation, "", "not documented"}
		return Result{escaped, []Finding{f}}
	}
	c := &check{document: d, e: e, path: p, operation: operation, values: values}
	if e.Status != http.StatusBadRequest {
		c.parameters()
		c.credential()
		c.request()
	}
	c.response()
	return Result{p.template, c.findings}
}

// check is the comparison of one exchange with its operation.
type check struct {
	document  *Document
	e         *Exchange
	path      route
	operation *openapi3.Operation
	values    map[string]string // of the path's variables
	findings  []Finding
}

func (c *check) add(kind Kind, at, format string, args ...any) {
	c.findings = append(c.findings, Finding{c.e.Method, c.path.template, c.e.Status, kind, at, fmt.Sprintf(format, args...)})
}

func (c *check) parameters() {
	query := c.e.URL.Query()
	input := &openapi3filter.RequestValidationInput{
		Request:     &http.Request{Method: c.e.Method, URL: c.e.URL, Header: c.e.Header},
		PathParams:  c.values,
		QueryParams: query,
		Route:       &routers.Route{Spec: c.document.doc, Path: c.path.template, PathItem: c.path.item, Method: c.e.Method, Operation: c.operation},
		Options:     &openapi3filter.Options{MultiError: true},
	}
	documented := map[string]bool{}
	for _, ref := range slices.Concat(c.path.item.Parameters, c.operation.Parameters) {
		parameter := ref.Value
		documented[parameter.In+" "+strings.ToLower(parameter.Name)] = true
		if err := openapi3filter.ValidateParameter(context.Background(), input, parameter); err != nil {
			c.add(Parameter, parameter.Name, "%v", err)
		}
	}
	for name := range query {
		if !documented["query "+strings.ToLower(name)] {
			c.add(Parameter, name, "query parameter that is not documented")
		}
	}
	for name := range c.e.Header {
		// The other headers are HTTP's own.
		if strings.HasPrefix(name, "X-") && !documented["header "+strings.ToLower(name)] {
			c.add(Parameter, name, "header that is not documented")
		}
	}
}

func (c *check) credential() {
	security := c.operation.Security
	if security == nil {
		security = &c.document.doc.Security
	}
	bearer := strings.HasPrefix(c.e.Header.Get("Authorization"), "Bearer ")
	if len(*security) > 0 && !bearer && c.e.Status != http.StatusUnauthorized {
		c.add(Credential, "Authorization", "no bearer token")
	}
}

func (c *check) request() {
	switch body := c.operation.RequestBody; {
	case !c.e.Whole && (c.e.Status >= 300 || c.e.Socket):
		// The server did not look at it.
	case !c.e.Whole:
		c.add(RequestBody, "", "the server accepted the request before it had read the body")
	case body == nil && len(c.e.Body) > 0:
		c.add(RequestBody, "", "a body where none is documented")
	case body == nil:
	case len(c.e.Body) == 0:
		if body.Value.Required {
			c.add(RequestBody, "", "no body")
		}
	default:
		c.body(RequestType, RequestBody, body.Value.Content, c.e.Header, c.e.Body, openapi3.VisitAsRequest())
	}
}

func (c *check) response() {
	ref := c.operation.Responses.Status(c.e.Status)
	if ref == nil {
		ref = c.operation.Responses.Default()
	}
	switch {
	case ref == nil:
		c.add(Status, "", "%d is not documented", c.e.Status)
	case len(ref.Value.Content) == 0 && len(c.e.ReplyBody) > 0:
		c.add(ResponseBody, "", "a body where none is documented: %s", short(c.e.ReplyBody))
	case len(ref.Value.Content) == 0:
	case len(c.e.ReplyBody) == 0 && !mayBeEmpty(ref.Value.Content):
		c.add(ResponseBody, "", "no body")
	default:
		c.body(ResponseType, ResponseBody, ref.Value.Content, c.e.Reply, c.e.ReplyBody, openapi3.VisitAsResponse())
	}
}

// mayBeEmpty tells whether a body of no bytes is a value: a string is.
func mayBeEmpty(content openapi3.Content) bool {
	for _, media := range content {
		if media.Schema != nil && media.Schema.Value.Type.Is("string") {
			return true
		}
	}
	return false
}

// body compares a body with what is documented for its content type.
func (c *check) body(kindOfType, kindOfBody Kind, content openapi3.Content, header http.Header, body []byte, as openapi3.SchemaValidationOption) {
	kind, params, err := mime.ParseMediaType(header.Get("Content-Type"))
	media := content.Get(kind)
	if err != nil || media == nil {
		c.add(kindOfType, "", "%q is not documented", header.Get("Content-Type"))
		return
	}
	if media.Schema == nil {
		return
	}
	value, err := decode(kind, params, body)
	if err != nil {
		c.add(kindOfBody, "", "%v: %s", err, short(body))
		return
	}
	err = media.Schema.Value.VisitJSON(value, as, openapi3.MultiErrors(), openapi3.EnableFormatValidation())
	for _, broken := range schemaErrors(err) {
		c.add(kindOfBody, broken.at, "%s", broken.reason)
	}
}

// decode makes a body the kind of value that schemas describe.
func decode(kind string, params map[string]string, body []byte) (any, error) {
	switch {
	case kind == "application/json":
		var value any
		decoder := json.NewDecoder(bytes.NewReader(body))
		if err := decoder.Decode(&value); err != nil {
			return nil, err
		}
		if _, err := decoder.Token(); err != io.EOF {
			return nil, errors.New("more than one JSON value")
		}
		return value, nil
	case strings.HasPrefix(kind, "multipart/"):
		fields := map[string]any{}
		parts := multipart.NewReader(bytes.NewReader(body), params["boundary"])
		for {
			part, err := parts.NextRawPart()
			if err == io.EOF {
				return fields, nil
			}
			if err != nil {
				return nil, err
			}
			content, err := io.ReadAll(part)
			if err != nil {
				return nil, err
			}
			fields[part.FormName()] = string(content)
		}
	default:
		return string(body), nil
	}
}

// broken is one place where a value breaks its schema.
type broken struct{ at, reason string }

// schemaErrors flattens what a schema has to say about a value.
func schemaErrors(err error) []broken {
	// Not errors.As, which looks into several errors for one.
	switch err := err.(type) {
	case nil:
		return nil
	case openapi3.MultiError:
		var all []broken
		for _, e := range err {
			all = append(all, schemaErrors(e)...)
		}
		return all
	case *openapi3.SchemaError:
		at := pointer(err.JSONPointer())
		switch {
		case err.Schema == nothing.Value:
			return []broken{{at, "property that is not documented"}}
		case err.SchemaField != "allOf":
			return []broken{{at, err.Reason}}
		}
		// The parts know better than the whole what is wrong, but not where they are.
		var all []broken
		for _, inner := range schemaErrors(err.Origin) {
			all = append(all, broken{at + inner.at, inner.reason})
		}
		return all
	default:
		return []broken{{"", err.Error()}}
	}
}

func pointer(tokens []string) string {
	var b strings.Builder
	for _, token := range tokens {
		if _, err := strconv.Atoi(token); err == nil {
			token = "*"
		}
		b.WriteString("/" + token)
	}
	return b.String()
}

// short cuts a body for a message.
func short(body []byte) string {
	const most = 200
	if len(body) > most {
		return fmt.Sprintf("%q...", body[:most])
	}
	return fmt.Sprintf("%q", body)
}
