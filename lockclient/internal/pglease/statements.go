package pglease

// Each of these is one call, in a transaction of its own, of a function that the
// schema describes. Their types are schema-qualified: the caller's search_path
// may have others of these names.
const (
	// settings is a column of the statements whose results have times, or whose
	// commits may wait for a synchronous standby. Sessions may have any settings:
	// times are to come as the driver reads them, and the warning that the wait for
	// the standby was cancelled is to come at all. The column says whether there is
	// such a standby.
	settings = `pg_catalog.set_config('DateStyle', 'ISO', true) IS NOT NULL AND pg_catalog.set_config('client_min_messages', 'warning', true) IS NOT NULL
  AND ` + standby + ` AS standby`
	standby    = `pg_catalog.current_setting('synchronous_standby_names') OPERATOR(pg_catalog.<>) ''`
	standbySQL = `SELECT ` + standby

	acquireSQL = `SELECT *, ` + settings + ` FROM fencepost.acquire($1::pg_catalog.text[], $2::pg_catalog.text[], $3::pg_catalog.text[], $4::pg_catalog.text[],
  $5::bigint[], $6::pg_catalog.timestamptz[], $7::boolean[], $8::pg_catalog.text, $9::pg_catalog.text, $10::pg_catalog.timestamptz, $11::bigint)`
	renewSQL   = `SELECT *, ` + settings + ` FROM fencepost.renew($1::pg_catalog.text[], $2::pg_catalog.text[], $3::bigint[], $4::bigint[], $5::pg_catalog.text)`
	releaseSQL = `SELECT * FROM fencepost.release($1::pg_catalog.text[], $2::pg_catalog.text[], $3::bigint[], $4::pg_catalog.text[], $5::pg_catalog.text)`
	spendSQL   = `SELECT *, ` + settings + ` FROM fencepost.spend($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.text)`
	watchSQL   = `SELECT *, ` + settings + ` FROM fencepost.watch($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, $4::pg_catalog.text)`
	unwatchSQL = `SELECT fencepost.unwatch($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text)`
	// forceUnlockedSQL returns who ended a lease; no row, or a refusal, if nobody
	// is known to have ended it.
	forceUnlockedSQL = `SELECT *, ` + settings + ` FROM fencepost.force_unlocked($1::pg_catalog.text, $2::pg_catalog.text, $3::bigint) AS f WHERE f.o_actor IS NOT NULL`
	// timeSQL returns the server's time.
	timeSQL = `SELECT pg_catalog.clock_timestamp(), ` + settings
)
