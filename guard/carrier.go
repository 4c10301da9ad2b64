package guard

// The keys that [Inject] writes and [Extract] reads. They are lower case, so
// that they survive carriers that fold case.
const (
	CarrierResource = "fencing-resource"
	CarrierToken    = "fencing-token"
	CarrierLease    = "fencing-lease"
)

// Inject writes claim to the headers of a message: a Kafka record's, an AMQP delivery's, a
// job's metadata. set stores a value under a key in place of what was there, as
// http.Header.Set does. An invalid claim is [ErrInvalid], and nothing is written.
func Inject(claim Claim, set func(key, value string)) error {
	if err := claim.Validate(); err != nil {
		return err
	}
	set(CarrierResource, claim.Resource)
	set(CarrierToken, claim.Token.String())
	set(CarrierLease, claim.LeaseID)
	return nil
}

// Extract reads the claim that a message carries for resource. get returns the values
// stored under a key, or none, as http.Header.Values does. It must return them all: two
// tokens in one message are refused; Extract does not choose one.
//
// The consumer derives resource itself from what it is about to write. All three keys must be
// present. The value of the lease may be empty, but not its key: a relay that drops the key would
// turn two leases into one without an ID.
//
// Errors:
//   - [ErrMissing]: the message carries no token.
//   - [ErrMisdirected], a [*MisdirectedError]: it names another resource, about which its token
//     says nothing.
//   - [ErrInvalid]: another key is missing, one is given twice, or a value is malformed.
func Extract(resource string, get func(key string) []string) (Claim, error) {
	values := map[string]string{}
	for _, key := range []string{CarrierToken, CarrierResource, CarrierLease} {
		switch v := get(key); {
		case len(v) == 1:
			values[key] = v[0]
		case len(v) > 1:
			return Claim{}, Invalid(key, v[0], "is given "+itoa(len(v))+" times")
		case key == CarrierToken:
			return Claim{}, Missing(key)
		default: // not ErrMissing, which a message without a claim is
			return Claim{}, Invalid(key, "", "is missing; Inject writes it even if the lease ID is empty")
		}
	}
	named := values[CarrierResource]
	if err := ValidateResource(named); err != nil {
		return Claim{}, err
	}
	if err := (Claim{Resource: named}).CheckResource(resource); err != nil {
		return Claim{}, err
	}
	token, err := ParseToken(values[CarrierToken])
	if err != nil {
		return Claim{}, err
	}
	claim := Claim{Resource: resource, Token: token, LeaseID: values[CarrierLease]}
	if err := claim.Validate(); err != nil {
		return Claim{}, err
	}
	return claim, nil
}
