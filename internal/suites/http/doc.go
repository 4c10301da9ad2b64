// Package httpsuite tests package httpfence behind proxies.
package httpsuite
