/*-------------------------------------------------------------------------
 *
 * standby.c
 *	  What standbys have confirmed.
 *
 * Standbys are named by the physical replication slots they use.  This file
 * has what everybody needs who waits for standbys (the gate of slots/gate.c,
 * the guard of failback/guard.c): the WAL position that a list of them has
 * flushed, and a wake-up when it moves.  The grammar of the lists is in
 * standby_list.c.
 *
 * Where a position comes from.  The flush position of a standby is the
 * restart_lsn of its physical slot, and nothing else.  A walsender copies the
 * flush position of every reply into it before it does anything else
 * (PhysicalConfirmReceivedLocation), downwards as well, for instance for a
 * standby cloned anew from an older backup.  It outlives the connection and,
 * as of the last checkpoint, the server.  A copy of our own would have all of
 * that to repeat and could only disagree.  Two things follow:
 * - A position may go down.  Nobody may keep a maximum over time.
 * - A slot made with immediately_reserve claims the last checkpoint's redo
 *	 position before any standby has used it.  That is as true as it is for
 *	 core: a standby that uses the slot is made from a backup at least as new.
 *
 * What is published.  In a walsender that has a physical slot the wrapper
 * notices, right after each reply, that the position moved.  It then bumps
 * the shared generation counter, which lets others keep what they computed as
 * long as nothing moved, and sets the latch of each process that waits for a
 * position this standby has reached.  Only the standby whose own position
 * crosses the wanted one can be the one that completes a list, so nobody else
 * has to wake anybody.
 *
 * The wrapper replaces the methods that send messages to the client, in
 * walsenders only.  It is installed when authentication has succeeded.  It
 * passes everything on, except what the gate takes (tandem_walsender_hooks).
 *
 * src/common/standby.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "miscadmin.h"
#include "port/atomics.h"
#include "replication/slot.h"
#include "replication/walsender.h"
#include "replication/walsender_private.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lwlock.h"
#include "storage/proc.h"
#include "storage/shmem.h"
#include "storage/spin.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "common/libpq_methods.h"
#include "common/standby.h"

#define REPORT_INTERVAL_MS (60 * 1000)

typedef struct StandbyShared
{
	/* bumped after a standby's position has moved */
	pg_atomic_uint64 generation;

	/* when the last report was made, by reporter: a TimestampTz */
	pg_atomic_uint64 last_report[TANDEM_NUM_REPORTERS];

	/* number of entries of waiting_for that are not zero, never too low */
	pg_atomic_uint32 nwaiting;

	/* by number of the PGPROC: the position waited for, 0 = none */
	pg_atomic_uint64 waiting_for[FLEXIBLE_ARRAY_MEMBER];
} StandbyShared;

const PQcommMethods *tandem_wrapped_methods = NULL;
TandemWalsenderHooks tandem_walsender_hooks;

void		(*tandem_standby_moved_hook)(void) = NULL;

static StandbyShared *shared = NULL;

static ClientAuthentication_hook_type prev_client_authentication_hook = NULL;

/* this process's entry in waiting_for, once it has one */
static pg_atomic_uint64 *my_wait = NULL;

/* ---- positions -------------------------------------------------------------- */

/* Has the walsender with this pid caught up with its standby? */
static bool
walsender_streams(int pid)
{
	for (int i = 0; i < max_wal_senders; i++)
	{
		WalSnd	   *walsnd = &WalSndCtl->walsnds[i];
		pid_t		walsnd_pid;
		WalSndState state;

		SpinLockAcquire(&walsnd->mutex);
		walsnd_pid = walsnd->pid;
		state = walsnd->state;
		SpinLockRelease(&walsnd->mutex);

		if (walsnd_pid == pid)
			return state == WALSNDSTATE_STREAMING || state == WALSNDSTATE_STOPPING;
	}
	return false;
}

void
tandem_standby_state(const char *name, bool want_streaming,
					 TandemStandbyState *state)
{
	ReplicationSlot *slot;
	bool		invalidated;

	memset(state, 0, sizeof(*state));

	slot = SearchNamedReplicationSlot(name, false);
	if (slot == NULL)
	{
		state->problem = TANDEM_STANDBY_MISSING;
		return;
	}
	if (SlotIsLogical(slot))
	{
		state->problem = TANDEM_STANDBY_LOGICAL;
		return;
	}

	SpinLockAcquire(&slot->mutex);
	state->flush = slot->data.restart_lsn;
	state->pid = slot->active_pid;
	invalidated = TANDEM_SLOT_INVALIDATED(&slot->data);
	SpinLockRelease(&slot->mutex);

	if (invalidated)
	{
		state->problem = TANDEM_STANDBY_INVALIDATED;
		state->flush = InvalidXLogRecPtr;
	}
	else if (XLogRecPtrIsInvalid(state->flush))
		state->problem = TANDEM_STANDBY_NO_POSITION;

	if (want_streaming && state->pid != 0)
		state->streaming = walsender_streams(state->pid);
}

/*
 * The position of a list.  With reachable, each connected standby counts as
 * if it had flushed everything.
 *
 * ALL: the lowest position.  ANY n: the n-th highest.  FIRST n: the lowest of
 * the first n usable standbys, where those that stream come first, then those
 * that are connected, then the others, each in the order of the list.  So a
 * standby that is away or still catching up is passed over as long as enough
 * others stream, as with synchronous_standby_names; and when none is
 * connected, what the first ones had flushed still counts.
 */
static XLogRecPtr
list_position(const TandemStandbyList *list, bool reachable)
{
	XLogRecPtr	positions[TANDEM_MAX_STANDBYS];
	int			ranks[TANDEM_MAX_STANDBYS];
	XLogRecPtr	result = PG_UINT64_MAX;
	int			found = 0;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; i < list->nnames; i++)
	{
		TandemStandbyState state;

		tandem_standby_state(NameStr(list->names[i]),
							 list->mode == TANDEM_STANDBYS_FIRST, &state);
		if (reachable && state.pid != 0 &&
			(state.problem == TANDEM_STANDBY_OK ||
			 state.problem == TANDEM_STANDBY_NO_POSITION))
			state.flush = PG_UINT64_MAX;
		positions[i] = state.flush;
		ranks[i] = state.streaming ? 0 : state.pid != 0 ? 1 :
														  2;
	}
	LWLockRelease(ReplicationSlotControlLock);

	switch (list->mode)
	{
		case TANDEM_STANDBYS_ALL:
			for (int i = 0; i < list->nnames; i++)
				result = Min(result, positions[i]);
			return result;

		case TANDEM_STANDBYS_ANY:
			for (int i = 0; i < list->nnames; i++)
			{
				int			higher = 0;

				/* equal positions rank in the order of the list */
				for (int j = 0; j < list->nnames; j++)
				{
					if (positions[j] > positions[i] ||
						(positions[j] == positions[i] && j < i))
						higher++;
				}
				if (higher == list->required - 1)
					return positions[i];
			}
			Assert(false);
			return InvalidXLogRecPtr;

		case TANDEM_STANDBYS_FIRST:
			for (int rank = 0; rank <= 2; rank++)
			{
				for (int i = 0; i < list->nnames && found < list->required; i++)
				{
					if (ranks[i] == rank && !XLogRecPtrIsInvalid(positions[i]))
					{
						result = Min(result, positions[i]);
						found++;
					}
				}
			}
			return found < list->required ? InvalidXLogRecPtr : result;
	}
	return InvalidXLogRecPtr;	/* keep compiler quiet */
}

XLogRecPtr
tandem_confirmed_lsn(const TandemStandbyList *list)
{
	return list_position(list, false);
}

XLogRecPtr
tandem_reachable_lsn(const TandemStandbyList *list)
{
	return list_position(list, true);
}

bool
tandem_standbys_confirmed(const TandemStandbyList *list, XLogRecPtr lsn)
{
	return list == NULL || tandem_confirmed_lsn(list) >= lsn;
}

uint64
tandem_standby_generation(void)
{
	uint64		generation = pg_atomic_read_u64(&shared->generation);

	/* positions read from here on are at least as new */
	pg_read_barrier();
	return generation;
}

bool
tandem_standby_blocker(const TandemStandbyList *list, XLogRecPtr lsn,
					   NameData *name, TandemStandbyState *state)
{
	int			best = -1;

	LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
	for (int i = 0; list != NULL && i < list->nnames; i++)
	{
		TandemStandbyState this;

		tandem_standby_state(NameStr(list->names[i]), false, &this);
		if (this.flush >= lsn)
			continue;

		/* one that can't confirm, then one that is away, then the slowest */
		if (best < 0 ||
			(this.problem != TANDEM_STANDBY_OK) > (state->problem != TANDEM_STANDBY_OK) ||
			((this.problem != TANDEM_STANDBY_OK) == (state->problem != TANDEM_STANDBY_OK) &&
			 ((this.pid == 0) > (state->pid == 0) ||
			  ((this.pid == 0) == (state->pid == 0) && this.flush < state->flush))))
		{
			best = i;
			*state = this;
		}
	}
	LWLockRelease(ReplicationSlotControlLock);

	if (best < 0)
		return false;
	*name = list->names[best];
	return true;
}

void
tandem_standby_explain(const char *name, TandemStandbyProblem problem,
					   const char *setting, StringInfo reason, StringInfo hint)
{
	switch (problem)
	{
		case TANDEM_STANDBY_OK:
			break;
		case TANDEM_STANDBY_MISSING:
			appendStringInfo(reason, "replication slot \"%s\", named in %s, does not exist",
							 name, setting);
			appendStringInfo(hint, "Create it with SELECT pg_create_physical_replication_slot('%s', true), or remove the name from %s.",
							 name, setting);
			break;
		case TANDEM_STANDBY_LOGICAL:
			appendStringInfo(reason, "replication slot \"%s\", named in %s, is a logical slot",
							 name, setting);
			appendStringInfo(hint, "Name the physical slot that the standby has in primary_slot_name.");
			break;
		case TANDEM_STANDBY_INVALIDATED:
			appendStringInfo(reason, "replication slot \"%s\", named in %s, is invalidated, its standby has lost WAL that it needs",
							 name, setting);
			appendStringInfo(hint, "Make the standby anew with a new slot, or remove the name from %s.",
							 setting);
			break;
		case TANDEM_STANDBY_NO_POSITION:
			appendStringInfo(reason, "no standby has used replication slot \"%s\", named in %s, yet",
							 name, setting);
			appendStringInfo(hint, "Start the standby with primary_slot_name = '%s', or remove the name from %s.",
							 name, setting);
			break;
	}
}

void
tandem_standby_report(const TandemStandbyList *list, TandemReporter kind,
					  const char *setting)
{
	TimestampTz now = GetCurrentTimestamp();
	uint64		last = pg_atomic_read_u64(&shared->last_report[kind]);
	StringInfoData reason;
	StringInfoData hint;

	if (last != 0 &&
		!TimestampDifferenceExceeds((TimestampTz) last, now, REPORT_INTERVAL_MS))
		return;

	initStringInfo(&reason);
	initStringInfo(&hint);
	for (int i = 0; list != NULL && i < list->nnames; i++)
	{
		const char *name = NameStr(list->names[i]);
		TandemStandbyState state;

		LWLockAcquire(ReplicationSlotControlLock, LW_SHARED);
		tandem_standby_state(name, false, &state);
		LWLockRelease(ReplicationSlotControlLock);
		if (state.problem == TANDEM_STANDBY_OK)
			continue;

		/* the first to find something takes the minute, for the whole list */
		if (last != (uint64) now)
		{
			if (!pg_atomic_compare_exchange_u64(&shared->last_report[kind],
												&last, (uint64) now))
				break;
			last = (uint64) now;
		}

		resetStringInfo(&reason);
		resetStringInfo(&hint);
		tandem_standby_explain(name, state.problem, setting, &reason, &hint);

		/* a walsender's client has no use for it */
		ereport(am_walsender ? LOG_SERVER_ONLY : WARNING,
				(errcode(ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE),
				 errmsg_internal("%s", reason.data),
				 kind == TANDEM_REPORT_GATE ?
					 errdetail("Logical replication waits for it.") :
					 errdetail("The guard of data pages needs it."),
				 errhint("%s", hint.data)));
	}
	pfree(reason.data);
	pfree(hint.data);
}

/* ---- waking ------------------------------------------------------------------ */

static void
wait_end_at_exit(int code, Datum arg)
{
	tandem_standby_wait_end();
}

XLogRecPtr
tandem_standby_wait_swap(XLogRecPtr lsn)
{
	XLogRecPtr	previous;

	if (my_wait == NULL)
	{
		int			procno = TANDEM_MY_PROCNO;

		Assert(procno >= 0 && procno < MaxBackends + NUM_AUXILIARY_PROCS);
		my_wait = &shared->waiting_for[procno];
	}

	/*
	 * Both operations are full barriers, and the counter goes up before our
	 * caller looks at positions.  A publisher moves the position before it
	 * looks at the counter.  So either it sees us, or we see the position.
	 */
	previous = pg_atomic_exchange_u64(my_wait, lsn);
	if (previous == 0 && lsn != 0)
		pg_atomic_fetch_add_u32(&shared->nwaiting, 1);
	else if (previous != 0 && lsn == 0)
		pg_atomic_fetch_sub_u32(&shared->nwaiting, 1);
	return previous;
}

void
tandem_standby_wait_begin(XLogRecPtr lsn)
{
	static bool exit_registered = false;

	Assert(!XLogRecPtrIsInvalid(lsn));

	if (!exit_registered)
	{
		before_shmem_exit(wait_end_at_exit, 0);
		exit_registered = true;
	}
	(void) tandem_standby_wait_swap(lsn);
}

void
tandem_standby_wait_end(void)
{
	if (my_wait != NULL)
		(void) tandem_standby_wait_swap(InvalidXLogRecPtr);
}

void
tandem_standby_wake(XLogRecPtr lsn)
{
	if (pg_atomic_read_u32(&shared->nwaiting) == 0)
		return;

	for (int i = 0; i < MaxBackends + NUM_AUXILIARY_PROCS; i++)
	{
		uint64		wanted = pg_atomic_read_u64(&shared->waiting_for[i]);

		/* a process that ended meanwhile may have left its number to another */
		if (wanted != 0 && wanted <= lsn)
			SetLatch(&GetPGProcByNumber(i)->procLatch);
	}
}

/* A standby has flushed everything before lsn: tell those who wait for it. */
static void
publish(XLogRecPtr lsn)
{
	if (tandem_standby_moved_hook)
		tandem_standby_moved_hook();

	/* a full barrier: what has moved is visible before we look who waits */
	pg_atomic_fetch_add_u64(&shared->generation, 1);
	tandem_standby_wake(lsn);
}

/*
 * If this is a walsender of a standby and the standby has moved, publish it.
 * Reading our own slot needs no lock.
 */
static void
publish_own_position(void)
{
	static XLogRecPtr published = InvalidXLogRecPtr;
	ReplicationSlot *slot = MyReplicationSlot;

	if (slot == NULL || !SlotIsPhysical(slot))
		published = InvalidXLogRecPtr;
	else if (slot->data.restart_lsn != published)
	{
		published = slot->data.restart_lsn;
		publish(published);
	}
}

/* ---- the wrapper --------------------------------------------------------------- */

static void
wrapper_comm_reset(void)
{
	/* error recovery: what was being sent is no longer wanted */
	if (tandem_walsender_hooks.reset)
		tandem_walsender_hooks.reset();
	tandem_wrapped_methods->comm_reset();
}

static int
wrapper_flush(void)
{
	return tandem_wrapped_methods->flush();
}

static int
wrapper_flush_if_writable(void)
{
	if (tandem_walsender_hooks.flush_if_writable)
		return tandem_walsender_hooks.flush_if_writable();
	return tandem_wrapped_methods->flush_if_writable();
}

/*
 * WalSndLoop and ProcessPendingWrites ask this right after they have
 * processed the replies of the client.
 */
static bool
wrapper_is_send_pending(void)
{
	publish_own_position();

	if (tandem_walsender_hooks.holds_message && tandem_walsender_hooks.holds_message())
		return true;
	return tandem_wrapped_methods->is_send_pending();
}

static int
wrapper_putmessage(char msgtype, const char *s, size_t len)
{
	/* CopyBothResponse begins a stream */
	if (msgtype == 'W' && tandem_walsender_hooks.reset)
		tandem_walsender_hooks.reset();
	return tandem_wrapped_methods->putmessage(msgtype, s, len);
}

static void
wrapper_putmessage_noblock(char msgtype, const char *s, size_t len)
{
	if (tandem_walsender_hooks.putmessage_noblock &&
		tandem_walsender_hooks.putmessage_noblock(msgtype, s, len))
		return;
	tandem_wrapped_methods->putmessage_noblock(msgtype, s, len);
}

static const PQcommMethods wrapper_methods = {
	wrapper_comm_reset,
	wrapper_flush,
	wrapper_flush_if_writable,
	wrapper_is_send_pending,
	wrapper_putmessage,
	wrapper_putmessage_noblock};

static void
install_wrapper(Port *port, int status)
{
	if (prev_client_authentication_hook)
		prev_client_authentication_hook(port, status);

	if (status == STATUS_OK && am_walsender && shared != NULL &&
		PqCommMethods != &wrapper_methods)
	{
		tandem_wrapped_methods = PqCommMethods;
		PqCommMethods = &wrapper_methods;
	}
}

/* ---- wiring ---------------------------------------------------------------------- */

static Size
shared_size(void)
{
	return add_size(offsetof(StandbyShared, waiting_for),
					mul_size(MaxBackends + NUM_AUXILIARY_PROCS, sizeof(pg_atomic_uint64)));
}

void
tandem_standby_shmem_request(void)
{
	RequestAddinShmemSpace(shared_size());
}

void
tandem_standby_shmem_startup(void)
{
	bool		found;

	LWLockAcquire(AddinShmemInitLock, LW_EXCLUSIVE);
	shared = ShmemInitStruct("pg_tandem standbys", shared_size(), &found);
	if (!found)
	{
		pg_atomic_init_u64(&shared->generation, 1);
		for (int i = 0; i < TANDEM_NUM_REPORTERS; i++)
			pg_atomic_init_u64(&shared->last_report[i], 0);
		pg_atomic_init_u32(&shared->nwaiting, 0);
		for (int i = 0; i < MaxBackends + NUM_AUXILIARY_PROCS; i++)
			pg_atomic_init_u64(&shared->waiting_for[i], 0);
	}
	LWLockRelease(AddinShmemInitLock);
}

void
tandem_standby_init(void)
{
	prev_client_authentication_hook = ClientAuthentication_hook;
	ClientAuthentication_hook = install_wrapper;
}
