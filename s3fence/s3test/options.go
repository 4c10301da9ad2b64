package s3test

import "time"

// Options configure a server. The zero value, or nil, is a store that behaves
// well and lets everybody in.
type Options struct {
	// Buckets exist from the start.
	Buckets []string

	// Region is the server's region: requests that are signed for another are
	// refused. The zero value accepts every region.
	Region string

	// Credentials, if there are any, are the only ones that are let in. Only the
	// access key ID is looked at. The zero value accepts unsigned requests and
	// all credentials.
	Credentials []Credential

	// ETags says how ETags are made; see also [Server.SetETags]. The zero value
	// is [ETagMD5].
	ETags ETagMode

	// MinPartSize is the least size of all parts of a multipart upload but the
	// last, in bytes. Zero is Amazon's 5 MiB, a negative value is no limit.
	MinPartSize int64

	// DiscardAbove is the size in bytes above which bodies are hashed and
	// counted, but not kept. A GET of such an object is refused. Zero keeps all.
	DiscardAbove int64

	// NoHistory turns [Server.History] off, for benchmarks with more writes than
	// memory has room for.
	NoHistory bool

	// TLS makes the server speak HTTPS; [Server.Client] trusts it. Amazon's Go
	// SDK sends bodies that cannot be read twice over HTTPS alone.
	TLS bool

	// Seed is the seed of random faults and ETags.
	Seed uint64

	// Now is the server's clock. Nil is time.Now.
	Now func() time.Time
}

// Credential is an access key ID that the server knows.
type Credential struct {
	AccessKeyID string
	// Expired credentials are refused as such.
	Expired bool
}

// ETagMode is how a server makes ETags.
type ETagMode int

const (
	// ETagMD5 makes ETags that depend on the body alone. With SSE-KMS and SSE-C
	// they are not the MD5, but still a function of the body, which is the worst
	// that Amazon's documentation allows.
	ETagMD5 ETagMode = iota
	// ETagOpaque makes random ETags, different for each write.
	ETagOpaque
)

const (
	defaultMinPartSize = 5 << 20
	maxPutSize         = 5 << 30
	maxKeyLength       = 1024
	maxMetadataSize    = 2 << 10
)
