-- Removes the part of schema fencepost that belongs to package sqlfence. The marks are
-- gone after this, and no older holder is refused any more: stop every writer first.
-- A transaction that is still open may use it: the check waits for that.
LOCK TABLE fencepost.guarded IN ACCESS EXCLUSIVE MODE;
DO $in_use$
DECLARE
  why text := (SELECT format('the triggers of %s are of this schema, remove them first', string_agg(format('%I.%I', schema_name, table_name), ', '))
    FROM fencepost.guarded HAVING count(*) > 0);
BEGIN
  IF why IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'object_in_use', MESSAGE = 'fencepost: ' || why || '; nothing was removed';
  END IF;
END $in_use$;
DROP TABLE fencepost.marks, fencepost.lock_salt, fencepost.mark_resets, fencepost.guarded;
DROP FUNCTION fencepost.no_salt, fencepost.lock_salt, fencepost.lock_key, fencepost.join_resource, fencepost.verdict,
  fencepost.refuse, fencepost.judge, fencepost.mark, fencepost.check_level, fencepost.check_claim,
  fencepost.set_timeouts, fencepost.make_durable, fencepost.raise, fencepost.enter, fencepost.refuse_entry,
  fencepost.enter_snapshot, fencepost.enter_row, fencepost.holders, fencepost.session,
  fencepost.retire, fencepost.keep_resets, fencepost.reset,
  fencepost.claims, fencepost.present, fencepost.presented, fencepost.require, fencepost.report, fencepost.counters,
  fencepost.count_refusal, fencepost.start_counters, fencepost.refuse_truncate,
  fencepost.guard_when, fencepost.guard_key, fencepost.refuse_swapped, fencepost.replicated, fencepost.guard_body, fencepost.guard_name,
  fencepost.guard_table, fencepost.guard_tree, fencepost.guard_late, fencepost.guard_columns, fencepost.guard_obstacle,
  fencepost.guard_triggers, fencepost.guard_problems, fencepost.drop_guard_function, fencepost.lock_guards,
  fencepost.install_guard, fencepost.drop_guards, fencepost.remove_guard, fencepost.guard_status;
