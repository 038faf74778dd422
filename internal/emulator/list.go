package emulator

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// listQuery is what both lists filter, sort and cut by.
type listQuery struct {
	idPrefix, namePrefix string
	labels               map[string]string
	states               []string
	erroredDeleted       bool
	sort                 string
	ascending            bool
	page, limit          int
	cursor               string
}

// The sizes of a page.
const (
	defaultPage = 100
	largestPage = 200
)

func parseList(values url.Values) (listQuery, *apiError) {
	q := listQuery{
		idPrefix: values.Get("id"), namePrefix: values.Get("name"), states: values["states"],
		erroredDeleted: values.Get("includeErroredDeleted") == "true",
		sort:           cmp.Or(values.Get("sort"), "createdAt"), ascending: values.Get("order") == "asc",
		page: 1, limit: defaultPage, cursor: values.Get("cursor"),
	}
	if len(q.states) == 1 {
		q.states = strings.Split(q.states[0], ",")
	}
	if text := values.Get("labels"); text != "" {
		if err := json.Unmarshal([]byte(text), &q.labels); err != nil {
			return q, refuse(http.StatusBadRequest, "Invalid labels JSON format")
		}
	}
	var messages []string
	number := func(name string, into *int, most int) {
		if text := values.Get(name); text != "" {
			n, err := strconv.Atoi(text)
			switch {
			case err != nil:
				messages = append(messages, name+" must be an integer number")
			case n < 1:
				messages = append(messages, name+" must not be less than 1")
			case most > 0 && n > most:
				messages = append(messages, fmt.Sprintf("%s must not be greater than %d", name, most))
			}
			*into = n
		}
	}
	number("page", &q.page, 0)
	number("limit", &q.limit, largestPage)
	if len(messages) > 0 {
		return q, refuse(http.StatusBadRequest, strings.Join(messages, ", "))
	}
	return q, nil
}

func (q *listQuery) matches(r *record) bool {
	switch {
	case r.State == StateDestroyed,
		!r.visible() && !q.erroredDeleted,
		!strings.HasPrefix(r.ID, q.idPrefix),
		!strings.HasPrefix(r.Name, q.namePrefix),
		len(q.states) > 0 && !slices.Contains(q.states, string(r.shown())):
		return false
	}
	for key, value := range q.labels {
		if have, found := r.Labels[key]; !found || have != value {
			return false
		}
	}
	return true
}

func (q *listQuery) compare(a, b record) int {
	var order int
	switch q.sort {
	case "id":
	case "name":
		order = strings.Compare(a.Name, b.Name)
	case "state":
		order = strings.Compare(string(a.shown()), string(b.shown()))
	case "snapshot":
		order = strings.Compare(a.Snapshot, b.Snapshot)
	case "region":
		order = strings.Compare(a.Target, b.Target)
	case "updatedAt":
		order = a.UpdatedAt.Compare(b.UpdatedAt)
	case "lastActivityAt":
		order = a.ActiveAt.Compare(b.ActiveAt)
	default:
		order = a.CreatedAt.Compare(b.CreatedAt)
	}
	order = cmp.Or(order, strings.Compare(a.ID, b.ID))
	if !q.ascending {
		order = -order
	}
	return order
}

// records returns what a list shows: the present, or with a StaleList fault the past.
func (s *Server) records(r *http.Request, q *listQuery) []record {
	fault := faultOf(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	var found []record
	for _, sb := range s.sandboxes {
		if sb.Organization != organizationOf(r) {
			continue
		}
		shown, exists := *sb.now(), true
		if fault.is(StaleList) {
			shown, exists = sb.asOf(fault)
		}
		if exists && q.matches(&shown) {
			found = append(found, shown)
		}
	}
	slices.SortFunc(found, q.compare)
	return found
}

// asOf is the record as a stale list shows it: as it was Delay ago, or without a Delay when the fault was set.
func (sb *sandbox) asOf(fault *faultHit) (record, bool) {
	for _, v := range slices.Backward(sb.history) {
		past := v.number <= fault.version
		if fault.Delay > 0 {
			past = v.at.Before(fault.at.Add(-fault.Delay))
		}
		if past {
			return v.record, true
		}
	}
	return record{}, false
}

func (s *Server) listPaginated(w http.ResponseWriter, r *http.Request) *apiError {
	q, err := parseList(r.URL.Query())
	if err != nil {
		return err
	}
	all := s.records(r, &q)
	items := []fullDTO{}
	first := min((q.page-1)*q.limit, len(all))
	for _, found := range all[first:min(first+q.limit, len(all))] {
		items = append(items, s.dto(&found, skewOf(r)).full())
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"items": items, "total": len(all), "page": q.page, "totalPages": (len(all) + q.limit - 1) / q.limit,
	})
	return nil
}

// listCursor is the newer list. Its cursor is the id of the last item, opaque to clients.
func (s *Server) listCursor(w http.ResponseWriter, r *http.Request) *apiError {
	q, err := parseList(r.URL.Query())
	if err != nil {
		return err
	}
	all := s.records(r, &q)
	first := 0
	if q.cursor != "" {
		at := slices.IndexFunc(all, func(r record) bool { return r.ID == q.cursor })
		if at < 0 {
			return refuse(http.StatusBadRequest, "Invalid cursor")
		}
		first = at + 1
	}
	last := min(first+q.limit, len(all))
	items := []listItem{}
	for _, found := range all[first:last] {
		items = append(items, s.dto(&found, skewOf(r)).listItem)
	}
	var next *string
	if last < len(all) {
		next = &items[len(items)-1].ID
	}
	writeJSON(w, http.StatusOK, map[string]any{"items": items, "nextCursor": next})
	return nil
}
