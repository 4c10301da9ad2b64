package pgadmin

import "iter"

// The first page is small, so that it arrives at once.
const (
	firstPage = 100
	nextPage  = 1000
)

// paged yields the rows that page reads, beginning after key: page returns at
// most limit rows, the key after which to go on, and whether there are more. A
// failure, or err, is yielded last.
func paged[T, Key any](key Key, err error, page func(after Key, limit int) (rows []T, next Key, more bool, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		after, err, more := key, err, err == nil
		var rows []T
		for limit := firstPage; more; limit = nextPage {
			if rows, after, more, err = page(after, limit); err != nil {
				break
			}
			for _, row := range rows {
				if !yield(row, nil) {
					return
				}
			}
		}
		if err != nil {
			var none T
			yield(none, err)
		}
	}
}
