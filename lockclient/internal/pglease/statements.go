package pglease

// Each of these is one call, in a transaction of its own, of a function that the
// schema describes. Their types are schema-qualified: the caller's search_path
// may have others of these names.
const (
	acquireSQL = `SELECT * FROM fencepost.acquire($1::pg_catalog.text[], $2::pg_catalog.text[], $3::pg_catalog.text[], $4::pg_catalog.text[],
  $5::bigint[], $6::pg_catalog.timestamptz[], $7::boolean[], $8::pg_catalog.text, $9::pg_catalog.text, $10::pg_catalog.timestamptz, $11::bigint)`
	renewSQL   = `SELECT * FROM fencepost.renew($1::pg_catalog.text[], $2::pg_catalog.text[], $3::bigint[], $4::bigint[], $5::pg_catalog.text)`
	releaseSQL = `SELECT * FROM fencepost.release($1::pg_catalog.text[], $2::pg_catalog.text[], $3::bigint[], $4::pg_catalog.text[], $5::pg_catalog.text)`
	spendSQL   = `SELECT * FROM fencepost.spend($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.text)`
	watchSQL   = `SELECT * FROM fencepost.watch($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.text)`
	// forceUnlockedSQL returns who ended a lease; no row, or a refusal, if nobody
	// is known to have ended it.
	forceUnlockedSQL = `SELECT * FROM fencepost.force_unlocked($1::pg_catalog.text, $2::pg_catalog.text, $3::bigint) AS f WHERE f.o_actor IS NOT NULL`
	notifySQL        = `SELECT pg_catalog.pg_notify($1::pg_catalog.text, $2::pg_catalog.text)`
	// timeSQL returns the server's time.
	timeSQL = `SELECT pg_catalog.clock_timestamp()`
)
