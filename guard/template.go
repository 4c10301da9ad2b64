package guard

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Template declares how the resources of one kind are named, once for every
// surface: "{tenant}:billing-close:{period}" (promise P9). The lease client asks
// it for a name, a table binds its variables to key columns, a route binds them
// to parameters, and all of them produce the same bytes.
//
// It has components, separated by ":". Each is either literal text, which is not empty and
// has no "{", "}", "%" or control character, or one variable: a name in braces, an ASCII
// letter or "_" followed by letters, digits and "_", which occurs once. A variable may have
// a type, which restricts its values to one spelling:
//
//	{period}        any text of at least one byte
//	{invoice:int}   a decimal int64: 7, -7, 0; not 07, +7, -0
//	{account:uuid}  a UUID in lower case: 67e55044-10b1-426f-9247-bb680e5fe0c8
//
// Two names are equal if their bytes are: in an untyped variable "a" and "A", "7" and "07",
// and the two Unicode forms of "é" are different resources. In a value, "%" becomes "%25"
// and ":" becomes "%3A", so different values never give the same name. Two different
// templates can: "{a}:{b}" and "{a}:x" both name "1:x". Give each kind a literal of its own.
//
// It is immutable and safe for concurrent use. The zero value is not usable; call
// [NewTemplate].
type Template struct {
	text  string
	parts []TemplatePart
	names []string // the variables, in the order of the text
}

// TemplatePart is one component of a [Template].
type TemplatePart struct {
	// Literal is the text of a literal component; empty for a variable.
	Literal string
	// Variable is the name of a variable; empty for a literal.
	Variable string
	// Type is the type of a variable: [TypeText], [TypeInt] or [TypeUUID].
	Type string
}

// The types of a template's variables.
const (
	TypeText = ""
	TypeInt  = "int"
	TypeUUID = "uuid"
)

// Must returns v, or panics if err is not nil. It is for declarations that fail
// only if the program itself is wrong:
//
//	var closes = guard.Must(guard.NewTemplate("{tenant}:billing-close:{period}"))
func Must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// NewTemplate parses text. The error is an [*InvalidError] for the field
// "template".
func NewTemplate(text string) (*Template, error) {
	invalid := func(problem string) (*Template, error) { return nil, Invalid("template", text, problem) }
	if err := validateText("template", text, 1, MaxResourceLen); err != nil {
		return nil, err
	}
	t := &Template{text: text}
	for rest, more := text, true; more; {
		var part string
		part, rest, more = cutComponent(rest)
		if !strings.HasPrefix(part, "{") {
			switch {
			case part == "":
				return invalid("has an empty component")
			case strings.ContainsAny(part, "{}"):
				return invalid("mixes a literal and a variable in the component " + strconv.Quote(part) + "; separate them with \":\"")
			case strings.Contains(part, "%"):
				return invalid("has a \"%\" in the literal " + strconv.Quote(part))
			}
			t.parts = append(t.parts, TemplatePart{Literal: part})
			continue
		}
		inner, closed := strings.CutSuffix(part[1:], "}")
		if !closed || strings.ContainsAny(inner, "{}") {
			return invalid("the component " + strconv.Quote(part) + " is not one variable in braces")
		}
		name, kind, typed := strings.Cut(inner, ":")
		if !isVariable(name) {
			return invalid("the variable " + strconv.Quote(name) + " is not a letter or \"_\" followed by letters, digits and \"_\"")
		}
		if typed && kind != TypeInt && kind != TypeUUID {
			return invalid("the variable " + strconv.Quote(name) + " has the unknown type " + strconv.Quote(kind) + "; the types are int and uuid")
		}
		for _, other := range t.names {
			if other == name {
				return invalid("the variable " + strconv.Quote(name) + " occurs twice")
			}
		}
		t.names = append(t.names, name)
		t.parts = append(t.parts, TemplatePart{Variable: name, Type: kind})
	}
	return t, nil
}

// cutComponent splits s after its first component. A ":" inside braces belongs
// to the variable's type.
func cutComponent(s string) (component, rest string, more bool) {
	depth := 0
	for i := range len(s) {
		switch s[i] {
		case '{':
			depth++
		case '}':
			depth--
		case ':':
			if depth <= 0 {
				return s[:i], s[i+1:], true
			}
		}
	}
	return s, "", false
}

func isVariable(name string) bool {
	for i, c := range []byte(name) {
		letter := c == '_' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
		if !letter && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return name != ""
}

// Name returns the name of the resource with these values, one for each
// variable in the order of the template's text.
//
// The name is empty and the error an [*InvalidError] if the number of values
// is wrong, if a value is empty, is not valid UTF-8, has a control character
// or does not have its variable's type, or if the name would be longer than
// [MaxResourceLen]. Its field names the variable.
func (t *Template) Name(values ...string) (string, error) {
	if len(values) != len(t.names) {
		return "", Invalid("values", strings.Join(values, ", "),
			"template "+t.text+" has "+itoa(len(t.names))+" variables, given are "+itoa(len(values)))
	}
	size, next, longest := len(t.parts)-1, 0, 0
	for _, p := range t.parts {
		if p.Variable == "" {
			size += len(p.Literal)
			continue
		}
		v := values[next]
		if problem := p.problem(v); problem != "" {
			return "", Invalid(p.field(), v, problem)
		}
		if escapedLen(v) > escapedLen(values[longest]) {
			longest = next
		}
		size += escapedLen(v)
		next++
	}
	if size > MaxResourceLen { // only values can make it so long
		return "", Invalid("template variable "+t.names[longest], values[longest],
			"makes the resource "+itoa(size)+" bytes long, at most "+itoa(MaxResourceLen)+" are allowed")
	}
	var b strings.Builder
	b.Grow(size)
	next = 0
	for i, p := range t.parts {
		if i > 0 {
			b.WriteByte(':')
		}
		if p.Variable == "" {
			b.WriteString(p.Literal)
			continue
		}
		writeEscaped(&b, values[next])
		next++
	}
	return b.String(), nil
}

// Match returns the values from which [Template.Name] built name, in the order
// of the variables. The error is an [*InvalidError] for the field "resource" if
// the template cannot give that name.
func (t *Template) Match(name string) ([]string, error) {
	if err := ValidateResource(name); err != nil {
		return nil, err
	}
	components := strings.Split(name, ":")
	if len(components) != len(t.parts) {
		return nil, Invalid("resource", name, "has "+itoa(len(components))+" components, template "+t.text+" has "+itoa(len(t.parts)))
	}
	values := make([]string, 0, len(t.names))
	for i, p := range t.parts {
		if p.Variable == "" {
			if components[i] != p.Literal {
				return nil, Invalid("resource", name, "does not match template "+t.text+": component "+itoa(i+1)+" is not "+strconv.Quote(p.Literal))
			}
			continue
		}
		v, ok := unescaped(components[i])
		if !ok {
			return nil, Invalid("resource", name, "has an escape in component "+itoa(i+1)+" other than %25 and %3A")
		}
		if problem := p.problem(v); problem != "" {
			return nil, Invalid("resource", name, "does not match template "+t.text+": "+p.Variable+" "+problem)
		}
		values = append(values, v)
	}
	return values, nil
}

// Variables returns the names of the variables in the order of the text. The
// slice is the caller's.
func (t *Template) Variables() []string { return append([]string(nil), t.names...) }

// Parts returns the components in the order of the text. The slice is the
// caller's.
func (t *Template) Parts() []TemplatePart { return append([]TemplatePart(nil), t.parts...) }

// String returns the text that the template was parsed from.
func (t *Template) String() string { return t.text }

// CheckVariables checks that bound names each variable of the template exactly
// once, in any order. A surface calls it when it is constructed, with the
// variables for which it has a source. The error is an [*InvalidError] for the
// field "template variable" whose value is the variable that is missing,
// unknown or bound twice.
func (t *Template) CheckVariables(bound ...string) error {
	seen := make(map[string]bool, len(bound))
	for _, name := range bound {
		if seen[name] {
			return Invalid("template variable", name, "is bound twice")
		}
		seen[name] = true
	}
	for _, name := range t.names {
		if !seen[name] {
			return Invalid("template variable", name, "of template "+t.text+" is not bound to anything: name its source (TableOptions.Columns, Bindings, KeyPattern)")
		}
		delete(seen, name)
	}
	for _, name := range bound {
		if seen[name] {
			return Invalid("template variable", name, "is not in template "+t.text)
		}
	}
	return nil
}

func (p TemplatePart) field() string { return "template variable " + p.Variable }

// problem returns why v cannot be the value of the variable, or "".
func (p TemplatePart) problem(v string) string {
	switch {
	case v == "":
		return "must not be empty"
	case p.Type == TypeInt:
		if n, err := strconv.ParseInt(v, 10, 64); err != nil || strconv.FormatInt(n, 10) != v {
			return "must be a decimal int64 without leading zeros or a plus sign"
		}
	case p.Type == TypeUUID:
		if !isUUID(v) {
			return "must be a UUID in lower case with hyphens"
		}
	case !utf8.ValidString(v):
		return "must be valid UTF-8"
	case strings.ContainsFunc(v, unicode.IsControl):
		return "must not contain control characters"
	}
	return ""
}

// isUUID accepts the spelling that PostgreSQL's type uuid prints (RFC 9562
// section 4, in lower case).
func isUUID(s string) bool {
	if len(s) != 36 {
		return false
	}
	for i, c := range []byte(s) {
		switch i {
		case 8, 13, 18, 23:
			if c != '-' {
				return false
			}
		default:
			if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
				return false
			}
		}
	}
	return true
}

func escapedLen(v string) int { return len(v) + 2*strings.Count(v, "%") + 2*strings.Count(v, ":") }

func writeEscaped(b *strings.Builder, v string) {
	for i := range len(v) {
		switch v[i] {
		case '%':
			b.WriteString("%25")
		case ':':
			b.WriteString("%3A")
		default:
			b.WriteByte(v[i])
		}
	}
}

// unescaped returns the value that writeEscaped turns into s, if there is one.
func unescaped(s string) (string, bool) {
	if !strings.Contains(s, "%") {
		return s, true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] != '%':
			b.WriteByte(s[i])
		case strings.HasPrefix(s[i:], "%25"):
			b.WriteByte('%')
			i += 2
		case strings.HasPrefix(s[i:], "%3A"):
			b.WriteByte(':')
			i += 2
		default:
			return "", false
		}
	}
	return b.String(), true
}
