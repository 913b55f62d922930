-- What "tandem rejoin" asks another server for: bad input is told so.
SET client_min_messages = warning;
DROP EXTENSION IF EXISTS pg_tandem;
CREATE EXTENSION pg_tandem;

-- pages of a shared catalog, and of no relation at all
SELECT request, first_block, length(content) >= 8192 AS content, relation_blocks > 0 AS length
FROM tandem.source_blocks('{1664,1663}', '{0,4242424}', '{1262,4242424}', '{0,0}', '{0,0}', '{1,1}');
SELECT request, lsn IS NOT NULL AS lsn, digest IS NOT NULL AS digest
FROM tandem.page_digests('{1664,1664}', '{0,0}', '{1262,1262}', '{0,0}', '{0,4294967294}', '{10,10}');
SELECT count(*) FROM tandem.source_blocks('{}', '{}', '{}', '{}', '{}', '{}');
SELECT count(*) FROM tandem.page_digests(NULL, '{}', '{}', '{}', '{}', '{}');

SELECT * FROM tandem.source_blocks('{1663}', '{1,2}', '{1}', '{0}', '{0}', '{1}');
SELECT * FROM tandem.source_blocks('{1663}', '{1}', '{1}', '{0}', '{0}', '{}');
SELECT * FROM tandem.source_blocks('{1663}', '{1}', '{null}', '{0}', '{0}', '{1}');
SELECT * FROM tandem.source_blocks('{{1663}}', '{{1}}', '{{1}}', '{{0}}', '{{0}}', '{{1}}');
SELECT * FROM tandem.source_blocks('{1663}', '{0}', '{1259}', '{0}', '{0}', '{1}');
SELECT * FROM tandem.source_blocks('{1664}', '{1}', '{1262}', '{0}', '{0}', '{1}');
SELECT * FROM tandem.source_blocks('{1663}', '{1}', '{0}', '{0}', '{0}', '{1}');
SELECT * FROM tandem.source_blocks('{1663}', '{1}', '{1259}', '{4}', '{0}', '{1}');
SELECT * FROM tandem.source_blocks('{1663}', '{1}', '{1259}', '{-1}', '{0}', '{1}');
SELECT * FROM tandem.source_blocks('{1663}', '{1}', '{1259}', '{0}', '{-1}', '{1}');
SELECT * FROM tandem.source_blocks('{1663}', '{1}', '{1259}', '{0}', '{4294967295}', '{1}');
SELECT * FROM tandem.source_blocks('{1663}', '{1}', '{1259}', '{0}', '{0}', '{-1}');
SELECT * FROM tandem.page_digests('{1663}', '{1}', '{1259}', '{0}', '{4294967295}', '{10}');
SELECT * FROM tandem.page_digests('{1663}', '{1}', '{1259}', '{0}', '{0}', '{127}');
SELECT * FROM tandem.page_digests('{1663}', '{1}', '{1259}', '{0}', '{0}', '{-1}');
SELECT * FROM tandem.page_digests('{1663}', '{1}', '{1259}', '{0}', '{0}', '{100000}');

-- any page with any resource manager: a digest, whatever that is worth
SELECT count(digest) FROM generate_series(0, 21) AS rmgr,
	LATERAL tandem.page_digests('{1664,1664,1664}', '{0,0,0}', '{1262,2671,2671}', '{0,0,0}', '{0,0,1}',
		ARRAY[rmgr, rmgr, rmgr]);

SELECT tandem.source_file('global/pg_control', 0, 10);
SELECT tandem.source_file('base/1/../../PG_VERSION', 0, 10);
SELECT tandem.source_file('base/1/1259', 0, 10);
SELECT tandem.source_file('pg_xact/0000', -1, 10);
SELECT tandem.source_file('pg_xact/0000', 0, 0);
SELECT tandem.source_file('pg_xact/0000', 0, 4194305);
SELECT tandem.source_file('pg_xact/0FFF', 0, 10) IS NULL AS absent;
SELECT tandem.source_file(NULL, 0, 10) IS NULL AS null_is_null;
