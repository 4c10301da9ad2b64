-- Removes the part of schema fencepost that belongs to package lockclient. Tokens begin
-- again at 1 after this, and marks that are kept elsewhere would refuse them: before
-- leases are granted again, advance the issuer above the highest mark.
-- A transaction that is still open may use it: the check waits for that.
LOCK TABLE fencepost.leases IN ACCESS EXCLUSIVE MODE;
DO $in_use$
DECLARE
  why text := (SELECT format('the lease of %L runs, release or force-unlock it first', min(resource))
    FROM fencepost.leases WHERE lease_id IS NOT NULL AND expires_at > clock_timestamp() HAVING count(*) > 0);
BEGIN
  IF why IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'object_in_use', MESSAGE = 'fencepost: ' || why || '; nothing was removed';
  END IF;
END $in_use$;
DROP TABLE fencepost.leases, fencepost.spent, fencepost.epoch, fencepost.audit;
DROP FUNCTION fencepost.is_spent, fencepost.late, fencepost.check_isolation, fencepost.acquire, fencepost.renew,
  fencepost.release, fencepost.wake, fencepost.spend, fencepost.watch, fencepost.unwatch,
  fencepost.check_lease, fencepost.lock_leases, fencepost.raise_floor, fencepost.purge_leases, fencepost.raise_epoch,
  fencepost.adopt_epoch, fencepost.refuse_change,
  fencepost.force_unlock, fencepost.force_unlocked, fencepost.advance_lease;
