package pgtest

import (
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
)

// secret is a password and the form in which PostgreSQL stores it.
type secret struct {
	password string
	verifier string
}

// newSecret returns a random password with a SCRAM verifier of one iteration.
// The usual 4096 make guessing a weak password expensive; this one has 128
// random bits, and the iterations would cost each connection more than
// everything else.
func newSecret() (secret, error) {
	password := randomHex(16)
	salt := make([]byte, 16)
	rand.Read(salt) // never fails
	salted, err := pbkdf2.Key(sha256.New, password, salt, 1, sha256.Size)
	if err != nil {
		return secret{}, fmt.Errorf("pgtest: %w", err)
	}
	clientKey := mac(salted, "Client Key")
	storedKey := sha256.Sum256(clientKey)
	encode := base64.StdEncoding.EncodeToString
	return secret{
		password: password,
		verifier: fmt.Sprintf("SCRAM-SHA-256$1:%s$%s:%s",
			encode(salt), encode(storedKey[:]), encode(mac(salted, "Server Key"))),
	}, nil
}

func mac(key []byte, message string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(message))
	return h.Sum(nil)
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b) // never fails
	return hex.EncodeToString(b)
}
