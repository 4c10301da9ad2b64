package lockhttp

import (
	"sync"
	"time"

	"github.com/fencepost-go/fencepost/lockclient/driver"
)

const (
	bucketTime = 5 * time.Second
	buckets    = 60
	// tenantsMost bounds the tenants that are counted, since each name takes
	// memory; later ones are not plotted.
	tenantsMost = 1000
)

// activity counts the outcomes of acquires, by tenant, for the page's plots.
// Nobody sees another tenant's, which would reveal when it works.
type activity struct {
	mu sync.Mutex
	by map[string]*counts
}

// counts are the buckets of the last minutes, each at its number modulo their
// number.
type counts struct {
	at                       [buckets]int64 // which bucket it is
	granted, refused, failed [buckets]int
}

func tenantOf(id *Identity) string {
	if id.AllResources {
		return "" // only its own acquires
	}
	return id.Tenant
}

func (a *activity) count(id *Identity, err error, held *driver.HeldError) {
	now := int64(driver.Now() / bucketTime)
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.by[tenantOf(id)]
	if c == nil {
		if len(a.by) >= tenantsMost {
			return
		}
		if a.by == nil {
			a.by = map[string]*counts{}
		}
		c = &counts{}
		a.by[tenantOf(id)] = c
	}
	n := now % buckets
	if c.at[n] != now {
		c.at[n], c.granted[n], c.refused[n], c.failed[n] = now, 0, 0, 0
	}
	switch {
	case err != nil:
		c.failed[n]++
	case held != nil:
		c.refused[n]++
	default:
		c.granted[n]++
	}
}

// plot is one small plot.
type plot struct {
	Class, Label string
	Total, Most  int
	Bars         []bar
}

// bar is one rectangle in a plot of 240 by 48.
type bar struct{ X, Y, H int }

func (a *activity) plots(id *Identity) []plot {
	now := int64(driver.Now() / bucketTime)
	a.mu.Lock()
	defer a.mu.Unlock()
	c := a.by[tenantOf(id)]
	if c == nil {
		c = &counts{}
	}
	plots := []plot{{Class: "granted", Label: "Granted"}, {Class: "refused", Label: "Refused, held by another"}, {Class: "failed", Label: "Failed"}}
	for k, values := range [][buckets]int{c.granted, c.refused, c.failed} {
		p := &plots[k]
		value := func(age int64) int {
			if n := (now - age) % buckets; c.at[n] == now-age {
				return values[n]
			}
			return 0
		}
		for age := range int64(buckets) {
			p.Most = max(p.Most, value(age))
			p.Total += value(age)
		}
		for age := range int64(buckets) {
			if v := value(age); v > 0 {
				h := max(1, v*46/p.Most)
				p.Bars = append(p.Bars, bar{X: int(buckets-1-age) * 4, Y: 47 - h, H: h})
			}
		}
	}
	return plots
}
