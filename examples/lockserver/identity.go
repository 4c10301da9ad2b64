package main

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/fencepost-go/fencepost/lockclient/lockhttp"
)

// identities says who may use which token. The tokens are random and long, so a
// plain hash of them is enough: reading the file gives nobody a token, and the
// time of a look-up by hash reveals nothing.
type identities struct {
	byHash map[string]lockhttp.Identity
}

// fileEntry is one entry in the file of -identities:
//
//	[{"sha256": "9f86d0...", "subject": "worker-7", "tenant": "acme"},
//	 {"sha256": "60303a...", "subject": "ada", "tenant": "acme", "operator": true}]
type fileEntry struct {
	SHA256   string `json:"sha256"`
	Subject  string `json:"subject"`
	Tenant   string `json:"tenant"`
	Operator bool   `json:"operator"`
}

func readIdentities(file string) (who identities, err error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return who, err
	}
	var entries []fileEntry
	if err := json.Unmarshal(text, &entries); err != nil {
		return who, fmt.Errorf("%s: %w", file, err)
	}
	who.byHash = map[string]lockhttp.Identity{}
	for n, e := range entries {
		hash, err := hex.DecodeString(e.SHA256)
		if err != nil || len(hash) != sha256.Size || e.Subject == "" || e.Tenant == "" {
			return who, fmt.Errorf("%s: entry %d needs sha256 (64 hexadecimal digits), subject and tenant", file, n+1)
		}
		if _, twice := who.byHash[string(hash)]; twice { // whose token would it be?
			return who, fmt.Errorf("%s: entry %d has the sha256 of another entry", file, n+1)
		}
		who.byHash[string(hash)] = lockhttp.Identity{
			Subject: e.Subject, Tenant: e.Tenant, Operator: e.Operator, Templates: templates, Audience: audience(e.Tenant),
		}
	}
	return who, nil
}

// add makes a token for an identity.
func (who *identities) add(id lockhttp.Identity) (token string) {
	if who.byHash == nil {
		who.byHash = map[string]lockhttp.Identity{}
	}
	token = rand.Text()
	hash := sha256.Sum256([]byte(token))
	who.byHash[string(hash[:])] = id
	return token
}

// authenticate uses the bearer token. Nothing else in the request counts, such as a
// header that names a tenant.
func (who *identities) authenticate(r *http.Request) (*lockhttp.Identity, error) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return nil, errors.New("send one bearer token")
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if !strings.EqualFold(scheme, "Bearer") {
		return nil, errors.New("the Authorization header has no bearer token")
	}
	hash := sha256.Sum256([]byte(token))
	id, known := who.byHash[string(hash[:])]
	if !known {
		return nil, errors.New("the bearer token is unknown")
	}
	return &id, nil
}
