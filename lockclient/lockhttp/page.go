package lockhttp

import (
	"embed"
	"net/http"

	"github.com/go-chi/chi/v5"
)

// files are the operators' page: a client of the requests above, in the browser.
//
//go:embed ui
var files embed.FS

// servePage adds the operators' page. Its links are relative, so that the server can be
// mounted below a path.
func servePage(top chi.Router) {
	for path, name := range map[string]string{"/ui": "page.html", "/ui/page.css": "page.css", "/ui/page.js": "page.js"} {
		top.Get(path, func(w http.ResponseWriter, r *http.Request) {
			h := w.Header()
			h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("Referrer-Policy", "no-referrer")
			h.Set("Cache-Control", "no-store")
			writeInTime(w)
			http.ServeFileFS(w, r, files, "ui/"+name)
		})
	}
}
