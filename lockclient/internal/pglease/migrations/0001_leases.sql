-- One row per resource. A free row stays, because it holds the resource's last
-- token: deleting it would start the counter again at 1. The row of the
-- resource '' is no lease but the floor: every token granted on a resource that
-- has no row is above it.
CREATE TABLE fencepost.leases (
  resource    text COLLATE "C" NOT NULL,
  token       bigint           NOT NULL,
  lease_id    text             NULL,                        -- NULL: free
  owner       text             NOT NULL DEFAULT '',
  acquired_at timestamptz      NOT NULL DEFAULT '-infinity',
  expires_at  timestamptz      NOT NULL DEFAULT '-infinity',
  wake_until  timestamptz      NULL,                        -- until then somebody waits for the release
  waiters     text[]           NULL,                        -- processes, the longest waiting first
  kept_for    text             NULL,                        -- process that a lease is kept for which was released a moment ago
  metadata    text             NOT NULL DEFAULT '',         -- what the holder says of itself
  not_after   timestamptz      NULL,                        -- end of the attempt that was granted
  spent_until timestamptz      NULL,                        -- until then fencepost.spent may have lease IDs of the resource
  CONSTRAINT leases_pkey PRIMARY KEY (resource),
  CONSTRAINT leases_resource_length CHECK (octet_length(resource) <= 512),
  CONSTRAINT leases_token_range CHECK (token BETWEEN 1 AND 9223372036854775806),
  CONSTRAINT leases_lease_id_length CHECK (octet_length(lease_id) BETWEEN 1 AND 128),
  CONSTRAINT leases_expires_at_finite CHECK (expires_at < 'infinity'),
  CONSTRAINT leases_metadata_length CHECK (octet_length(metadata) <= 1000),
  CONSTRAINT leases_floor_is_free CHECK (resource <> '' OR lease_id IS NULL)
) WITH (
  -- Half of each page is left free and no changing column is indexed, so that
  -- an update stays on its page and touches no index.
  fillfactor = 50,
  -- Vacuum comes after a thousand updates rather than after a fifth of the
  -- table: few rows, changed all the time. Truncating takes a lock that
  -- renewals would wait for.
  vacuum_truncate = off,
  autovacuum_vacuum_scale_factor = 0.05,
  autovacuum_vacuum_threshold = 1000
);
COMMENT ON TABLE fencepost.leases IS 'Leases and their fencing tokens. Never delete a row by hand and never lower a token.';

-- Lease IDs that were abandoned: nothing is granted under them any more. No
-- attempt to acquire lives longer than an hour, so none is kept for longer.
CREATE TABLE fencepost.spent (
  resource text COLLATE "C" NOT NULL,
  lease_id text COLLATE "C" NOT NULL,
  until    timestamptz      NOT NULL DEFAULT clock_timestamp() + interval '1 hour',
  CONSTRAINT spent_pkey PRIMARY KEY (resource, lease_id)
);
COMMENT ON TABLE fencepost.spent IS 'Lease IDs that were abandoned, for an hour.';

-- is_spent is volatile, so that it sees what was committed while an acquire
-- waited for the row.
CREATE FUNCTION fencepost.is_spent(p_resource text, p_lease_id text)
RETURNS boolean LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN EXISTS (SELECT FROM fencepost.spent s WHERE s.resource = p_resource AND s.lease_id = p_lease_id);
END $$;
