package explore

import (
	"fmt"
	"strings"
)

func objInvariants() []invariant[objState] {
	return []invariant[objState]{
		{P1, "no PUT is applied below the object's token", func(s *objState) bool { return !s.stale }},
		{P2, "no older holder's PUT is overwritten unread after the raise", func(s *objState) bool { return !s.lost }},
		{P5, "what is reported as written is written", func(s *objState) bool { return !s.boasts }},
		{P6, "what is reported as refused has not been and is not written", func(s *objState) bool { return !s.lied }},
		{Once, "a write ID is applied once", func(s *objState) bool { return !s.twice }},
	}
}

func objGoals() []goal[objState] {
	return []goal[objState]{
		{says: "GET: refused as stale"},
		{says: "GET: finds its own write ID"},
		{says: "GET: cannot tell whether it has written"},
		{says: "PUT: 412"},
		{says: "delayed PUT of A (1/a): 200"},
		{says: "delayed PUT of A (1/a): 412"},
		{"all four have written", func(s *objState) bool {
			for _, a := range s.applied {
				if !a.write {
					return false
				}
			}
			return true
		}},
	}
}

func contentName(content uint8) string {
	return [...]string{"nothing", "X", "Y", "a tombstone"}[content]
}

func (c objConfig) show(s *objState) string {
	var b strings.Builder
	if !s.exists() {
		b.WriteString("no object")
	} else {
		fmt.Fprintf(&b, "object: %s under %s, write %d", contentName(s.content), showMark(s.token, s.lease), s.wid)
		if c.bodyETag {
			fmt.Fprintf(&b, ", ETag of %s", contentName(s.content))
		}
	}
	for i, w := range s.w {
		if w.pc == objPut {
			fmt.Fprintf(&b, "; %s would replace write %d", workerNames[i], w.baseWID)
		}
		if w.late.wid != 0 {
			fmt.Fprintf(&b, "; a PUT of %s is on its way", workerNames[i])
		}
	}
	return b.String()
}
