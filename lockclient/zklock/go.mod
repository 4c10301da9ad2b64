module github.com/fencepost-go/fencepost/lockclient/zklock

go 1.26.0

require (
	github.com/fencepost-go/fencepost v0.0.0
	github.com/go-zookeeper/zk v1.0.4
)

replace github.com/fencepost-go/fencepost => ../..
