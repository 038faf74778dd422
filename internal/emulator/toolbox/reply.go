package toolbox

import (
	"encoding/json"
	"net/http"
	"time"
)

// writeJSON answers with JSON. Invalid UTF-8 in strings becomes U+FFFD, as in the daemon.
func writeJSON(w http.ResponseWriter, status int, v any) {
	body, err := json.Marshal(v)
	if err != nil {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(body)
}

// Codes of the daemon's errors, by status.
var errorCodes = map[int]string{
	http.StatusBadRequest:     "BAD_REQUEST",
	http.StatusNotFound:       "NOT_FOUND",
	http.StatusConflict:       "CONFLICT",
	http.StatusGone:           "GONE",
	http.StatusRequestTimeout: "REQUEST_TIMEOUT",
}

// writeError answers with the daemon's error of six fields, which it uses for errors that it has a type for.
func writeError(w http.ResponseWriter, r *http.Request, status int, message string) {
	writeJSON(w, status, struct {
		StatusCode int       `json:"statusCode"`
		Message    string    `json:"message"`
		Code       string    `json:"code"`
		Timestamp  time.Time `json:"timestamp"`
		Path       string    `json:"path"`
		Method     string    `json:"method"`
	}{status, message, errorCodes[status], time.Now(), r.URL.Path, r.Method})
}

func badRequest(w http.ResponseWriter, r *http.Request, message string) {
	writeError(w, r, http.StatusBadRequest, "bad request: "+message)
}

func notFound(w http.ResponseWriter, r *http.Request, message string) {
	writeError(w, r, http.StatusNotFound, "not found: "+message)
}

func conflict(w http.ResponseWriter, r *http.Request, message string) {
	writeError(w, r, http.StatusConflict, "conflict: "+message)
}

func gone(w http.ResponseWriter, r *http.Request, message string) {
	writeError(w, r, http.StatusGone, "gone: "+message)
}

func requestTimeout(w http.ResponseWriter, r *http.Request, message string) {
	writeError(w, r, http.StatusRequestTimeout, "request timeout: "+message)
}

// unmapped answers 500 with the daemon's error for what it has no type for: no path, and Go's zero time.
func unmapped(w http.ResponseWriter, err error) {
	writeJSON(w, http.StatusInternalServerError, struct {
		StatusCode int       `json:"statusCode"`
		Message    string    `json:"message"`
		Timestamp  time.Time `json:"timestamp"`
		Path       string    `json:"path"`
	}{StatusCode: http.StatusInternalServerError, Message: err.Error()})
}
