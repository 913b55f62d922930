/*-------------------------------------------------------------------------
 *
 * local.c
 *	  Who wrote the row that is here, and when.
 *
 * A row says which transaction wrote it (xmin, which freezing leaves as it is),
 * and with track_commit_timestamp the server remembers when that one committed
 * and where it came from.  Not for ever: commit times are removed with old
 * transaction ids.  Then, and with track_commit_timestamp off, nothing is known.
 *
 * A transaction in which a change is applied carries the commit time and origin
 * of the publisher's; so do the rows that it has written so far, which have no
 * commit time yet.
 *
 * Called by src/subscription/resolve.c, explain.c.
 *
 * src/conflict/local.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/commit_ts.h"
#include "access/sysattr.h"
#include "access/transam.h"
#include "access/xact.h"

#include "conflict/conflict.h"

bool
tandem_local_party(TupleTableSlot *slot, TandemParty *party)
{
	bool		isnull = true;
	Datum		xmin = (Datum) 0;

	memset(party, 0, sizeof(*party));
	if (!TTS_EMPTY(slot) && slot->tts_ops != &TTSOpsVirtual)
		xmin = slot_getsysattr(slot, MinTransactionIdAttributeNumber, &isnull);
	if (isnull)
		return false;
	party->xid = DatumGetTransactionId(xmin);
	if (TransactionIdIsCurrentTransactionId(party->xid))
	{
		party->known = true;
		party->time = tandem_conflict_session.time;
		party->origin = tandem_conflict_session.origin;
		return true;
	}
	if (track_commit_timestamp && TransactionIdIsNormal(party->xid))
		party->known = TransactionIdGetCommitTsData(party->xid, &party->time, &party->origin);
	if (!party->known)
	{
		party->time = 0;
		party->origin = InvalidRepOriginId;
	}
	return false;
}
