// Package schema describes the table to ent. The package above it is what
// "go generate" made of it.
package schema

import (
	"entgo.io/ent"
	"entgo.io/ent/schema/field"
)

// Invoice is a row of the table invoices.
type Invoice struct{ ent.Schema }

// Fields are the columns.
func (Invoice) Fields() []ent.Field {
	return []ent.Field{field.Int64("id"), field.String("tenant"), field.Int64("cents")}
}
