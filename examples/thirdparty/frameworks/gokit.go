package frameworks

import (
	"context"

	"github.com/go-kit/kit/endpoint"

	"github.com/fencepost-go/fencepost/httpfence"
)

// Kit is a middleware for endpoints of Go kit, whose handler is fenced as usual:
//
//	mux.Handle("POST /accounts/{id}/close", fence.InTx(kithttp.NewServer(Kit(closeAccount), decode, encode)))
//
// Go kit renders errors inside its handler, so InTx sees their statuses. InTx
// does not see a response that is a failure (endpoint.Failer) and that encode
// sends with 200: Kit votes for a rollback, and the client gets 500 or
// what the error stands for.
func Kit(next endpoint.Endpoint) endpoint.Endpoint {
	return func(ctx context.Context, request any) (any, error) {
		response, err := next(ctx, request)
		if f, ok := response.(endpoint.Failer); ok && err == nil && f.Failed() != nil {
			httpfence.Rollback(ctx, f.Failed())
		}
		return response, err
	}
}
