// Command httpadmit is a chi service that admits claims at the door and fences its
// write, as the documentation of httpfence requires.
//
//	go run ./examples/httpadmit                        shows what a client sees, and ends
//	go run ./examples/httpadmit -listen 127.0.0.1:8080 serves until interrupted
//
// The code to copy is in service.go.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/fencepost-go/fencepost/examples/internal/demo"
	"github.com/fencepost-go/fencepost/guard"
	"github.com/fencepost-go/fencepost/httpfence"
)

func main() {
	listen := flag.String("listen", "", "serve on this address instead of showing the story")
	flag.Parse()
	demo.Main(0, func(ctx context.Context, out io.Writer) error { return run(ctx, *listen, out) })
}

func run(ctx context.Context, listen string, out io.Writer) error {
	pool, cleanup, err := demo.Pool(ctx)
	if err != nil {
		return err
	}
	defer cleanup()
	s, err := newService(ctx, pool)
	if err != nil {
		return err
	}
	address := listen
	if address == "" {
		address = "127.0.0.1:0"
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: s.handler(), ReadTimeout: 10 * time.Second}
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	defer func() { _ = server.Close() }()

	base := "http://" + listener.Addr().String()
	if listen != "" {
		fmt.Fprintf(out, "curl -i -X POST -H '%s: 1' -H '%s: a' -H '%s: account:acme' %s/accounts/acme/deposits/5\n",
			httpfence.TokenHeader, httpfence.LeaseHeader, httpfence.ResourceHeader, base)
		select {
		case <-ctx.Done():
			return nil
		case err := <-served:
			return err
		}
	}
	return story(ctx, base, out)
}

// story shows what two holders see after one of them was cut off.
func story(ctx context.Context, base string, out io.Writer) error {
	transport, err := httpfence.NewTransport(nil, []string{base}, nil)
	if err != nil {
		return err
	}
	client := &http.Client{Transport: transport, Timeout: time.Minute}
	defer client.CloseIdleConnections()
	deposit := func(token guard.Token) (string, error) {
		ctx := guard.WithClaim(ctx, guard.Claim{Resource: "account:acme", Token: token, LeaseID: "lease-" + token.String()})
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, base+"/accounts/acme/deposits/5", nil)
		if err != nil {
			return "", err
		}
		resp, err := httpfence.Do(client, req)
		if err != nil {
			return "", err
		}
		defer func() { _ = resp.Body.Close() }()
		body, err := io.ReadAll(resp.Body)
		return string(body), err
	}
	for _, step := range []struct {
		token guard.Token
		want  error
	}{{10, nil}, {11, nil}, {10, guard.ErrStale}, {11, nil}} {
		balance, err := deposit(step.token)
		if !errors.Is(err, step.want) {
			return fmt.Errorf("token %v: %w, expected %v", step.token, err, step.want)
		}
		if err != nil {
			fmt.Fprintf(out, "token %v: %v\n", step.token, err)
			continue
		}
		fmt.Fprintf(out, "token %v: %s\n", step.token, balance)
	}
	return nil
}
