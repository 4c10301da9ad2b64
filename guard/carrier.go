package guard

// The keys that [Inject] writes and [Extract] reads. They are lower case, so
// that they survive carriers that fold case.
const (
	CarrierResource = "fencing-resource"
	CarrierToken    = "fencing-token"
	CarrierLease    = "fencing-lease"
)

// Carrier is the headers of a message: a Kafka record's, an AMQP delivery's, a
// job's metadata. Adapters are a few lines each, so this package needs none of
// those libraries.
type Carrier interface {
	// Get returns the values stored under key, or none. A carrier that can hold
	// several must return them all: two tokens in one message are refused;
	// Extract does not choose one.
	Get(key string) []string
	// Set stores value under key in place of what was there.
	Set(key, value string)
}

// MapCarrier is a [Carrier] on a map. It is not safe for concurrent use.
type MapCarrier map[string]string

// Get returns the value under key.
func (m MapCarrier) Get(key string) []string {
	if v, ok := m[key]; ok {
		return []string{v}
	}
	return nil
}

// Set stores value under key.
func (m MapCarrier) Set(key, value string) { m[key] = value }

// Inject writes claim to carrier. It refuses an invalid claim ([ErrInvalid])
// without writing anything.
func Inject(claim Claim, carrier Carrier) error {
	if err := claim.Validate(); err != nil {
		return err
	}
	carrier.Set(CarrierResource, claim.Resource)
	carrier.Set(CarrierToken, claim.Token.String())
	carrier.Set(CarrierLease, claim.LeaseID)
	return nil
}

// Extract reads the claim that a message carries for resource.
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
func Extract(resource string, carrier Carrier) (Claim, error) {
	values := map[string]string{}
	for _, key := range []string{CarrierToken, CarrierResource, CarrierLease} {
		switch v := carrier.Get(key); {
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
