package input

import (
	"strconv"
	"strings"

	"github.com/fencepost-go/fencepost/guard"
)

// Namespace confines a client or an operator to the resources of one tenant;
// the zero value is not confined. It is the escaped name with the separator,
// "tenant_123:".
//
// The escaped name has no separator in it, so the first one in a resource ends
// the namespace: no two pairs of namespace and name make the same resource,
// whatever the names contain. The name itself is appended unchanged, so that a
// name made by guard.JoinResource(a, b) becomes guard.JoinResource(namespace,
// a, b).
type Namespace string

// NewNamespace escapes a tenant's name; the error is an InvalidError about field.
func NewNamespace(field, name string) (Namespace, error) {
	if name == "" {
		return "", nil
	}
	escaped, err := guard.JoinResource(name)
	if err != nil {
		return "", guard.Invalid(field, name, "must be a valid resource component of at most "+strconv.Itoa(maxNamespace)+" bytes when escaped")
	}
	if len(escaped) > maxNamespace {
		return "", guard.Invalid(field, name, "is "+strconv.Itoa(len(escaped))+" bytes long when escaped, at most "+strconv.Itoa(maxNamespace)+" are allowed")
	}
	return Namespace(escaped + ":"), nil
}

// maxNamespace leaves half of a resource for the name.
const maxNamespace = guard.MaxResourceLen / 2

// Resource returns the resource that name stands for.
func (n Namespace) Resource(name string) (string, error) {
	if err := guard.ValidateResource(name); err != nil || n == "" {
		return name, err
	}
	if full := len(n) + len(name); full > guard.MaxResourceLen {
		return "", guard.Invalid("resource", name, "is "+strconv.Itoa(full)+" bytes long with its namespace, at most "+
			strconv.Itoa(guard.MaxResourceLen)+" are allowed")
	}
	return string(n) + name, nil
}

// Name is the inverse of Resource, for resources that are in the namespace.
func (n Namespace) Name(resource string) string { return strings.TrimPrefix(resource, string(n)) }

// Everything refuses a confined client operations on all resources.
func (n Namespace) Everything(op string) error {
	if n == "" {
		return nil
	}
	return guard.Invalid("Options.Namespace", strings.TrimSuffix(string(n), ":"), op+" affects every resource, including those outside the namespace")
}
