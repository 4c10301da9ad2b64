// Package issuers tests lockclient/redislock, lockclient/etcdlock and
// lockclient/zklock on real servers, which package servers starts; package
// failover takes these down. It is a module of its own, so that neither a client
// of Redis nor the server of etcd gets into the module graph of those who use an
// issuer.
package issuers
