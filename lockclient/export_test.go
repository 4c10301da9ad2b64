package lockclient

import (
	"context"
	"time"

	"github.com/fencepost-go/fencepost/guard"
)

// Movable gives the client a clock that the returned function moves.
func (c *Client) Movable() func(time.Duration) { return movable(c) }

// Wire sends a late request past the client's own checks.
func (c *Client) Wire(op string, claim guard.Claim) (taken bool, err error) {
	if op == "release" {
		return c.issuer.release(context.Background(), claim, patience)
	}
	_, taken, err = c.issuer.renew(context.Background(), claim, time.Minute, patience)
	return taken, err
}
