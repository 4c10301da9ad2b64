package grpcfence

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/fencepost-go/fencepost/httpfence"
)

// InTx puts the fenced transaction of a fence around the HTTP handler of a service:
// a Connect handler, or a *grpc.Server behind HTTP/2. A call that fails, which over
// gRPC, gRPC-Web and Connect's streams is a response of 200, rolls the transaction
// back; its own response is sent. It is [httpfence.TxMiddleware.InTx] otherwise: the
// resource comes from the request, not from the message.
func InTx(fence *httpfence.TxMiddleware) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler { return fence.InTxJudged(next, failed) }
}

// failed reports whether a response below 300 says, in its RPC protocol, that
// the call has failed. A response of another media type does not. The error says
// that the protocol requires a status and that none was found: clients
// interpret that differently, so it must not be committed.
//
// The protocols: "gRPC over HTTP2" and "gRPC-Web" in the documents of grpc, and
// the "Connect protocol" of connectrpc.com. Connect's unary errors have
// a status of 400 or above and need no help.
func failed(header, trailer http.Header, body []byte) (failed bool, err error) {
	media, _, _ := strings.Cut(header.Get("Content-Type"), ";")
	media = strings.ToLower(strings.TrimSpace(media))
	is := func(name string) bool {
		return media == name || strings.HasPrefix(media, name+"+")
	}
	switch {
	case is("application/grpc"):
		return grpcStatus(header, trailer, nil)
	case is("application/grpc-web"):
		return grpcStatus(header, trailer, body)
	case strings.HasPrefix(media, "application/connect+"):
		return connectEnd(body)
	case strings.HasPrefix(media, "application/grpc-"):
		return false, fmt.Errorf("the encoding %s of an RPC is not supported", media) // such as gRPC-Web in base64
	}
	return false, nil
}

var errNoStatus = errors.New("the RPC's response has no status")

// grpcStatus looks for the status in all possible places: in a header of a
// response without messages, in a trailer, or in the last frame of gRPC-Web.
func grpcStatus(header, trailer http.Header, web []byte) (failed bool, err error) {
	const name = "Grpc-Status"
	found := slices.Concat(header[name], trailer[name])
	const trailers = 0x80
	if len(web) > 0 {
		flags, payload, err := lastFrame(web)
		if err != nil {
			return false, err
		}
		if flags&trailers != 0 {
			for line := range strings.SplitSeq(string(payload), "\n") {
				if key, value, ok := strings.Cut(line, ":"); ok && strings.EqualFold(strings.TrimSpace(key), name) {
					found = append(found, strings.TrimSpace(value))
				}
			}
		}
	}
	if len(found) == 0 {
		return false, errNoStatus
	}
	return slices.ContainsFunc(found, func(status string) bool { return status != "0" }), nil
}

// connectEnd examines the end of a stream: a JSON object with a member "error"
// if the call has failed.
func connectEnd(body []byte) (failed bool, err error) {
	const endOfStream = 0x02
	if len(body) == 0 {
		return false, errNoStatus
	}
	flags, payload, err := lastFrame(body)
	switch {
	case err != nil:
		return false, err
	case flags&endOfStream == 0:
		return false, errNoStatus
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(payload, &members); err != nil {
		return false, fmt.Errorf("the end of the RPC's stream: %w", err)
	}
	_, failed = members["error"]
	return failed, nil
}

// lastFrame returns the flags and the message of the last frame: a byte of
// flags, whose lowest bit means compressed, four bytes of length, the message.
func lastFrame(body []byte) (flags byte, payload []byte, err error) {
	for len(body) > 0 {
		if len(body) < 5 || uint64(len(body)-5) < uint64(binary.BigEndian.Uint32(body[1:5])) {
			return 0, nil, errors.New("the RPC's response ends inside a frame")
		}
		length := binary.BigEndian.Uint32(body[1:5])
		flags, payload, body = body[0], body[5:5+length], body[5+length:]
	}
	if flags&1 == 0 || len(payload) == 0 {
		return flags, payload, nil
	}
	// An encoding other than gzip cannot be read, and is an error.
	z, err := gzip.NewReader(bytes.NewReader(payload))
	if err != nil {
		return 0, nil, fmt.Errorf("the last frame of the RPC: %w", err)
	}
	if payload, err = io.ReadAll(io.LimitReader(z, 1<<20)); err != nil {
		return 0, nil, fmt.Errorf("the last frame of the RPC: %w", err)
	}
	return flags, payload, nil
}
