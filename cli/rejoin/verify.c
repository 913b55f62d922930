/*-------------------------------------------------------------------------
 *
 * verify.c
 *	  Compares the pages that were in question on both nodes.
 *
 * Those are the pages that records after the fork name, and the ones copied:
 * if the plan was wrong anywhere, it was wrong there.  Two pages of the same
 * LSN have to be the same, but for what replay leaves out (hint bits, unused
 * space), which tandem.page_digests() masks.  A page whose LSN differs is
 * looked at again: the standby is behind, or the page is being written.  Two
 * pages without an LSN aren't comparable: SP-GiST initializes pages for later use
 * without WAL (allocNewBuffer in spgutils.c), so does a heap that is extended by
 * many pages at once (hio.c); on standbys they are zero.
 *
 * cli/rejoin/verify.c
 *-------------------------------------------------------------------------
 */
#include "postgres_fe.h"

#include "result.h"
#include "rejoin/start.h"
#include "text.h"

#define PAGES_AT_ONCE 2000
#define MOST_PAGES 20000
#define MOST_TRIES 20
#define PAUSE_US 100000
#define DATA_CORRUPTED "XX001"	/* errcodes.txt */
#define UNUSABLE "Do not use this node: make a new base backup, keep this directory and report it."

typedef struct Digest
{
	bool		absent;
	XLogRecPtr	lsn;
	char		digest[24];
} Digest;

static const char *
build_arrays(const PageFacts *const *pages, int n)
{
	PQExpBufferData sql;

	initPQExpBuffer(&sql);
	appendPQExpBufferStr(&sql, "SELECT lsn, digest FROM tandem.page_digests(");
	for (int a = 0; a < 6; a++)
	{
		appendPQExpBuffer(&sql, "%s'{", a ? ", " : "");
		for (int i = 0; i < n; i++)
		{
			const PageKey *key = &pages[i]->key;
			uint32		values[] = {key->rel.tablespace, key->rel.database, key->rel.node,
									(uint32) key->fork, key->block, pages[i]->rmid};

			appendPQExpBuffer(&sql, "%s%u", i ? "," : "", values[a]);
		}
		appendPQExpBufferStr(&sql, "}'");
	}
	appendPQExpBufferStr(&sql, ") ORDER BY request");
	return sql.data;
}

/*
 * Returns false on an error, which *why_not then says.  A page that the server
 * itself finds damaged is no error of the comparison but its result; where
 * names the server, NULL is this node.
 */
static bool
read_digests(PGconn *conn, const char *where, const char *sql, int n, Digest *digests,
			 const char **why_not)
{
	PGresult   *res = PQexec(conn, sql);

	if (PQresultStatus(res) != PGRES_TUPLES_OK || PQntuples(res) != n)
	{
		const char *state = PQresultErrorField(res, PG_DIAG_SQLSTATE);

		if (state && strcmp(state, DATA_CORRUPTED) == 0)
			rejoin_refuse(where ? "That server has a damaged page; find its cause before you rely on it." : UNUSABLE,
						  "page that was to be compared is damaged%s%s: %s", where ? " on " : "",
						  where ? where : "", PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY));
		*why_not = pg_strdup(PQresultStatus(res) == PGRES_TUPLES_OK ? "unexpected answer" :
								 PQresultErrorField(res, PG_DIAG_MESSAGE_PRIMARY));
		PQclear(res);
		return false;
	}
	for (int i = 0; i < n; i++)
	{
		digests[i].absent = PQgetisnull(res, i, 0);
		digests[i].lsn = parse_lsn(PQgetvalue(res, i, 0));
		strlcpy(digests[i].digest, PQgetvalue(res, i, 1), sizeof(digests[i].digest));
	}
	PQclear(res);
	return true;
}

/* A sorted build of a GiST index leaves its mark instead on the primary. */
static bool
same_lsn(XLogRecPtr a, XLogRecPtr b)
{
	return a == b || a == GIST_BUILD_LSN || b == GIST_BUILD_LSN;
}

/*
 * One batch.  Returns how many are left because their LSNs differ (moved to
 * the front), or -1.
 */
static int
compare_batch(PGconn *local, Source *source, const PageFacts **pages, int n, Verified *verified)
{
	const char *sql = build_arrays(pages, n);
	Digest	   *here = pg_malloc(n * sizeof(Digest));
	Digest	   *there = pg_malloc(n * sizeof(Digest));
	int			left = 0;

	if (!read_digests(source->conn, source->label, sql, n, there, &verified->why_not) ||
		!read_digests(local, NULL, sql, n, here, &verified->why_not))
		return -1;
	for (int i = 0; i < n; i++)
	{
		bool		same = here[i].absent == there[i].absent &&
			strcmp(here[i].digest, there[i].digest) == 0;

		if (same && same_lsn(here[i].lsn, there[i].lsn))
			verified->same++;
		else if (XLogRecPtrIsInvalid(here[i].lsn) && XLogRecPtrIsInvalid(there[i].lsn))
			verified->changing++;
		else if (here[i].absent != there[i].absent || here[i].lsn != there[i].lsn)
			pages[left++] = pages[i];
		else
		{
			const PageKey *key = &pages[i]->key;

			rejoin_refuse(UNUSABLE,
						  "block %u of file \"%s\" differs from the one on %s at the same LSN %X/%X",
						  key->block, rel_path(key->rel, (ForkNumber) key->fork, key->block / RELSEG_SIZE),
						  source->label, LSN_ARGS(here[i].lsn));
		}
	}
	free(here);
	free(there);
	free((char *) sql);
	return left;
}

void
verify_pages(PGconn *local, Source *source, const Facts *facts, const Plan *plan, Verified *verified)
{
	const PageFacts **pages = pg_malloc0((MOST_PAGES + 1) * sizeof(PageFacts *));
	pageset_iterator i;
	PageFacts  *page;
	int			n = 0;

	/* those that were ahead first */
	for (int doubtful = 1; doubtful >= 0; doubtful--)
	{
		pageset_start_iterate(facts->pages, &i);
		while (n < MOST_PAGES && (page = pageset_iterate(facts->pages, &i)) != NULL)
			if (page->comparable && page->doubtful == (doubtful == 1))
				pages[n++] = page;
	}
	for (int from = 0; from < n; from += PAGES_AT_ONCE)
	{
		int			left = Min(PAGES_AT_ONCE, n - from);

		for (int tries = 0; left > 0 && tries < MOST_TRIES; tries++)
		{
			if (tries > 0)
				pg_usleep(PAUSE_US);
			left = compare_batch(local, source, pages + from, left, verified);
			if (left < 0)
				return;
		}
		verified->changing += left;
	}
	verified->done = true;
}
