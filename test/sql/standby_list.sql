-- The grammar of standby lists (tandem.standby_slots).  A list is read when it
-- is set, so each malformed one is refused with a reason and a hint.
\set VERBOSITY default

-- well formed
ALTER SYSTEM SET tandem.standby_slots = 'a';
ALTER SYSTEM SET tandem.standby_slots = 'a, b,c';
ALTER SYSTEM SET tandem.standby_slots = ' "a" , "b" ';
ALTER SYSTEM SET tandem.standby_slots = 'ANY 1 (a, b)';
ALTER SYSTEM SET tandem.standby_slots = 'any 2(a,b)';
ALTER SYSTEM SET tandem.standby_slots = 'First 1 ( "a" )';
ALTER SYSTEM SET tandem.standby_slots = '1, 2_b, _';
ALTER SYSTEM SET tandem.standby_slots = '';
ALTER SYSTEM SET tandem.standby_slots = '   ';
-- slots may have the names of the words
ALTER SYSTEM SET tandem.standby_slots = 'any, first';
ALTER SYSTEM SET tandem.standby_slots = 'ANY 1 (any, first)';

-- not a name
ALTER SYSTEM SET tandem.standby_slots = '*';
ALTER SYSTEM SET tandem.standby_slots = 'ANY 1 (*)';
ALTER SYSTEM SET tandem.standby_slots = 'a, B';
ALTER SYSTEM SET tandem.standby_slots = 'a-b';
ALTER SYSTEM SET tandem.standby_slots = '""';
ALTER SYSTEM SET tandem.standby_slots = '"a b"';
ALTER SYSTEM SET tandem.standby_slots = '"a';
ALTER SYSTEM SET tandem.standby_slots =
	'a234567890123456789012345678901234567890123456789012345678901234';

-- not a list
ALTER SYSTEM SET tandem.standby_slots = ',';
ALTER SYSTEM SET tandem.standby_slots = 'a,';
ALTER SYSTEM SET tandem.standby_slots = 'a,,b';
ALTER SYSTEM SET tandem.standby_slots = 'a b';
ALTER SYSTEM SET tandem.standby_slots = 'a, b, a';
ALTER SYSTEM SET tandem.standby_slots = 'a, "a"';
ALTER SYSTEM SET tandem.standby_slots = '(a, b)';
ALTER SYSTEM SET tandem.standby_slots = 'a)';

-- not a number of standbys
ALTER SYSTEM SET tandem.standby_slots = 'ANY 0 (a)';
ALTER SYSTEM SET tandem.standby_slots = 'ANY 3 (a, b)';
ALTER SYSTEM SET tandem.standby_slots = 'FIRST 99999999999 (a, b)';
ALTER SYSTEM SET tandem.standby_slots = 'ANY 1';
ALTER SYSTEM SET tandem.standby_slots = 'ANY 1 a';
ALTER SYSTEM SET tandem.standby_slots = 'ANY 1 (';
ALTER SYSTEM SET tandem.standby_slots = 'ANY 1 ()';
ALTER SYSTEM SET tandem.standby_slots = 'ANY 1 (a,)';
ALTER SYSTEM SET tandem.standby_slots = 'ANY 1 (a';
ALTER SYSTEM SET tandem.standby_slots = 'ANY 1 (a b)';
ALTER SYSTEM SET tandem.standby_slots = 'ANY 1 (a), b';
ALTER SYSTEM SET tandem.standby_slots = 'ANY x (a)';
ALTER SYSTEM SET tandem.standby_slots = '2 (a, b)';
SELECT 'more names than anybody has standbys' AS list,
	string_agg('s' || i, ', ') AS names FROM generate_series(1, 64) i \gset
ALTER SYSTEM SET tandem.standby_slots = :'names';

-- it is for the server, not for a session
SET tandem.standby_slots = 'a';

ALTER SYSTEM RESET tandem.standby_slots;
SHOW tandem.standby_slots;
