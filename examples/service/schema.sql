CREATE TABLE periods (
  tenant text, period text, version int NOT NULL DEFAULT 1,
  PRIMARY KEY (tenant, period)
);
-- Whoever writes an invoice has locked its period's row, so that id is the order in
-- which invoices took effect.
CREATE TABLE invoices (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant text NOT NULL, period text NOT NULL, cents bigint NOT NULL, token bigint NOT NULL
);
-- A key belongs to a tenant; the response is stored with the work that it is of.
CREATE TABLE idempotency_keys (
  tenant text, key text, fingerprint bytea NOT NULL, status int NOT NULL, body text NOT NULL,
  PRIMARY KEY (tenant, key)
);
INSERT INTO periods (tenant, period) VALUES ('tenant_1', '2026-04'), ('tenant_2', '2026-04');
