package guard

import (
	"encoding/binary"
	"hash/maphash"
	"sync/atomic"
	"unsafe"
)

// memoryTable keeps marks so that a reader takes no lock and looks at two
// places in memory, and the garbage collector at none: a hash table of
// references into a log of records.
//
// A writer, alone under the store's lock, appends a record and then stores the
// reference to it, which makes the record visible (the Go memory model,
// "Atomic Values"); no byte of a record changes afterwards. Superseded records
// stay in the log until it is full and [memoryTable.rebuilt] makes another
// table, which becomes the store's before anything is raised in it. So a reader
// that still holds the old one finds in it what was the mark when the reader
// began, or later.
type memoryTable struct {
	seed  maphash.Seed
	floor Token           // of this table for good
	slots []atomic.Uint64 // 0, or a reference; as many as a power of two
	log   []byte          // records one after the other, from firstRecord on

	// What follows is the writer's.
	used   int     // bytes of log in use
	live   int     // of these, in records that are not superseded
	count  int     // slots in use
	raised []int64 // for each slot, when; nanoseconds since 1970
}

// A reference is where its record begins in the log, with the upper bits of
// the name's hash above it: they keep a reader from nearly all other records.
const refBits = 40

// A record is the token, the length of the name (2 bytes) and of the lease ID
// (1 byte), the name, and the lease ID.
const (
	recordHead  = 8 + 2 + 1
	firstRecord = 1 // so that no reference is 0

	_ = uint16(MaxResourceLen)
	_ = uint8(MaxLeaseIDLen)
)

func recordLen(name, leaseID string) int { return recordHead + len(name) + len(leaseID) }

// record returns the parts of the record that begins at off.
func (t *memoryTable) record(off int) (token Token, name, leaseID string) {
	head, text := t.log[off:off+recordHead], t.log[off+recordHead:]
	n := int(binary.LittleEndian.Uint16(head[8:]))
	end := n + int(head[10])
	return Token(binary.LittleEndian.Uint64(head)), shared(text[:n]), shared(text[n:end])
}

// shared is b as a string without a copy, which would be an allocation for
// every request. It may be, because no byte of a record ever changes.
func shared(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

func (t *memoryTable) hash(name string) uint64 { return maphash.String(t.seed, name) }

// mark returns the mark of name, looking for it from slot i on: from the hash,
// first. It is known if it has a record; else it is the table's floor. It does
// what find and record do, in one: every request pays for it.
func (t *memoryTable) mark(hash, i uint64, name string) (mark Mark, known bool) {
	for ; ; i++ { // ends, because the table is never full
		slots := t.slots
		ref := slots[i&uint64(len(slots)-1)].Load()
		if ref == 0 {
			return Mark{Token: t.floor, Floor: t.floor != NoToken}, false
		}
		if (ref^hash)>>refBits == 0 {
			token, got, leaseID := t.record(offset(ref))
			if got != name {
				return t.mark(hash, i+1, name) // so rare that nothing is kept in hand for it
			}
			return Mark{Token: token, LeaseID: leaseID}, true
		}
	}
}

// find returns the slot of name and the reference in it; if there is none, the
// slot where it would go, and 0. hash is that of name.
func (t *memoryTable) find(hash uint64, name string) (slot int, ref uint64) {
	for i := hash; ; i++ {
		slot := i & uint64(len(t.slots)-1)
		ref := t.slots[slot].Load()
		if ref == 0 {
			return int(slot), 0
		}
		if ref>>refBits == hash>>refBits {
			if _, got, _ := t.record(offset(ref)); got == name {
				return int(slot), ref
			}
		}
	}
}

func offset(ref uint64) int { return int(ref & (1<<refBits - 1)) }

// hasRoom reports whether set can put one more resource and n bytes in.
func (t *memoryTable) hasRoom(n int) bool {
	return t.used+n <= len(t.log) && t.count < len(t.slots)/8*7
}

// set makes claim the mark of its resource. The caller holds the store's lock
// and has asked hasRoom.
func (t *memoryTable) set(hash uint64, claim Claim, now int64) {
	slot, old := t.find(hash, claim.Resource)
	if old == 0 {
		t.count++
	} else {
		_, _, leaseID := t.record(offset(old))
		t.live -= recordLen(claim.Resource, leaseID)
	}
	off := t.used
	b := t.log[off:off:len(t.log)]
	b = binary.LittleEndian.AppendUint64(b, uint64(claim.Token))
	b = binary.LittleEndian.AppendUint16(b, uint16(len(claim.Resource)))
	b = append(b, byte(len(claim.LeaseID)))
	b = append(b, claim.Resource...)
	b = append(b, claim.LeaseID...)
	t.used += len(b)
	t.live += len(b)
	t.raised[slot] = now
	t.slots[slot].Store(hash>>refBits<<refBits | uint64(off)) // last: from here on it can be read
}

// each calls f for every mark, in the order in which they were raised.
func (t *memoryTable) each(f func(raised int64, c Claim)) {
	for off := firstRecord; off < t.used; {
		token, name, leaseID := t.record(off)
		if slot, current := t.find(t.hash(name), name); offset(current) == off {
			f(t.raised[slot], Claim{Resource: name, Token: token, LeaseID: leaseID})
		}
		off += recordLen(name, leaseID)
	}
}

// rebuilt returns a table with the marks of t that keep says (nil keeps all)
// and room for one more resource and n bytes. It leaves t as it is, for those
// who are reading it.
func (t *memoryTable) rebuilt(floor Token, n int, keep func(raised int64) bool) *memoryTable {
	count, live := t.count, t.live
	if keep != nil {
		count, live = 0, 0
		t.each(func(raised int64, c Claim) {
			if keep(raised) {
				count++
				live += recordLen(c.Resource, c.LeaseID)
			}
		})
	}
	slots := 8
	for count >= slots/8*7 {
		slots *= 2
	}
	next := &memoryTable{
		seed: t.seed, floor: floor, used: firstRecord,
		slots: make([]atomic.Uint64, slots), raised: make([]int64, slots),
		log: make([]byte, firstRecord+max(2*live, 1<<10)+n), // half empty, or the next would come too soon
	}
	t.each(func(raised int64, c Claim) {
		if keep == nil || keep(raised) {
			next.set(t.hash(c.Resource), c, raised)
		}
	})
	return next
}
