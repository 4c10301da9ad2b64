//go:build unix

package gateway

import (
	"net/http"
	"os"
	"testing"

	"github.com/fencepost-go/fencepost/internal/testkit"
)

// TestRestart: every product starts, is gone when it was killed, and starts again
// at the same address.
func TestRestart(t *testing.T) {
	for _, product := range []Product{Versitygw, RacingVersitygw, Rclone, RcloneFullCache} {
		t.Run(product.Name, func(t *testing.T) {
			t.Parallel()
			g := Start(t, product)
			for range 2 {
				answer, err := http.Get(g.URL)
				testkit.Must(t, err)
				answer.Body.Close()
				if answer.StatusCode != http.StatusForbidden {
					t.Errorf("an unsigned request is answered %d", answer.StatusCode)
				}
				g.Kill()
				if err := g.ready(); err == nil {
					t.Error("it answers after it was killed")
				}
				g.Server.Start()
			}
		})
	}
}

func TestWrongBinaryIsRefused(t *testing.T) {
	if err := Versitygw.check(os.Args[0]); err == nil {
		t.Error("this test binary was taken for versitygw")
	}
	binary, err := Versitygw.Binary()
	testkit.Must(t, err)
	if err := RacingVersitygw.check(binary); err == nil {
		t.Errorf("%s was taken for %s", Versitygw.Name, RacingVersitygw.Name)
	}
}
