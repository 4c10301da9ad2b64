package guardtest

// CaseNames returns the names of the cases that run with h.
func CaseNames(h Harness) (names []string) {
	for _, c := range cases() {
		if c.lacks(h) == "" {
			names = append(names, c.name)
		}
	}
	return names
}
