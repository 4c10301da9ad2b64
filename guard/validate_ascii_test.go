package guard

import "testing"

// Every byte at every place of a word, and beside every kind of neighbour that
// a borrow or a carry could come from, is judged as it is by the slow way,
// which looks at one character after the other.
func TestValidateTextByWords(t *testing.T) {
	const limit = 19
	refused := 0
	for length := range limit + 1 {
		for at := range length {
			for c := range 256 {
				for _, neighbour := range []byte{' ', 'a', '~', 0, 0x1f, 0x7f, 0x80, 0xff} {
					b := make([]byte, length)
					for i := range b {
						b[i] = 'x'
					}
					b[at] = byte(c)
					if at+1 < length {
						b[at+1] = neighbour
					}
					s := string(b)
					got, want := validateText("text", s, 1, limit), examineText("text", s, 1, limit)
					if (got == nil) != (want == nil) {
						t.Fatalf("%q: %v, want %v", s, got, want)
					}
					if got != nil {
						refused++
					}
				}
			}
		}
	}
	if refused == 0 {
		t.Error("nothing was refused: the slow way is no judge")
	}
}

// TestPrintableTextIsNotScanned: printable text of any place in a word is told
// by the word alone, so that the slow way is left to what may be wrong.
func TestPrintableTextIsNotScanned(t *testing.T) {
	for c := byte(' '); c <= '~'; c++ {
		if notPrintable1(c) != 0 {
			t.Errorf("%q is examined", c)
		}
		for at := range 8 {
			b := []byte("abcdefgh")
			b[at] = c
			if notPrintable(string(b)) != 0 {
				t.Errorf("%q is examined", b)
			}
		}
	}
}
