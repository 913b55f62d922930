/*-------------------------------------------------------------------------
 *
 * owned.c
 *	  Which local slots are ours: the file pg_tandem/slots.
 *
 * Before PostgreSQL 17 a slot carries no mark that says "synced".  So the
 * names of our slots are in a file.  Its order with the slots:
 *
 *	 creating	the file first, then the slot is made persistent: a crash in
 *				between leaves an entry without a slot, which is discarded at
 *				start
 *	 dropping	the slot first, then the file: the same
 *
 * pg_basebackup copies the file but not the slots; the same rule discards
 * the entries.  At promotion all are discarded: the slots are the new
 * primary's own then.
 *
 * The file also says how many of the primary's failover slots had no proven
 * slot here, so that after a restart without a primary failover_ready() knows
 * whether the slots it sees are all there were; and until when the primary has
 * promised to hold catalog rows.
 *
 * Private to the worker; the list lives in TopMemoryContext.
 *
 * src/slots/owned.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "replication/slot.h"
#include "utils/builtins.h"
#include "utils/memutils.h"
#include "utils/timestamp.h"

#include "common/statefile.h"
#include "slots/slots.h"

#define OWNED_FILE "slots"
#define OWNED_MAGIC 0x7A4D5302

typedef struct OwnedHeader
{
	int32		count;
	int32		unproven;
	TimestampTz held_until;
} OwnedHeader;

static TandemOwnedSlot *owned = NULL;
static int	nowned = 0;
static int	room = 0;
static int	unproven = 0;
static TimestampTz held_until = 0;
static TimestampTz held_until_saved = 0;
static bool dirty = false;

/*
 * Reads the file, once, when the worker starts; forgets entries that have no
 * slot.
 */
void
tandem_owned_load(void)
{
	size_t		len;
	char	   *content = tandem_statefile_read(OWNED_FILE, OWNED_MAGIC, &len);
	OwnedHeader header;
	int			i;

	nowned = 0;
	unproven = 0;
	held_until = held_until_saved = 0;
	dirty = false;
	if (content == NULL)
		return;
	if (len < sizeof(header))
		return;
	memcpy(&header, content, sizeof(header));
	if (header.count < 0 ||
		len != sizeof(header) + header.count * sizeof(TandemOwnedSlot))
	{
		ereport(WARNING,
				(errcode(ERRCODE_DATA_CORRUPTED),
				 errmsg("file \"%s/%s\" is damaged and is ignored",
						TANDEM_STATE_DIR, OWNED_FILE)));
		return;
	}
	unproven = header.unproven;
	held_until = held_until_saved = header.held_until;
	for (i = 0; i < header.count; i++)
	{
		TandemOwnedSlot slot;
		TandemLocalSlot local;

		memcpy(&slot, content + sizeof(header) + i * sizeof(slot), sizeof(slot));
		if (tandem_local_slot(NameStr(slot.name), &local))
			tandem_owned_add(NameStr(slot.name), slot.decoded_lsn);
		else
			dirty = true;
	}
	pfree(content);
	dirty = nowned != header.count;
}

TandemOwnedSlot *
tandem_owned(const char *name)
{
	int			i;

	for (i = 0; i < nowned; i++)
	{
		if (strcmp(NameStr(owned[i].name), name) == 0)
			return &owned[i];
	}
	return NULL;
}

int
tandem_owned_count(void)
{
	return nowned;
}

/* Failover slots of the primary that had no proven slot here. */
int
tandem_owned_unproven(void)
{
	return unproven;
}

void
tandem_owned_set_unproven(int count)
{
	if (unproven != count)
		dirty = true;
	unproven = count;
}

/*
 * Until when, by the primary's clock, it holds catalog rows for us even if it
 * doesn't hear of us any more; 0 = for ever.
 */
TimestampTz
tandem_owned_held_until(void)
{
	return held_until;
}

/*
 * Every cycle has a later one.  The file follows when half of the time that it
 * promises is over: a promise too short is only cautious.
 */
void
tandem_owned_set_held_until(TimestampTz until)
{
	held_until = until;
	if (until == 0 || held_until_saved == 0 || until < held_until_saved)
		dirty |= until != held_until_saved;
	else if (held_until_saved - GetCurrentTimestamp() < (until - GetCurrentTimestamp()) / 2)
		dirty = true;
}

/* Adds or changes an entry; durable only after tandem_owned_save(). */
void
tandem_owned_add(const char *name, XLogRecPtr decoded_lsn)
{
	TandemOwnedSlot *slot = tandem_owned(name);

	if (slot == NULL)
	{
		if (nowned == room)
		{
			int			new_room = room ? room * 2 : 32;
			Size		size = new_room * sizeof(TandemOwnedSlot);

			owned = owned ? repalloc(owned, size) :
							MemoryContextAlloc(TopMemoryContext, size);
			room = new_room;
		}
		slot = &owned[nowned++];
		memset(slot, 0, sizeof(*slot));
		namestrcpy(&slot->name, name);
		dirty = true;
	}
	if (slot->decoded_lsn != decoded_lsn)
		dirty = true;
	slot->decoded_lsn = decoded_lsn;
}

void
tandem_owned_remove(const char *name)
{
	TandemOwnedSlot *slot = tandem_owned(name);

	if (slot == NULL)
		return;
	*slot = owned[--nowned];
	dirty = true;
}

/* Makes the list durable if it has changed. */
void
tandem_owned_save(void)
{
	StringInfoData buf;
	OwnedHeader header;

	if (!dirty)
		return;
	header.count = nowned;
	header.unproven = unproven;
	header.held_until = held_until;
	initStringInfo(&buf);
	appendBinaryStringInfo(&buf, (char *) &header, sizeof(header));
	if (nowned > 0)
		appendBinaryStringInfo(&buf, (char *) owned,
							   nowned * sizeof(TandemOwnedSlot));
	tandem_statefile_write(OWNED_FILE, OWNED_MAGIC, buf.data, buf.len);
	held_until_saved = held_until;
	pfree(buf.data);
	dirty = false;
}

/* At promotion: the slots belong to the new primary. */
void
tandem_owned_discard_all(void)
{
	if (nowned > 0 || unproven > 0)
		dirty = true;
	nowned = 0;
	unproven = 0;
	tandem_owned_save();
}
