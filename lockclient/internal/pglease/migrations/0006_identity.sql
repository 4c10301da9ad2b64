-- The numbers of audit's records come from a sequence, which logical replication does
-- not copy: after a switch-over to a subscriber it begins again, and every force unlock
-- would fail at a number that there is already. The trigger runs before the number is
-- drawn. The lock lets one session at a time set the sequence; it spells "fencsequ".
CREATE FUNCTION fencepost.follow_audit()
RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  v_sequence regclass := pg_get_serial_sequence('fencepost.audit', 'id')::regclass;
BEGIN
  IF (SELECT max(a.id) FROM fencepost.audit a) > coalesce(pg_sequence_last_value(v_sequence), 0) THEN
    PERFORM pg_advisory_xact_lock(7378424937933271413);
    PERFORM setval(v_sequence, m.id) FROM (SELECT max(a.id) AS id FROM fencepost.audit a) m WHERE m.id > coalesce(pg_sequence_last_value(v_sequence), 0);
  END IF;
  RETURN NULL;
END $$;
CREATE TRIGGER audit_follows BEFORE INSERT ON fencepost.audit FOR EACH STATEMENT EXECUTE FUNCTION fencepost.follow_audit();
