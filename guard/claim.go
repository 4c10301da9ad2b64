package guard

// Claim is what a writer presents to a resource: "I act on Resource under
// Token, granted with LeaseID".
//
// The zero value is not a valid claim. Claims are plain values and safe to copy.
type Claim struct {
	// Resource names what is guarded: 1 to 512 bytes of UTF-8 without control
	// characters, compared byte by byte.
	Resource string `json:"resource"`
	// Token is the fencing token of the writer's lease.
	Token Token `json:"token"`
	// LeaseID distinguishes two holders of one token (promise P4): at most 128
	// bytes, compared byte by byte. Empty means that the issuer has no lease
	// IDs; empty equals only empty.
	LeaseID string `json:"leaseId,omitempty"`
}

// Validate checks all three fields. The error is an [*InvalidError] that names
// the field.
func (c Claim) Validate() error {
	if c == (Claim{}) {
		return Invalid("resource", "", "must not be empty: the claim is the zero value, was it taken from a context without one?")
	}
	if err := ValidateResource(c.Resource); err != nil {
		return err
	}
	if err := c.Token.Validate(); err != nil {
		return err
	}
	return ValidateLeaseID(c.LeaseID)
}

// CheckResource reports whether the claim is for the resource named guarded. If
// not, the error is a [*MisdirectedError]. Names are compared byte by byte.
func (c Claim) CheckResource(guarded string) error {
	if c.Resource == guarded {
		return nil
	}
	return &MisdirectedError{Claimed: c.Resource, Guarded: guarded}
}

// Mark is what a resource remembers: the highest claim it has admitted. The
// zero value is the mark of a resource that never admitted a claim.
type Mark struct {
	// Token is the highest token admitted; NoToken if none was.
	Token Token `json:"token"`
	// LeaseID is the lease under which Token was admitted.
	LeaseID string `json:"leaseId,omitempty"`
	// Floor reports that the resource has no mark of its own and that Token is
	// its store's floor, the highest token among the marks that the store has
	// retired ([Store.Retire]). The retired mark may have had that very token,
	// so a claim must be above a floor; equal is stale.
	Floor bool `json:"floor,omitempty"`
}
