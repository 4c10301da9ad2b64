CREATE TABLE invoices (
  id     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  tenant text   NOT NULL,
  cents  bigint NOT NULL
);
