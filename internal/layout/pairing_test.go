package layout

import "testing"

// TestPairing: to raise the schema's mark and then to write a row that compares
// with its own mark protects nothing, and does not compile; nor does the reverse.
func TestPairing(t *testing.T) {
	const table = "table := guard.Must(sqlrow.NewTable(parts, parts, closes, nil))\n"
	for code, compiles := range map[string]bool{
		table + "return table.Update(ctx, sqlrow.Pgx(pool), claim, sqlrow.Key{name}, sqlrow.Set{\"v\": 1})\n": true,
		table + "return table.Update(ctx, db, claim, sqlrow.Key{name}, sqlrow.Set{\"v\": 1})\n":               false,
		table + "return table.Raise(ctx, sqlrow.Pgx(pool), claim, sqlrow.Key{name}, nil)\n":                   true,
		table + "return table.Raise(ctx, db, claim, sqlrow.Key{name}, nil)\n":                                 false,
		"return db.Raise(ctx, claim)\n":               true,
		"return sqlrow.Pgx(pool).Raise(ctx, claim)\n": false,
		table + "return db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error { return table.Update(ctx, sqlrow.Pgx(tx), claim, sqlrow.Key{name}, nil) })\n": true,
		table + "return db.InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error { return table.Update(ctx, tx, claim, sqlrow.Key{name}, nil) })\n":             false,
		"return sqlrow.Pgx(pool).InTx(ctx, claim, func(ctx context.Context, tx pgx.Tx) error { return nil })\n":                                                       false,
	} {
		if err := compile(t, snippetHead, []string{code}); (err == nil) != compiles {
			t.Errorf("%s compiles: %v, %v", code, err == nil, err)
		}
	}
}
