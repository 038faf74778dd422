package openapicheck

import (
	"cmp"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

const sample = `
openapi: 3.0.0
info: {title: sample, version: "1"}
paths:
  /boxes/{box}:
    get:
      security: [{bearer: []}]
      parameters:
      - {name: box, in: path, required: true, schema: {type: string}}
      - {name: limit, in: query, schema: {type: integer, maximum: 10}}
      responses:
        "200":
          description: a box
          content: {application/json: {schema: {$ref: "#/components/schemas/Box"}}}
  /boxes/first:
    get:
      responses:
        "204": {description: none}
    post:
      requestBody:
        required: true
        content: {application/json: {schema: {$ref: "#/components/schemas/Box"}}}
      responses:
        "201": {description: none}
  /files:
    get:
      responses:
        "200":
          description: bytes
          content: {application/octet-stream: {schema: {type: string, format: binary}}}
    post:
      requestBody:
        required: true
        content: {multipart/form-data: {schema: {type: object, required: [file], properties: {file: {type: string}}}}}
      responses:
        "200": {description: none}
components:
  securitySchemes: {bearer: {type: http, scheme: bearer}}
  schemas:
    Kind: {type: string, enum: [small, large]}
    Box:
      type: object
      required: [id]
      properties:
        id: {type: string}
        at: {type: string, format: date-time}
        kind: {allOf: [{$ref: "#/components/schemas/Kind"}]}
        labels: {type: object, additionalProperties: {type: string}}
        inner: {type: array, items: {$ref: "#/components/schemas/Box"}}
`

// exchange makes one: a request line, headers, body, status, and the reply's content type and body.
func exchange(line, header, body string, status int, kind, reply string) *Exchange {
	method, target, _ := strings.Cut(line, " ")
	e := &Exchange{Method: method, Status: status, Header: http.Header{}, Reply: http.Header{}, Whole: true}
	e.URL = httptest.NewRequest(method, target, nil).URL
	if name, value, found := strings.Cut(header, ": "); found {
		e.Header.Set(name, value)
	}
	e.Body, e.ReplyBody = []byte(body), []byte(reply)
	if kind != "" {
		e.Reply.Set("Content-Type", kind)
	}
	return e
}

func TestCheckReportsEveryDisagreement(t *testing.T) {
	document, err := Load([]byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	const key, asJSON, inJSON = "Authorization: Bearer k", "application/json; charset=utf-8", "Content-Type: application/json"
	tests := []struct {
		name string
		e    *Exchange
		want []string // path, kind and place of each finding
	}{
		{"nothing", exchange("GET /boxes/a%2Fb?limit=3", key, "", 200, asJSON, `{"id":"x","kind":"small","labels":{"a":"b"},"at":"2026-01-02T03:04:05.678Z"}`), nil},
		{"a literal path comes first", exchange("GET /boxes/first", "", "", 204, "", ""), nil},
		{"unknown path", exchange("GET /boxes/a/b", key, "", 200, asJSON, `{}`), []string{"/boxes/a/b operation"}},
		{"unknown method", exchange("DELETE /boxes/a", key, "", 200, asJSON, `{}`), []string{"/boxes/a operation"}},
		{"unknown query parameter", exchange("GET /boxes/a?page=1", key, "", 200, asJSON, `{"id":"x"}`), []string{"/boxes/{box} parameter page"}},
		{"wrong query parameter", exchange("GET /boxes/a?limit=11", key, "", 200, asJSON, `{"id":"x"}`), []string{"/boxes/{box} parameter limit"}},
		{"unknown header", exchange("GET /boxes/first", "X-Vendor: 1", "", 204, "", ""), []string{"/boxes/first parameter X-Vendor"}},
		{"no credential", exchange("GET /boxes/a", "", "", 200, asJSON, `{"id":"x"}`), []string{"/boxes/{box} credential Authorization"}},
		{"no credential, refused", exchange("GET /boxes/a", "", "", 401, asJSON, `{}`), []string{"/boxes/{box} status"}},
		{"unknown status", exchange("GET /boxes/a", key, "", 404, asJSON, `{}`), []string{"/boxes/{box} status"}},
		{"wrong reply type", exchange("GET /boxes/a", key, "", 200, "text/plain", `{"id":"x"}`), []string{"/boxes/{box} response type"}},
		{"empty reply", exchange("GET /boxes/a", key, "", 200, asJSON, ""), []string{"/boxes/{box} response body"}},
		{"reply where none belongs", exchange("GET /boxes/first", "", "", 204, asJSON, "{}"), []string{"/boxes/first response body"}},
		{"no JSON", exchange("GET /boxes/a", key, "", 200, asJSON, `{"id":`), []string{"/boxes/{box} response body"}},
		{"two values", exchange("GET /boxes/a", key, "", 200, asJSON, `{"id":"x"}{}`), []string{"/boxes/{box} response body"}},
		{"missing property", exchange("GET /boxes/a", key, "", 200, asJSON, `{}`), []string{"/boxes/{box} response body /id"}},
		{"null", exchange("GET /boxes/a", key, "", 200, asJSON, `{"id":null}`), []string{"/boxes/{box} response body /id"}},
		{"extra property", exchange("GET /boxes/a", key, "", 200, asJSON, `{"id":"x","more":1}`), []string{"/boxes/{box} response body /more"}},
		{"bad time", exchange("GET /boxes/a", key, "", 200, asJSON, `{"id":"x","at":"yesterday"}`), []string{"/boxes/{box} response body /at"}},
		{"bad enumeration", exchange("GET /boxes/a", key, "", 200, asJSON, `{"id":"x","kind":"odd"}`), []string{"/boxes/{box} response body /kind"}},
		{"several, and deep", exchange("GET /boxes/a", key, "", 200, asJSON, `{"inner":[{"id":"x"},{"id":1,"labels":{"a":2},"more":[]}]}`), []string{
			"/boxes/{box} response body /id", "/boxes/{box} response body /inner/*/id",
			"/boxes/{box} response body /inner/*/labels/a", "/boxes/{box} response body /inner/*/more"}},
		{"request", exchange("POST /boxes/first", inJSON, `{"id":"x"}`, 201, "", ""), nil},
		{"no request body", exchange("POST /boxes/first", inJSON, "", 201, "", ""), []string{"/boxes/first request body"}},
		{"wrong request", exchange("POST /boxes/first", inJSON, `{"id":"x","more":1}`, 201, "", ""), []string{"/boxes/first request body /more"}},
		{"wrong request, refused", exchange("POST /boxes/first", inJSON, `{"id":"x","more":1}`, 400, "", ""), []string{"/boxes/first status"}},
		{"wrong request type", exchange("POST /boxes/first", "Content-Type: text/plain", `{"id":"x"}`, 201, "", ""), []string{"/boxes/first request type"}},
		{"request body where none belongs", exchange("GET /boxes/first", inJSON, `{}`, 204, "", ""), []string{"/boxes/first request body"}},
		{"binary reply", exchange("GET /files", "", "", 200, "application/octet-stream", "\x00\xff"), nil},
		{"empty binary reply", exchange("GET /files", "", "", 200, "application/octet-stream", ""), nil},
		{"form", exchange("POST /files", "Content-Type: multipart/form-data; boundary=b",
			"--b\r\nContent-Disposition: form-data; name=\"file\"; filename=\"f\"\r\n\r\nabc\r\n--b--\r\n", 200, "", ""), nil},
		{"form with another field", exchange("POST /files", "Content-Type: multipart/form-data; boundary=b",
			"--b\r\nContent-Disposition: form-data; name=\"fail\"\r\n\r\nabc\r\n--b--\r\n", 200, "", ""),
			[]string{"/files request body /fail", "/files request body /file"}},
		{"form cut off", exchange("POST /files", "Content-Type: multipart/form-data; boundary=b",
			"--b\r\nContent-Disposition: form-data; name=\"file\"\r\n\r\nabc", 200, "", ""), []string{"/files request body"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			result := document.Check(test.e, test.e.URL.EscapedPath())
			var got []string
			for _, f := range result.Findings {
				got = append(got, strings.TrimSpace(fmt.Sprintf("%s %s %s", f.Path, f.Kind, f.At)))
				if f.Method != test.e.Method || f.Status != test.e.Status || f.Text == "" {
					t.Errorf("finding %v does not describe its exchange", f)
				}
			}
			slices.Sort(got)
			if diff := gocmp.Diff(test.want, got); diff != "" {
				t.Errorf("findings mismatch (-want +got):\n%s%v", diff, result.Findings)
			}
		})
	}
}

func TestLoadRefusesWhatItCannotReadStrictly(t *testing.T) {
	for name, text := range map[string]string{
		"no document":         "{",
		"dangling reference":  strings.Replace(sample, `"#/components/schemas/Kind"`, `"#/components/schemas/None"`, 1),
		"schemas in a choice": strings.Replace(sample, "allOf: [", "oneOf: [", 1),
	} {
		if _, err := Load([]byte(text)); err == nil {
			t.Errorf("%s: loaded", name)
		}
	}
}

func TestRecorderKeepsWhatWasOnTheWire(t *testing.T) {
	var recorder Recorder
	server := httptest.NewServer(recorder.Middleware(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/unread":
			w.WriteHeader(http.StatusBadRequest)
		case "/abort":
			panic(http.ErrAbortHandler)
		case "/sniffed":
			_, _ = io.CopyN(io.Discard, r.Body, 2)
			_, _ = io.WriteString(w, "plain words")
		}
	})))
	for _, path := range []string{"/unread", "/abort", "/sniffed", "/empty"} {
		// The body has no length, so that its end must be read to be known.
		response, err := server.Client().Post(server.URL+path, "text/plain", io.MultiReader(strings.NewReader("body")))
		if err != nil {
			continue
		}
		_, _ = io.Copy(io.Discard, response.Body)
		response.Body.Close()
	}
	server.Close()

	type summary struct {
		Path, Body, Kind, Reply string
		Status                  int
		Whole, Aborted          bool
	}
	var got []summary
	for _, e := range recorder.Exchanges() {
		got = append(got, summary{e.URL.Path, string(e.Body), e.Reply.Get("Content-Type"), string(e.ReplyBody), e.Status, e.Whole, e.Aborted})
	}
	slices.SortFunc(got, func(a, b summary) int { return cmp.Compare(a.Path, b.Path) })
	want := []summary{
		{Path: "/abort", Aborted: true},
		{Path: "/empty", Body: "body", Status: 200, Whole: true},
		{Path: "/sniffed", Body: "body", Kind: "text/plain; charset=utf-8", Reply: "plain words", Status: 200, Whole: true},
		{Path: "/unread", Status: 400},
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("exchanges mismatch (-want +got):\n%s", diff)
	}
}
