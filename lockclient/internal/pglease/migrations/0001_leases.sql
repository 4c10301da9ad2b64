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
  CONSTRAINT leases_pkey PRIMARY KEY (resource),
  CONSTRAINT leases_resource_length CHECK (octet_length(resource) <= 512),
  CONSTRAINT leases_token_range CHECK (token BETWEEN 1 AND 9223372036854775806),
  CONSTRAINT leases_lease_id_length CHECK (octet_length(lease_id) BETWEEN 1 AND 128),
  CONSTRAINT leases_expires_at_finite CHECK (expires_at < 'infinity'),
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
