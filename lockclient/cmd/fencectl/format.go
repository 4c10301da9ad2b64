package main

import (
	"fmt"
	"time"
)

// clockTime is how people get a moment: in UTC, whatever the terminal's zone,
// since it is compared with logs.
func clockTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05Z") }

// span is how people get a duration: two units at most.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "-" + span(-d)
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		d = d.Round(time.Second)
		return units(int(d/time.Minute), "m", int(d/time.Second)%60, "s")
	case d < 48*time.Hour:
		d = d.Round(time.Minute)
		return units(int(d/time.Hour), "h", int(d/time.Minute)%60, "m")
	}
	d = d.Round(time.Hour)
	return units(int(d/(24*time.Hour)), "d", int(d/time.Hour)%24, "h")
}

// units leaves out what is zero.
func units(high int, highUnit string, low int, lowUnit string) string {
	switch {
	case high == 0:
		return fmt.Sprintf("%d%s", low, lowUnit)
	case low == 0:
		return fmt.Sprintf("%d%s", high, highUnit)
	}
	return fmt.Sprintf("%d%s%d%s", high, highUnit, low, lowUnit)
}

// count is a number of things, "1 lease" or "2 leases".
func count(n int64, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
}
