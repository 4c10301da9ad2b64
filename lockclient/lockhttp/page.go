package lockhttp

import (
	"github.com/go-chi/chi/v5"

	"github.com/fencepost-go/fencepost/lockclient/driver"
)

type activity struct{}

func (a *activity) count(*Identity, error, *driver.HeldError) {}

func (s *Server) page(chi.Router) {}
