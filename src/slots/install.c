/*-------------------------------------------------------------------------
 *
 * install.c
 *	  Installing what the primary sent, and what a slot still lacks of it.
 *
 * A file that can't be installed keeps those slots from being proven that need
 * it, and no others.
 *
 * src/slots/install.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/xlog.h"

#include "common/settings.h"
#include "slots/cycle.h"


/*
 * Installs one file: the mapping file of that name, or (null) the snapshot
 * file at lsn.  On failure logs it, remembers the message as the cycle's
 * install_error and returns false.
 */
static bool
install_one(Cycle *cycle, const char *mapping, XLogRecPtr lsn,
			const char *data, int len)
{
	MemoryContext context = CurrentMemoryContext;
	volatile bool installed = false;

	PG_TRY();
	{
		if (mapping)
			tandem_install_mapping(mapping, data, len);
		else
			tandem_install_snapshot(lsn, data, len);
		installed = true;
	}
	PG_CATCH();
	{
		ErrorData  *edata;

		MemoryContextSwitchTo(context);
		edata = CopyErrorData();
		if (cycle->install_error == NULL)
			EmitErrorReport();
		FlushErrorState();
		cycle->install_error = edata->message;
	}
	PG_END_TRY();
	if (installed)
		cycle->installed++;
	return installed;
}

/*
 * Installs what the primary sent.  A file that can't be installed keeps those
 * slots from being proven that need it, and no others.  Afterwards the cycle's
 * lists hold what is missing.
 */
void
tandem_install_files(Cycle *cycle)
{
	int			left = 0;
	int			i;

	if (cycle->wrong_timeline || !tandem_debug_ship_snapshots)
		return;
	for (i = 0; i < cycle->nfiles; i++)
	{
		XLogRecPtr	lsn = cycle->files[i].lsn;
		bool		ok = false;

		if (cycle->contents[i] != NULL && lsn <= cycle->replayed)
		{
			pg_crc32c	crc;
			const char *why;

			if (tandem_snapshot_check(cycle->contents[i], cycle->lengths[i],
									  &crc, &why))
				ok = install_one(cycle, NULL, lsn, cycle->contents[i],
								 cycle->lengths[i]);
			else
				cycle->install_error =
					psprintf("the snapshot file at %X/%X that the primary sent can't be used: %s",
							 LSN_FORMAT_ARGS(lsn), why);
		}
		if (!ok)
			cycle->files[left++] = cycle->files[i];
	}
	cycle->nfiles = left;
	if (cycle->installed > 0)
		tandem_flush_snapshot_dir();

	left = 0;
	for (i = 0; i < cycle->nmappings; i++)
	{
		if (cycle->mapping_contents[i] == NULL ||
			cycle->mapping_asof[i] > cycle->replayed ||
			!install_one(cycle, cycle->mappings[i].name, InvalidXLogRecPtr,
						 cycle->mapping_contents[i],
						 cycle->mapping_lengths[i]))
			cycle->mappings[left++] = cycle->mappings[i];
	}
	cycle->nmappings = left;
}

/*
 * Are all files here that a slot needs?  Otherwise the entry says what is
 * missing.  exists: the slot is here already, and keeps its files.
 */
bool
tandem_files_complete(Cycle *cycle, const TandemRemoteSlot *slot, Oid database,
					  bool exists, TandemSlotEntry *entry)
{
	int			i;

	if (!tandem_debug_ship_snapshots)
		return true;
	for (i = 0; i < cycle->nfiles; i++)
	{
		XLogRecPtr	lsn = cycle->files[i].lsn;

		if (lsn < slot->restart_lsn || lsn > slot->confirmed_lsn)
			continue;
		if (cycle->install_error)
			tandem_pending(entry, "Free disk space or mend the file system; the next cycle tries again.",
						   "%s", cycle->install_error);
		else
			tandem_pending(entry, NULL, "the snapshot file at %X/%X has not been received yet",
						   LSN_FORMAT_ARGS(lsn));
		return false;
	}

	/*
	 * Replay writes mapping files itself.  Only what a restartpoint has removed
	 * before there was a slot must be sent; and what replay has not reached
	 * isn't needed yet.
	 */
	for (i = 0; i < cycle->nmappings && !exists; i++)
	{
		const TandemMappingFile *file = &cycle->mappings[i];

		if (file->lsn < slot->restart_lsn || file->lsn > cycle->replayed ||
			(OidIsValid(file->database) && file->database != database))
			continue;
		if (cycle->install_error)
			tandem_pending(entry, "Free disk space or mend the file system; the next cycle tries again.",
						   "%s", cycle->install_error);
		else
			tandem_pending(entry, NULL,
						   "a catalog table is being rewritten (VACUUM FULL or CLUSTER) on the primary");
		return false;
	}
	return true;
}
