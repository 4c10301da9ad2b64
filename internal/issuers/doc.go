// Package issuers tests lockclient/redislock and lockclient/etcdlock on real
// servers: redis-server as a process of its own, etcd embedded. It is a module of
// its own, so that neither a client of Redis nor the server of etcd gets into the
// module graph of those who use an issuer.
package issuers
