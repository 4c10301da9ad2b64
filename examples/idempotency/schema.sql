CREATE TABLE periods (
  tenant text, period text, version int NOT NULL DEFAULT 1,
  PRIMARY KEY (tenant, period)
);
CREATE TABLE invoices (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant text NOT NULL, period text NOT NULL, cents bigint NOT NULL, token bigint NOT NULL
);
-- A key belongs to a tenant. The token says who works on it and does not belong to
-- what is asked for; the attempt tells two tries under one token apart.
-- status and body are NULL until the work is done.
CREATE TABLE idempotency_keys (
  tenant text, key text,
  fingerprint bytea NOT NULL,
  token bigint NOT NULL,
  attempt int NOT NULL DEFAULT 1,
  started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  status int, body text,
  PRIMARY KEY (tenant, key)
);
