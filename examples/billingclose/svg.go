package main

import (
	"encoding/xml"
	"fmt"
	"regexp"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// entry is one line of the timeline, for the picture.
type entry struct {
	who          string
	token        guard.Token
	what, answer string
}

// picture draws the story as a sequence diagram: the two workers at the sides,
// what they write to in the middle. It leaves out what differs between runs:
// times, ports and process IDs.
type picture struct {
	b    strings.Builder
	y    int
	mark guard.Token
}

const (
	laneA, laneStore, laneB = 60, 440, 820
	pictureWidth            = 880
	rowHeight               = 42
)

// pictureStyle follows the reader's light or dark theme.
const pictureStyle = `<style>
text{font:13px system-ui,sans-serif;fill:#1f2328;stroke:#fff;stroke-width:5px;paint-order:stroke}
.b{font-weight:600}.m{text-anchor:middle}.e{text-anchor:end}.dim{fill:#59636e}.bad{fill:#b3261e}.good{fill:#1a7f37}
line{stroke:#59636e;stroke-width:1.5}.life{stroke:#d1d9e0;stroke-width:2}.stop{stroke:#b3261e;stroke-width:4;stroke-dasharray:3 7}.gap{stroke:#fff;stroke-width:4}path{fill:none;stroke:#59636e;stroke-width:1.5}path.bad{fill:none;stroke:#b3261e}
line.bad{stroke:#b3261e}rect{fill:#f6f8fa;stroke:#d1d9e0}.bg{fill:#fff;stroke:none}
@media(prefers-color-scheme:dark){text{fill:#f0f6fc;stroke:#0d1117}.dim{fill:#9198a1}.bad{fill:#ff7b72}.good{fill:#3fb950}
line{stroke:#9198a1}.life{stroke:#3d444d}.stop,line.bad,path.bad{stroke:#ff7b72}.gap{stroke:#0d1117}path{stroke:#9198a1}rect{fill:#151b23;stroke:#3d444d}.bg{fill:#0d1117}}
</style>
`

var (
	processID     = regexp.MustCompile(` \(pid [0-9]+\)`)
	otherResource = regexp.MustCompile(` for \S+$`)
)

// draw returns the picture of a story as SVG.
func draw(story []entry) string {
	p := &picture{y: 70}
	stopped, resumed := 0, 0
	for _, e := range story {
		if strings.HasPrefix(e.what, "SIGSTOP") {
			stopped = p.y - 12
		}
		if strings.HasPrefix(e.what, "SIGCONT") {
			resumed = p.y + 12
		}
		p.row(e)
	}
	height := p.y + 30
	var out strings.Builder
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" role="img" aria-label="Worker a is stopped while it holds token 1; worker b takes over with token 2; the writes of worker a are refused as stale">`+"\n", pictureWidth, height)
	out.WriteString(pictureStyle)
	fmt.Fprintf(&out, `<rect class="bg" width="%d" height="%d"/>`+"\n", pictureWidth, height)
	for _, lane := range []struct {
		x    int
		name string
	}{{laneA, "worker a"}, {laneStore, "database, ledger, S3"}, {laneB, "worker b"}} {
		fmt.Fprintf(&out, `<text class="b m" x="%d" y="30">%s</text><line class="life" x1="%d" y1="42" x2="%d" y2="%d"/>`+"\n", lane.x, lane.name, lane.x, lane.x, height-10)
	}
	if stopped > 0 && resumed > stopped {
		for _, class := range []string{"gap", "stop"} {
			fmt.Fprintf(&out, `<line class="%s" x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", class, laneA, stopped, laneA, resumed)
		}
	}
	out.WriteString(p.b.String())
	out.WriteString("</svg>\n")
	return out.String()
}

// row draws one entry and moves down.
func (p *picture) row(e entry) {
	what, refused := processID.ReplaceAllString(e.what, ""), strings.Contains(e.answer, "refused")
	class := "dim"
	if refused || strings.HasPrefix(e.answer, "✗") {
		class = "bad"
	}
	switch {
	case e.who == "postgres", e.who == "ledger", e.who == "s3": // addresses
		return
	case e.who == "kernel":
		p.text(laneA+14, "b bad", what)
	case e.who == "metering":
		p.text(laneStore, "m dim", what)
	case e.answer == "" && e.who == "worker a":
		p.text(laneA+14, "b", withToken(e, what))
	case e.answer == "" && strings.HasPrefix(what, "raises"), e.who == "payouts", e.answer != "" && e.who == "worker b":
		if e.who == "payouts" {
			what = "payouts, token " + e.token.String() + ": " + what
		}
		p.arrow(laneB, e, what, class)
	case e.answer == "":
		p.text(laneB-14, "e b", withToken(e, what))
	case e.token == guard.NoToken:
		p.text(laneA+14, "dim", what+" "+e.answer)
	default:
		p.arrow(laneA, e, what, class)
	}
	p.y += rowHeight
}

// arrow draws a write from a lane to the store, the response below, and the mark
// when the write raised it.
func (p *picture) arrow(from int, e entry, what, class string) {
	to, back := laneStore-4, -8
	if from > laneStore {
		to, back = laneStore+4, 8
	}
	raised := class != "bad" && e.token > p.mark
	refused := strings.Contains(e.answer, "refused")
	if raised {
		to += 4 * back
	} else if refused {
		to += 2 * back
	}
	middle := (from + to) / 2
	p.textAt(middle, p.y-6, "m", what)
	if e.answer != "" {
		answer := e.answer
		if refused {
			answer = otherResource.ReplaceAllString(strings.TrimPrefix(answer, "✓ "), " for another resource")
		}
		if class != "bad" {
			class = "good"
		}
		p.textAt(middle, p.y+13, "m "+class, answer)
	}
	bad := ""
	if class == "bad" {
		bad = ` class="bad"`
	}
	fmt.Fprintf(&p.b, `<line%s x1="%d" y1="%d" x2="%d" y2="%d"/>`+"\n", bad, from, p.y, to, p.y)
	if refused {
		fmt.Fprintf(&p.b, `<path%s d="M%d %dl8 10m0-10l-8 10"/>`+"\n", bad, to-4, p.y-5)
	} else {
		fmt.Fprintf(&p.b, `<path%s d="M%d %dl%d 5l%d 5"/>`+"\n", bad, to+back, p.y-5, -back, back)
	}
	if raised {
		p.mark = e.token
		fmt.Fprintf(&p.b, `<rect x="%d" y="%d" width="70" height="24" rx="6"/>`, laneStore-35, p.y-12)
		p.textAt(laneStore, p.y+5, "m b", "mark "+e.token.String())
	}
}

func withToken(e entry, what string) string {
	if e.token == guard.NoToken {
		return what
	}
	return "token " + e.token.String() + ": " + what
}

func (p *picture) text(x int, class, text string) { p.textAt(x, p.y+5, class, text) }

func (p *picture) textAt(x, y int, class, text string) {
	fmt.Fprintf(&p.b, `<text class="%s" x="%d" y="%d">`, class, x, y)
	_ = xml.EscapeText(&p.b, []byte(text)) // a strings.Builder never fails
	p.b.WriteString("</text>\n")
}
