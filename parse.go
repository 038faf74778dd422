package leasehold

import "encoding/json"

// parse decodes the JSON form of a stored value and checks it. One bad value voids it: then it fails with [ErrInvalid], and
// returns nothing of it. Unknown fields are ignored.
func parse[T interface{ check(op string) error }](op, name string, data []byte) (T, error) {
	var value, none T
	if json.Unmarshal(data, &value) != nil {
		return none, problems{{Field: name, Problem: "is not its JSON form"}}.err(op)
	}
	if err := value.check(op); err != nil {
		return none, err
	}
	return value, nil
}
