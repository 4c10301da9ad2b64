module github.com/fencepost-go/fencepost/lockclient/redislock

go 1.26.0

require github.com/fencepost-go/fencepost v0.0.0

replace github.com/fencepost-go/fencepost => ../..
