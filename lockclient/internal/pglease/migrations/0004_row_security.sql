-- A policy of row-level security on a table makes rows invisible to an issuer's role:
-- a lease that runs would be one that is over, and its holder would give it up. With
-- row_security off the server refuses the statement instead.
ALTER FUNCTION fencepost.acquire SET row_security = off;
ALTER FUNCTION fencepost.renew SET row_security = off;
ALTER FUNCTION fencepost.release SET row_security = off;
ALTER FUNCTION fencepost.spend SET row_security = off;
ALTER FUNCTION fencepost.watch SET row_security = off;
ALTER FUNCTION fencepost.enter_epoch SET row_security = off;
