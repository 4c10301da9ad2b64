package guardtest

// CaseNames returns the names of all cases.
func CaseNames() []string {
	var names []string
	for _, c := range cases() {
		names = append(names, c.name)
	}
	return names
}
