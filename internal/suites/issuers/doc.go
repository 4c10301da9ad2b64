// Package issuers tests lockclient/redislock, lockclient/etcdlock and
// lockclient/zklock on real servers, which package servers starts; package
// failover takes these down. It is a module of its own, so that neither a Redis
// client nor the etcd server gets into the module graph of an issuer's users.
package issuers
