package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestFenced(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), true, &out); err != nil || !strings.HasSuffix(out.String(), " 0 of them stale\n") {
		t.Errorf("%v\n%s", err, &out)
	}
}

// The control: without the fence stale writes take effect.
func TestUnfenced(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), false, &out); err != nil || strings.HasSuffix(out.String(), " 0 of them stale\n") {
		t.Errorf("%v\n%s", err, &out)
	}
}
