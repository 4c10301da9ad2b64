// Package oracle judges what s3fence does by what a store has stored, byte by byte, and by
// what its callers were told. It was written from s3fence/FORMAT.md and shares nothing with
// s3fence: format.go reads an object, judge.go compares. The test puts a network in front of
// the store that loses, doubles, delays and replays requests, and that responds with pages of
// its own.
package oracle

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"net/url"
	"strconv"
	"strings"
)

// stored is an object as FORMAT.md reads it.
type stored struct {
	kind   string
	token  int64
	lease  string
	write  string
	recent []string
	cut    bool
	body   []byte // as stored, without trailer
	data   string // the key of a pointer's content
}

var kinds = map[byte]string{3: "sealed", 4: "pointer", 5: "tombstone", 9: "gzip"}

var memberEnd = []byte{3, 0, 0, 0, 0, 0, 0, 0, 0, 0}

// read reads an object, by sections 1 to 4.
func read(key string, object []byte, metadata map[string]string) (*stored, error) {
	mode := metadata["fencing-mode"]
	var s *stored
	var err error
	switch mode {
	case "":
		return nil, errors.New("it is not fenced")
	case "plain":
		s, err = readPlain(metadata)
	default:
		s, err = readTrailer(key, object)
	}
	if err != nil {
		return nil, err
	}
	lease, err := url.PathUnescape(metadata["fencing-lease"])
	if err != nil || s.kind != mode || metadata["fencing-token"] != strconv.FormatInt(s.token, 10) || metadata["fencing-write"] != s.write || lease != s.lease {
		return nil, fmt.Errorf("the metadata %v do not repeat %+v", metadata, s)
	}
	if s.kind == "plain" {
		s.body = object
	}
	if s.kind == "pointer" {
		var p struct{ Data, Token, CRC32C string }
		if err := json.Unmarshal(s.body, &p); err != nil || p.Data == "" || p.Token == "" || len(p.CRC32C) != 8 {
			return nil, fmt.Errorf("the pointer %q: %v", s.body, err)
		}
		s.data = p.Data
	}
	if s.kind == "tombstone" && len(object) != 1277 {
		return nil, fmt.Errorf("a tombstone has %d bytes", len(object))
	}
	return s, nil
}

func readPlain(m map[string]string) (*stored, error) {
	token, err := strconv.ParseInt(m["fencing-token"], 10, 64)
	if err != nil {
		return nil, err
	}
	s := &stored{kind: "plain", token: token, write: m["fencing-write"]}
	if s.lease, err = url.PathUnescape(m["fencing-lease"]); err != nil {
		return nil, err
	}
	list, cut := strings.CutSuffix(m["fencing-recent"], "+")
	if s.cut = cut; list != "" {
		s.recent = strings.Split(list, ",")
	}
	return s, nil
}

// readTrailer reads section 2.
func readTrailer(key string, object []byte) (*stored, error) {
	rest, member := bytes.CutSuffix(object, memberEnd)
	end := len(rest) - 12 // where the magic begins
	if end < 4 || string(rest[end:]) != "fencepost/s3" {
		return nil, errors.New("there is no trailer")
	}
	length := int(binary.BigEndian.Uint32(rest[end-4 : end]))
	begin := end - 4 - length
	if length < 89 || begin < 0 {
		return nil, errors.New("the trailer is cut")
	}
	t := rest[begin : end-4]
	fields, sum := t[:len(t)-16], t[len(t)-16:]
	if want := sha256.Sum256(fields); !bytes.Equal(want[:16], sum) {
		return nil, errors.New("the sum does not hold")
	}
	s := &stored{kind: kinds[t[1]], cut: t[2]&1 != 0, token: int64(binary.BigEndian.Uint64(t[36:])), write: hex.EncodeToString(t[44:60])}
	n, m := int(t[3]), int(t[72])
	s.lease = string(t[73 : 73+m])
	for i := range n {
		s.recent = append(s.recent, hex.EncodeToString(t[73+m+16*i:][:16]))
	}
	s.body = object[:begin]
	if member {
		s.body = object[:begin-16] // ten bytes, and three of two each
	}
	switch of := sha256.Sum256([]byte(key)); {
	case t[0] != 1 || t[2]&^1 != 0 || s.kind == "" || (s.kind == "gzip") != member:
		return nil, errors.New("version, flags, kind or place are wrong")
	case !bytes.Equal(t[4:36], of[:]):
		return nil, errors.New("it belongs to another key")
	case binary.BigEndian.Uint64(t[60:]) != uint64(len(s.body)), binary.BigEndian.Uint32(t[68:]) != crc32.Checksum(s.body, crc32.MakeTable(crc32.Castagnoli)):
		return nil, errors.New("it does not match the body")
	}
	return s, nil
}
