package guard

import "testing"

// Every byte at every place of a word, and beside every kind of neighbour that
// a borrow or a carry could come from, is judged as it is alone.
func TestPrintableASCII(t *testing.T) {
	plain := func(s []byte) bool {
		for _, c := range s {
			if c < ' ' || c > '~' {
				return false
			}
		}
		return true
	}
	for length := range 20 {
		for at := range length {
			for c := range 256 {
				for _, neighbour := range []byte{' ', 'a', '~', 0, 0x1f, 0x7f, 0x80, 0xff} {
					s := make([]byte, length)
					for i := range s {
						s[i] = 'x'
					}
					s[at] = byte(c)
					if at+1 < length {
						s[at+1] = neighbour
					}
					if got, want := printableASCII(string(s)), plain(s); got != want {
						t.Fatalf("%q: %v, want %v", s, got, want)
					}
				}
			}
		}
	}
}
