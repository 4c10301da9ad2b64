package s3fence_test

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/fencepost-go/fencepost/s3fence/s3test"
)

// pointerBody is what a test reads of a stored pointer.
type pointerBody struct {
	Data  string `json:"data"`
	Token string `json:"token"`
}

func parsePointer(t testing.TB, o s3test.Object) (p pointerBody) {
	t.Helper()
	if err := json.NewDecoder(bytes.NewReader(o.Body)).Decode(&p); err != nil {
		t.Fatalf("pointer %q: %v", o.Body, err)
	}
	return p
}

// dataHistory gives the mutations of a pointer the metadata of the data that
// each of them names, which is where a caller's metadata is.
func dataHistory(t testing.TB, server *s3test.Server, history []s3test.Mutation) []s3test.Mutation {
	t.Helper()
	attempts := map[string]string{}
	for _, m := range server.History(bucketName, "") {
		if m.Key != key && m.Metadata != nil {
			attempts[m.Key] = m.Metadata["attempt"]
		}
	}
	out := make([]s3test.Mutation, len(history))
	for i, m := range history {
		out[i] = m
		out[i].Metadata = map[string]string{
			"fencing-token": m.Metadata["fencing-token"], "attempt": attempts[parsePointer(t, m.Object).Data],
		}
	}
	return out
}
