module github.com/fencepost-go/fencepost/examples/connect

go 1.26.0

require (
	connectrpc.com/connect v1.21.1
	github.com/fencepost-go/fencepost v0.0.0
	github.com/fencepost-go/fencepost/httpfence/grpcfence v0.0.0
	google.golang.org/protobuf v1.36.12
)

require (
	github.com/go-chi/chi/v5 v5.5.0 // indirect
	golang.org/x/net v0.60.0 // indirect
	golang.org/x/sys v0.48.0 // indirect
	golang.org/x/text v0.42.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/grpc v1.85.0 // indirect
)

replace github.com/fencepost-go/fencepost => ../..

replace github.com/fencepost-go/fencepost/httpfence/grpcfence => ../../httpfence/grpcfence
