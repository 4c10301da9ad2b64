module github.com/fencepost-go/fencepost/examples/connect

go 1.26.0

require (
	connectrpc.com/connect v1.21.1
	github.com/fencepost-go/fencepost v0.0.0
	google.golang.org/protobuf v1.36.11
)

require github.com/go-chi/chi/v5 v5.5.0 // indirect

replace github.com/fencepost-go/fencepost => ../..
