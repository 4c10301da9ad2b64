package sqlfence

import "testing"

// TestVerifyDrift: each of these changes of schema fencepost breaks a promise, and
// each is found, drift by drift; undone, nothing is found.
func TestVerifyDrift(t *testing.T) {
	someDriver(t, func(t *testing.T, e *env) {
		e.wantFindings("as migrated", Verification{})
		for _, c := range []struct{ do, undo, says string }{
			{"ALTER FUNCTION fencepost.enter STABLE", "ALTER FUNCTION fencepost.enter VOLATILE", "function fencepost.enter: has another volatility"},
			{"ALTER FUNCTION fencepost.judge IMMUTABLE", "ALTER FUNCTION fencepost.judge VOLATILE", "function fencepost.judge: has another volatility"},
			{"ALTER FUNCTION fencepost.enter SET lock_timeout = 0", "ALTER FUNCTION fencepost.enter RESET lock_timeout", "function fencepost.enter: has the setting lock_timeout=0"},
			{"ALTER FUNCTION fencepost.raise SET synchronous_commit = off", "ALTER FUNCTION fencepost.raise RESET synchronous_commit", "function fencepost.raise: has the setting synchronous_commit=off"},
			{"CREATE TABLE salt AS TABLE fencepost.lock_salt; TRUNCATE fencepost.lock_salt", "INSERT INTO fencepost.lock_salt TABLE salt; DROP TABLE salt", "table fencepost.lock_salt: has no row"},
			{"ALTER TABLE fencepost.marks ENABLE ROW LEVEL SECURITY", "ALTER TABLE fencepost.marks DISABLE ROW LEVEL SECURITY", "table fencepost.marks: has row-level security"},
			{"CREATE TABLE child () INHERITS (fencepost.marks)", "DROP TABLE child", "table fencepost.marks: has inheritance children"},
			{"CREATE TRIGGER more BEFORE UPDATE ON fencepost.marks FOR EACH ROW EXECUTE FUNCTION suppress_redundant_updates_trigger()", "DROP TRIGGER more ON fencepost.marks", "table fencepost.marks: has the trigger more"},
			{"ALTER TABLE fencepost.mark_resets DISABLE TRIGGER keep_resets", "ALTER TABLE fencepost.mark_resets ENABLE ALWAYS TRIGGER keep_resets", "has no trigger keep_resets"},
			{"ALTER TABLE fencepost.mark_resets ENABLE TRIGGER keep_resets", "ALTER TABLE fencepost.mark_resets ENABLE ALWAYS TRIGGER keep_resets", "has no trigger keep_resets"},
			{"ALTER TABLE fencepost.marks DROP CONSTRAINT marks_pkey", "ALTER TABLE fencepost.marks ADD PRIMARY KEY (resource)", "table fencepost.marks: has no primary key"},
			{"ALTER TABLE fencepost.marks DROP CONSTRAINT marks_token_check", "ALTER TABLE fencepost.marks ADD CONSTRAINT marks_token_check CHECK (token BETWEEN 1 AND 9223372036854775806)", "table fencepost.marks: has lost a check"},
		} {
			e.exec(c.do)
			e.wantFindings(c.do, Verification{}, c.says)
			e.exec(c.undo)
			e.wantFindings("undone: "+c.do, Verification{})
		}
	})
}
