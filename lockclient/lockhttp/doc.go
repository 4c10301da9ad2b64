// Package lockhttp is the lock server.
package lockhttp
