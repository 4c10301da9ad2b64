package s3fence

import "strconv"

// DamagedError says that an object is not as this package wrote it: its
// trailer is missing, cut, altered or another object's, its body does not
// match, its metadata says something else, or its data is gone. It is the
// cause of a [*guard.FailedError] of the reason unavailable: nothing was
// written, and nothing will be until somebody has looked.
//
// The ways out are to put the right bytes back, or [Objects.InsecureDelete].
type DamagedError struct {
	// Key is the object's key.
	Key string
	// Problem says what is wrong with it.
	Problem string
}

// Error names the object and the problem.
func (e *DamagedError) Error() string {
	return "object " + strconv.QuoteToASCII(e.Key) + " is damaged: " + e.Problem
}

func damaged(key, problem string) error { return &DamagedError{Key: key, Problem: problem} }
