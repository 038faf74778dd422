package toolbox

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
)

// searchFiles lists what lies under path and has a base name that matches the pattern (filepath.Match).
func (t *Toolbox) searchFiles(w http.ResponseWriter, r *http.Request) {
	root, pattern := r.URL.Query().Get("path"), r.URL.Query().Get("pattern")
	if root == "" || pattern == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	found := []string{}
	t.walk(root, func(p string, entry fs.DirEntry) {
		if ok, _ := filepath.Match(pattern, entry.Name()); ok {
			found = append(found, p)
		}
	})
	writeJSON(w, http.StatusOK, map[string]any{"files": found})
}

// match is a line that holds what was looked for (schema Match). Lines are counted from 1.
type match struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Content string `json:"content"`
}

// findInFiles lists the lines under path that hold the pattern, which is plain text.
func (t *Toolbox) findInFiles(w http.ResponseWriter, r *http.Request) {
	root, pattern := r.URL.Query().Get("path"), r.URL.Query().Get("pattern")
	if root == "" || pattern == "" {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	matches := []match{}
	t.walk(root, func(p string, entry fs.DirEntry) {
		if entry.Type().IsRegular() {
			matches = t.matchLines(matches, p, pattern)
		}
	})
	writeJSON(w, http.StatusOK, matches)
}

// walk visits what lies under a path of a request, links not followed; paths keep the form of the root.
// What cannot be read is left out, a missing root included.
func (t *Toolbox) walk(root string, visit func(p string, entry fs.DirEntry)) {
	host := t.path(root)
	_ = filepath.WalkDir(host, func(p string, entry fs.DirEntry, err error) error {
		if err != nil {
			return fs.SkipDir
		}
		if rel, err := filepath.Rel(host, p); err == nil {
			visit(filepath.Join(root, rel), entry)
		}
		return nil
	})
}

// matchLines appends the matching lines of one file. A NUL among the first 512 bytes marks a binary file,
// which has none; a line over 64 KiB ends the search of its file.
func (t *Toolbox) matchLines(matches []match, p, pattern string) []match {
	f, err := os.Open(t.path(p))
	if err != nil {
		return matches
	}
	defer f.Close()
	content := bufio.NewReader(f)
	if start, _ := content.Peek(512); bytes.IndexByte(start, 0) >= 0 {
		return matches
	}
	lines := bufio.NewScanner(content)
	for number := 1; lines.Scan(); number++ {
		if strings.Contains(lines.Text(), pattern) {
			matches = append(matches, match{p, number, lines.Text()})
		}
	}
	return matches
}

// replaceResult is what became of one file (schema ReplaceResult).
type replaceResult struct {
	File    string `json:"file"`
	Success bool   `json:"success"`
	Error   string `json:"error,omitempty"`
}

// replaceInFiles replaces plain text in each of the named files, in place. The answer is 200 whatever
// happened: each file has its own result.
func (t *Toolbox) replaceInFiles(w http.ResponseWriter, r *http.Request) {
	var request struct {
		Files    []string `json:"files"`
		Pattern  string   `json:"pattern"`
		NewValue *string  `json:"newValue"`
	}
	if err := json.NewDecoder(r.Body).Decode(&request); err != nil ||
		request.Files == nil || request.Pattern == "" || request.NewValue == nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	results := make([]replaceResult, 0, len(request.Files))
	for _, p := range request.Files {
		result := replaceResult{File: p, Success: true}
		if err := t.replaceInFile(p, request.Pattern, *request.NewValue); err != nil {
			result.Success, result.Error = false, err.Error()
		}
		results = append(results, result)
	}
	writeJSON(w, http.StatusOK, results)
}

func (t *Toolbox) replaceInFile(p, old, replacement string) error {
	content, err := os.ReadFile(t.path(p))
	if err != nil {
		return err
	}
	content = bytes.ReplaceAll(content, []byte(old), []byte(replacement))
	_, err = t.writeFile(t.path(p), 0o666, bytes.NewReader(content))
	return err
}
