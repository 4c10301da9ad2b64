//go:build unix

// Package gateway builds and runs real S3 stores for tests: versitygw, MinIO
// and rclone.
//
//	g := gateway.Start(t, gateway.Versitygw)
//	// point an S3 client at g.URL, path-style, with g.AccessKeyID and g.SecretAccessKey
//
// A store is built once from its Go module, at the version that its [Product]
// names, and its binary is kept below the user's cache directory. The process
// listens on 127.0.0.1 and ends with the test.
package gateway

import (
	"crypto/rand"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fencepost-go/fencepost/internal/process"
)

// Gateway is a running store. It can be killed, and started again on its data.
type Gateway struct {
	// URL is the endpoint; buckets are addressed by path.
	URL             string
	Region          string
	AccessKeyID     string
	SecretAccessKey string

	*process.Server
}

// Start runs a store until the test ends. Its data are in TMPDIR or else in
// /var/tmp: versitygw needs a file system with extended attributes, which the one
// of /tmp may lack.
func Start(t process.TB, product Product) *Gateway {
	t.Helper()
	binary, err := product.Binary()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(place(), "fencepost-store-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Mkdir(filepath.Join(dir, "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	address := process.FreeAddr(t)
	g := &Gateway{URL: "http://" + address, Region: "us-east-1", AccessKeyID: "fencepost", SecretAccessKey: rand.Text()}
	args, env := product.run(g, address, filepath.Join(dir, "data"))
	g.Server = process.Serve(t, &process.Server{Addr: address, Dir: dir, Command: append([]string{binary}, args...),
		Env: append(env, "HOME="+dir, "TMPDIR="+dir), Ready: g.ready}).Await()
	return g
}

func place() string {
	if dir := os.Getenv("TMPDIR"); dir != "" {
		return dir
	}
	return "/var/tmp"
}

// ready reports whether the store takes requests.
func (g *Gateway) ready() error {
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: 5 * time.Second}
	response, err := client.Get(g.URL)
	if err != nil {
		return err
	}
	response.Body.Close()
	if response.StatusCode == http.StatusServiceUnavailable { // MinIO's word for "starting"
		return fmt.Errorf("%s responds with %s", g.URL, strings.ToLower(response.Status))
	}
	return nil
}
