// Package sqlkit is what the packages of PostgreSQL's fence share: statements on
// either driver, quoted names, and guard's errors for those of the server.
package sqlkit
