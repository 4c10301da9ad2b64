package lockhttp

import (
	"bytes"
	"cmp"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/fencepost-go/fencepost/lockclient/driver"
	"github.com/fencepost-go/fencepost/lockclient/internal/input"
)

//go:embed ui
var files embed.FS

// templates are those of the operators' page.
var templates = template.Must(template.New("").Funcs(template.FuncMap{"clock": clock}).ParseFS(files, "ui/page.html"))

// clock writes a duration as minutes and seconds.
func clock(s seconds) string {
	n := int64(time.Duration(s) / time.Second)
	if n < 3600 {
		return fmt.Sprintf("%d:%02d", n/60, n%60)
	}
	return fmt.Sprintf("%d:%02d:%02d", n/3600, n/60%60, n%60)
}

const (
	// cookieName is the cookie of a signed-in user. It carries the bearer
	// token, and only the page's own paths read it: no other request is
	// authenticated by a cookie.
	cookieName = "fencepost_page"
	// shownMost is how many locks the page shows.
	shownMost = 200
	// formMost bounds the size of a form.
	formMost = 16 << 10
)

// notVerified is what the page says if credentials can be neither accepted nor refused.
const notVerified = "Your identity could not be verified. Try again."

// titles are the headings of the pages, by their templates.
var titles = map[string]string{"sign-in": "Sign in", "locks": "Locks", "confirm": "Force-unlock", "done": "Force-unlocked"}

// view is what the templates show.
type view struct {
	Title    string
	Assets   string // the path to what is below /ui
	Home     string // the path to /ui
	Identity *Identity
	Operator bool
	Problem  string

	Filter  string
	State   string // held, expired, free or all
	States  []string
	Status  string
	Columns []string
	Locks   []lockBody
	More    bool
	Audit   []recordBody

	Lock                     lockBody
	Raises                   bool
	Actor, Reason, RequestID string
	Repeats                  bool // the form repeats a request whose outcome is unknown
	Done                     unlockedBody
}

// page adds the operators' page. Its links are relative, so that the server can
// be mounted below a path.
func (s *Server) page(top chi.Router) {
	top.Group(func(r chi.Router) {
		r.Use(pageHeaders)
		r.Get("/ui", s.signedIn("ui/", "ui", s.show("locks")))
		r.Get("/ui/live", s.signedIn("ui/", "ui", s.show("live"))) // shown within /ui
		r.Get("/ui/force-unlock", s.signedIn("", "../ui", s.confirmUnlock))
		for _, name := range []string{"page.css", "page.js"} {
			r.Get("/ui/"+name, func(w http.ResponseWriter, r *http.Request) {
				writeInTime(w)
				http.ServeFileFS(w, r, files, "ui/"+name)
			})
		}
		// Forms of other sites are refused here.
		r.Group(func(r chi.Router) {
			r.Use(http.NewCrossOriginProtection().Handler)
			r.Post("/ui/sign-in", s.signIn)
			r.Post("/ui/sign-out", signOut)
			r.Post("/ui/force-unlock", s.signedIn("", "../ui", s.unlockByForm))
		})
	})
}

func pageHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

func (s *Server) render(w http.ResponseWriter, status int, name string, v *view) {
	v.Title = titles[name]
	var page bytes.Buffer
	if err := templates.ExecuteTemplate(&page, name, v); err != nil {
		http.Error(w, "The page could not be made.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	writeInTime(w)
	w.WriteHeader(status)
	_, _ = w.Write(page.Bytes()) // if this fails, the reader has gone
}

// byCookie returns the request with the bearer token of its cookie, if any.
func byCookie(r *http.Request) *http.Request {
	cookie, err := r.Cookie(cookieName)
	if err != nil {
		return r
	}
	token, err := base64.RawURLEncoding.DecodeString(cookie.Value)
	if err != nil {
		return r
	}
	return withToken(r, string(token))
}

func withToken(r *http.Request, token string) *http.Request {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+token)
	return r
}

// signedIn makes h show a page to signed-in users, and asks others to sign in.
func (s *Server) signedIn(assets, home string, h func(http.ResponseWriter, *http.Request, *view)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v := &view{Assets: assets, Home: home, Raises: s.opts.Raise != nil}
		id, err := s.identify(byCookie(r))
		if err != nil {
			if _, had := r.Cookie(cookieName); had == nil {
				v.Problem = "You are no longer signed in."
			}
			status := kindOf(err).status
			if status != http.StatusUnauthorized {
				v.Problem = notVerified
			}
			s.render(w, status, "sign-in", v)
			return
		}
		v.Identity, v.Operator = id, id.Operator
		h(w, r, v)
	}
}

func (s *Server) signIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, formMost)
	token := strings.TrimSpace(r.PostFormValue("token"))
	_, err := s.identify(withToken(r, token))
	switch status := kindOf(err).status; {
	case token == "", err != nil && status == http.StatusUnauthorized:
		s.render(w, http.StatusUnauthorized, "sign-in", &view{Home: "../ui", Problem: "This token is not accepted."})
		return
	case err != nil:
		s.render(w, status, "sign-in", &view{Home: "../ui", Problem: notVerified})
		return
	}
	setCookie(w, r, base64.RawURLEncoding.EncodeToString([]byte(token)), 0)
}

func signOut(w http.ResponseWriter, r *http.Request) {
	setCookie(w, r, "", -1)
}

// setCookie leads back to the page with a cookie. It sets no Path: a browser uses the
// directory that it sent the form to, which is the page's, wherever the server is
// mounted. Only the browser knows whether it speaks TLS, to this server or to a proxy:
// the Origin of its form says so.
func setCookie(w http.ResponseWriter, r *http.Request, value string, age int) {
	secure := r.TLS != nil || !strings.HasPrefix(r.Header.Get("Origin"), "http://")
	w.Header().Set("Location", "../ui")
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: value, MaxAge: age, HttpOnly: true, Secure: secure, SameSite: http.SameSiteStrictMode})
	w.WriteHeader(http.StatusSeeOther)
}

// show shows the locks: the whole page, or "live", the part that the script refreshes.
// The script keeps what it has unless the response is 200.
func (s *Server) show(name string) func(http.ResponseWriter, *http.Request, *view) {
	return func(w http.ResponseWriter, r *http.Request, v *view) {
		status := http.StatusOK
		if err := s.survey(r, v); err != nil {
			k := kindOf(err)
			status = k.status
			v.Problem = "The locks could not be listed: " + k.detail
			if k == &kindUnavailable || k == &kindUnknown {
				v.Problem = "The issuer does not respond. Nothing is known of its locks."
			}
		}
		s.render(w, status, name, v)
	}
}

// survey fills in what the page shows.
func (s *Server) survey(r *http.Request, v *view) error {
	v.Filter, v.State = r.FormValue("filter"), cmp.Or(r.FormValue("state"), string(driver.StateHeld))
	v.States = []string{string(driver.StateHeld), string(driver.StateExpired), string(driver.StateFree), "all"}
	v.Columns = []string{"Resource", "Owner", "Metadata", "Token", "Held for", "Expires in", "Waiting"}
	if v.Operator {
		v.Columns = append(v.Columns, "Action")
	}
	if s.opts.Admin == nil {
		v.Problem = "This server has no operator API: nothing can be listed."
		return nil
	}
	var words []string // none means all
	if v.State != "all" {
		words = []string{v.State}
	}
	states, err := statesOf(words)
	if err != nil {
		return err
	}
	locks, next, err := s.listed(r.Context(), v.Identity, selection{limit: shownMost, states: states})
	if err == nil && next != "" && v.Filter != "" {
		if more, rest, err := s.listed(r.Context(), v.Identity, selection{prefix: v.Filter, limit: shownMost, states: states}); err == nil && len(more) > 0 {
			locks, next = more, rest
		}
	}
	if err == nil && v.Operator {
		v.Audit, _, err = s.audited(r.Context(), v.Identity, selection{limit: 20})
	}
	if err != nil {
		return err
	}
	for _, l := range locks {
		if strings.Contains(strings.ToLower(l.Resource+"\n"+l.Owner+"\n"+l.Metadata), strings.ToLower(v.Filter)) {
			v.Locks = append(v.Locks, l)
		}
	}
	v.More = next != ""
	v.Status = fmt.Sprintf("%d locks shown", len(v.Locks))
	if len(v.Locks) == 1 {
		v.Status = "1 lock shown"
	}
	return nil
}

func (s *Server) confirmUnlock(w http.ResponseWriter, r *http.Request, v *view) {
	v.RequestID = input.NewLeaseID()
	s.confirm(w, r, v, r.FormValue("resource"), http.StatusOK)
}

// confirm shows what is about to be cut.
func (s *Server) confirm(w http.ResponseWriter, r *http.Request, v *view, resource string, status int) {
	err := s.mayUnlock(v.Identity, resource)
	var info driver.LeaseInfo
	if err == nil {
		info, err = s.lease(r.Context(), resource)
	}
	if err != nil && status == http.StatusOK {
		k := kindOf(err)
		http.Error(w, k.detail, k.status)
		return
	}
	if err != nil { // what happened before is what counts
		info = driver.LeaseInfo{Resource: resource, State: driver.StateHeld}
	}
	if seen := r.URL.Query().Get("leaseId"); seen != "" && seen != info.LeaseID && v.Problem == "" {
		v.Problem = "The lease is another one than you chose: look again before you cut it."
	}
	v.Lock = s.lock(info, v.Identity)
	if v.Repeats {
		v.Lock.LeaseID = r.PostFormValue("leaseId") // another one was not chosen
	}
	s.render(w, status, "confirm", v)
}

func (s *Server) unlockByForm(w http.ResponseWriter, r *http.Request, v *view) {
	r.Body = http.MaxBytesReader(w, r.Body, formMost)
	resource := r.PostFormValue("resource")
	v.Actor, v.Reason, v.RequestID = r.PostFormValue("actor"), r.PostFormValue("reason"), r.PostFormValue("requestId")
	if r.PostFormValue("confirm") != resource {
		v.Problem = "Nothing was done: what you typed is not the resource's name."
		s.confirm(w, r, v, resource, http.StatusBadRequest)
		return
	}
	// A lease that was free when it was shown has no ID to expect.
	if r.PostFormValue("leaseId") == "" && s.mayUnlock(v.Identity, resource) == nil {
		info, err := s.lease(r.Context(), resource)
		if err != nil {
			v.Problem = "Nothing was cut: whether the lease is still free is not known. " + kindOf(err).detail
			s.confirm(w, r, v, resource, kindOf(err).status)
			return
		}
		if info.LeaseID != "" {
			v.Problem = "Nothing was cut: somebody has the lease by now. Look again before you cut it."
			s.confirm(w, r, v, resource, http.StatusConflict)
			return
		}
	}
	done, err := s.unlock(r.Context(), v.Identity, resource, v.Actor, strings.Join(strings.Fields(v.Reason), " "),
		&driver.ForceUnlockOptions{ExpectedLeaseID: r.PostFormValue("leaseId"), RequestID: v.RequestID})
	if err == nil {
		v.Done = done
		s.render(w, http.StatusOK, "done", v)
		return
	}
	switch k := kindOf(err); k {
	case &kindUnknown, &kindInternal:
		v.Repeats = true
		v.Problem = "It is not known whether it was done. Send the form again: it is carried out once."
	case &kindChanged:
		v.Problem = "Nothing was done: the lease is another one by now. Look again before you cut it."
	case &kindInvalid:
		v.Problem = "Nothing was done: " + strings.TrimPrefix(err.Error(), "fencepost: ")
	default:
		v.Problem = "Nothing was done: " + k.detail
	}
	s.confirm(w, r, v, resource, kindOf(err).status)
}
