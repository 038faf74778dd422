// Package openapicheck compares HTTP exchanges with an OpenAPI document, and reports everything that the document does
// not say. Its tests hold the emulator's exchanges against the documents that the generated Daytona clients ship.
//
// It is a module of its own, so that the OpenAPI library stays out of the module graphs of Leasehold's users.
package openapicheck

import (
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

// Document is an OpenAPI 3.0 document, read strictly: an object has the properties that its schema names, and no others.
type Document struct {
	doc   *openapi3.T
	paths []route
}

// route is a path template with its operations.
type route struct {
	template string
	segments []string
	item     *openapi3.PathItem
}

// Load reads a document.
func Load(data []byte) (*Document, error) {
	doc, err := openapi3.NewLoader().LoadFromData(data)
	if err != nil {
		return nil, fmt.Errorf("openapicheck: %w", err)
	}
	d := &Document{doc: doc}
	for template, item := range doc.Paths.Map() {
		d.paths = append(d.paths, route{template, strings.Split(template, "/"), item})
	}
	// A literal segment comes before a variable one, as the specification demands.
	slices.SortFunc(d.paths, func(a, b route) int { return slices.CompareFunc(a.segments, b.segments, literalFirst) })
	if err := d.close(); err != nil {
		return nil, fmt.Errorf("openapicheck: %w", err)
	}
	return d, nil
}

func literalFirst(a, b string) int {
	switch {
	case variable(a) == variable(b):
		return strings.Compare(a, b)
	case variable(a):
		return 1
	default:
		return -1
	}
}

// variable tells whether a segment of a template stands for any value.
func variable(segment string) bool {
	return strings.HasPrefix(segment, "{") && strings.HasSuffix(segment, "}")
}

// Operations lists the document's operations, such as "GET /sandbox/{sandboxIdOrName}".
func (d *Document) Operations() []string {
	var operations []string
	for _, p := range d.paths {
		for method := range p.item.Operations() {
			operations = append(operations, method+" "+p.template)
		}
	}
	slices.Sort(operations)
	return operations
}

// find returns the operation of an escaped path below the document's root, with the values of its variables; nil if
// there is none.
func (d *Document) find(method, escaped string) (*openapi3.Operation, route, map[string]string) {
	have := strings.Split(escaped, "/")
	for _, p := range d.paths {
		operation := p.item.GetOperation(method)
		if values, ok := match(p.segments, have); ok && operation != nil {
			return operation, p, values
		}
	}
	return nil, route{}, nil
}

// match compares the segments of a template with those of an escaped path. A variable stands for one segment.
func match(template, have []string) (map[string]string, bool) {
	if len(template) != len(have) {
		return nil, false
	}
	values := map[string]string{}
	for i, want := range template {
		value, err := url.PathUnescape(have[i])
		switch {
		case err != nil:
			return nil, false
		case variable(want) && value != "":
			values[want[1:len(want)-1]] = value
		case want != value:
			return nil, false
		}
	}
	return values, true
}

// nothing is a schema that no JSON value fits. As a schema for undeclared properties it says where they are; a plain
// "additionalProperties: false" does not.
var nothing = &openapi3.SchemaRef{Value: &openapi3.Schema{Enum: []any{struct{}{}}}}

// close forbids undeclared properties in every schema that declares some. Without this, no reply could have too much.
func (d *Document) close() error {
	seen := map[*openapi3.Schema]bool{nothing.Value: true}
	var visit func(*openapi3.SchemaRef) error
	visit = func(ref *openapi3.SchemaRef) error {
		if ref == nil || ref.Value == nil || seen[ref.Value] {
			return nil
		}
		s := ref.Value
		seen[s] = true
		if len(s.OneOf)+len(s.AnyOf) > 0 || s.Not != nil || len(s.AllOf) > 0 && (len(s.AllOf) > 1 || len(s.Properties) > 0) {
			return fmt.Errorf("a schema composes others, so that its properties cannot be told: %s", ref.Ref)
		}
		if len(s.Properties) > 0 && s.AdditionalProperties.Has == nil && s.AdditionalProperties.Schema == nil {
			s.AdditionalProperties.Schema = nothing
		}
		children := []*openapi3.SchemaRef{s.Items, s.AdditionalProperties.Schema}
		children = append(children, s.AllOf...)
		for _, property := range s.Properties {
			children = append(children, property)
		}
		for _, child := range children {
			if err := visit(child); err != nil {
				return err
			}
		}
		return nil
	}
	content := func(c openapi3.Content) error {
		for _, media := range c {
			if err := visit(media.Schema); err != nil {
				return err
			}
		}
		return nil
	}
	for _, p := range d.paths {
		for _, operation := range p.item.Operations() {
			if operation.RequestBody != nil {
				if err := content(operation.RequestBody.Value.Content); err != nil {
					return err
				}
			}
			for _, response := range operation.Responses.Map() {
				if err := content(response.Value.Content); err != nil {
					return err
				}
			}
		}
	}
	return nil
}
