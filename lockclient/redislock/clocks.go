package redislock

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/driver"
)

// clock is what is known of a server's clock.
type clock struct {
	offset time.Duration // at most the server's time since 1970 less driver.Now
	seen   int64         // the highest time of any response, in ms
}

// server identifies the server that has a resource's keys. In Redis Cluster that
// is their slot: clocks of different nodes must not be compared, and a node has
// whole slots.
func (i *Issuer) server(resource string) uint16 {
	if !i.opts.Cluster {
		return 0
	}
	var crc uint16 // CRC-16/XMODEM of what is in braces
	for _, b := range []byte(escapeName.Replace(resource)) {
		crc ^= uint16(b) << 8
		for range 8 {
			carry := crc&0x8000 != 0
			if crc <<= 1; carry {
				crc ^= 0x1021
			}
		}
	}
	return crc % 16384
}

// learn asks for the time of the resource's server unless a response has reported
// it.
func (i *Issuer) learn(ctx context.Context, resource string) error {
	server := i.server(resource)
	i.mu.Lock()
	_, known := i.clocks[server]
	i.mu.Unlock()
	if known {
		return nil
	}
	if err := i.keepsAll(ctx); err != nil {
		return err
	}
	var raw any
	var err error
	if i.opts.Cluster { // TIME has no key, so any node may respond
		raw, err = timeScript.run(ctx, i.do, []string{i.key(resource, "lease")})
	} else {
		raw, err = i.do(ctx, "TIME")
	}
	if err != nil {
		return err
	}
	t, ok := texts(raw)
	if !ok || len(t) != 2 {
		return fmt.Errorf("TIME returned %v", raw)
	}
	i.heard(resource, number(t[0])*1000+number(t[1])/1000)
	return nil
}

// keepsAll asks once whether the server evicts what has not run out yet.
func (i *Issuer) keepsAll(ctx context.Context) error {
	i.mu.Lock()
	known := i.keeps || i.opts.InsecureEviction
	i.mu.Unlock()
	if known {
		return nil
	}
	raw, err := i.do(ctx, "INFO", "memory")
	if err != nil {
		if begins(err.Error(), setups) {
			err = &setupError{fmt.Errorf("the maxmemory-policy cannot be read (set Options.InsecureEviction if it is known to be noeviction): %w", err)}
		}
		return err
	}
	info, _ := raw.(string)
	if b, ok := raw.([]byte); ok {
		info = string(b)
	}
	_, policy, _ := strings.Cut(info, "maxmemory_policy:")
	policy, _, _ = strings.Cut(policy, "\n")
	if policy = strings.TrimSpace(policy); policy != "noeviction" {
		return &setupError{fmt.Errorf("the maxmemory-policy is %q, with which Redis may drop leases that run: set it to noeviction (or Options.InsecureEviction)", policy)}
	}
	i.mu.Lock()
	defer i.mu.Unlock()
	i.keeps = true
	return nil
}

// heard records a server time that has just been read. The response took some
// time to arrive, so the server's clock is this much ahead of driver.Now or
// more: a not-after computed from it is early rather than late.
func (i *Issuer) heard(resource string, ms int64) {
	server := i.server(resource)
	i.mu.Lock()
	defer i.mu.Unlock()
	i.clocks[server] = clock{time.Duration(ms)*time.Millisecond - driver.Now(), max(i.clocks[server].seen, ms)}
}

// notAfter returns a moment of driver.Now as milliseconds of the resource's
// server, and the highest time seen there.
func (i *Issuer) notAfter(resource string, at time.Duration) (ms, seen int64) {
	server := i.server(resource)
	i.mu.Lock()
	defer i.mu.Unlock()
	c := i.clocks[server]
	return (at + c.offset).Milliseconds(), c.seen
}
