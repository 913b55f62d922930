/*-------------------------------------------------------------------------
 *
 * launcher.c
 *	  The process that starts and stops apply workers.
 *
 * It has no database: pg_subscription and pg_shseclabel are shared, and read
 * here as the server's own launcher reads the former.  Each turn compares what
 * is adopted with what runs:
 *
 *	 adopted, enabled, nothing runs		start, unless it is to be tried later
 *	 runs, but must not					ask it to stop; never wait for that
 *	 no longer adopted, nothing runs	give the slot back
 *
 * To start a worker it takes AccessShareLock on the subscription, without
 * waiting, and reads label and row again under it: whoever alters, releases or
 * drops the subscription has a stronger lock until the commit, or holds the
 * slot (see shared.c), and then the subscription's turn comes later.  So one of
 * them never holds the others up.
 *
 * When no background worker is free the subscription says so and is tried again
 * each second.
 *
 * It is woken at the commit of whatever concerns it, and when a worker ends; a
 * turn every NAP makes up for everything else.  After an error it is started
 * again; the workers don't notice.
 *
 * src/subscription/launcher.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/heapam.h"
#include "access/htup_details.h"
#include "access/table.h"
#include "access/tableam.h"
#include "access/xact.h"
#include "catalog/pg_authid.h"
#include "catalog/pg_shseclabel.h"
#include "catalog/pg_subscription.h"
#include "miscadmin.h"
#include "pgstat.h"
#include "postmaster/bgworker.h"
#include "postmaster/interrupt.h"
#include "storage/ipc.h"
#include "storage/latch.h"
#include "storage/lmgr.h"
#include "storage/lock.h"
#include "tcop/tcopprot.h"
#include "utils/builtins.h"
#include "utils/guc.h"
#include "utils/inval.h"
#include "utils/memutils.h"
#include "utils/rel.h"
#include "utils/snapmgr.h"
#include "utils/syscache.h"
#include "utils/timestamp.h"

#include "common/compat.h"
#include "conflict/retention.h"
#include "conflict/store.h"
#include "subscription/subscription.h"

#define LAUNCHER_RESTART 5		/* s */
#define NAP 10000				/* ms between two turns when nothing happens */
#define SHORT_NAP 1000			/* ms until a subscription that had to wait is tried again */
#define LOCK_NAP 5				/* ms, first wait for a lock, doubled up to SHORT_NAP */
#define ATTACH_LIMIT 60000		/* ms for a worker to attach that nobody watches */
#define EXIT_BACKOFF 5000		/* ms until the next try after an exit without an error */

/* A subscription with a label of ours. */
typedef struct Candidate
{
	Oid			subid;
	Oid			dbid;
	Oid			owner;
	NameData	name;
	bool		core_enabled;
	bool		has_slot_name;
	bool		may_log_in;		/* the owner, as whom the workers connect */
	TandemLabel label;
} Candidate;

/* What this process knows of workers it has registered; by slot. */
static BackgroundWorkerHandle **handles;

static MemoryContext turn_context;

static void
launcher_exit(int code, Datum arg)
{
	LWLockAcquire(tandem_subscriptions->lock, LW_EXCLUSIVE);
	tandem_subscriptions->launcher_latch = NULL;
	tandem_subscriptions->launcher_pid = 0;
	LWLockRelease(tandem_subscriptions->lock);
}

/* ---- Reading the catalogs ------------------------------------------------------ */

/*
 * The labels of ours that can be read (list of TandemLabel, in "context").  All
 * of them have a label's size at most, so none is toasted; other providers'
 * labels are not looked at.
 */
static List *
read_labels(MemoryContext context)
{
	List	   *labels = NIL;
	Relation	rel = table_open(SharedSecLabelRelationId, AccessShareLock);
	TableScanDesc scan = table_beginscan_catalog(rel, 0, NULL);
	HeapTuple	tuple;

	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_shseclabel form = (Form_pg_shseclabel) GETSTRUCT(tuple);
		TandemLabel label;
		bool		isnull;
		Datum		datum;
		MemoryContext old;

		if (form->classoid != SubscriptionRelationId)
			continue;
		datum = heap_getattr(tuple, Anum_pg_shseclabel_provider, RelationGetDescr(rel), &isnull);
		if (isnull || strcmp(TextDatumGetCString(datum), TANDEM_LABEL_PROVIDER) != 0)
			continue;
		datum = heap_getattr(tuple, Anum_pg_shseclabel_label, RelationGetDescr(rel), &isnull);
		if (isnull || VARATT_IS_EXTERNAL(DatumGetPointer(datum)) ||
			!tandem_label_parse(TextDatumGetCString(datum), &label) ||
			label.subid != form->objoid)
			continue;

		old = MemoryContextSwitchTo(context);
		labels = lappend(labels, memcpy(palloc(sizeof(label)), &label, sizeof(label)));
		MemoryContextSwitchTo(old);
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	return labels;
}

static bool
may_log_in(Oid role)
{
	HeapTuple	tuple = SearchSysCache1(AUTHOID, ObjectIdGetDatum(role));
	bool		result = HeapTupleIsValid(tuple) && ((Form_pg_authid) GETSTRUCT(tuple))->rolcanlogin;

	if (HeapTupleIsValid(tuple))
		ReleaseSysCache(tuple);
	return result;
}

/*
 * The adopted subscriptions, or only the one with this OID (list of Candidate,
 * in "context").  Needs a transaction.
 */
static List *
read_candidates(Oid only, MemoryContext context)
{
	List	   *candidates = NIL;
	List	   *labels = read_labels(context);
	Relation	rel;
	TableScanDesc scan;
	HeapTuple	tuple;

	if (labels == NIL)
		return NIL;
	rel = table_open(SubscriptionRelationId, AccessShareLock);
	scan = table_beginscan_catalog(rel, 0, NULL);
	while ((tuple = heap_getnext(scan, ForwardScanDirection)) != NULL)
	{
		Form_pg_subscription form = (Form_pg_subscription) GETSTRUCT(tuple);
		ListCell   *cell;

		if (OidIsValid(only) && form->oid != only)
			continue;
		foreach(cell, labels)
		{
			TandemLabel *label = lfirst(cell);
			Candidate  *candidate;
			MemoryContext old;

			if (label->subid != form->oid ||
				tandem_label_misfit(label, form->oid, NameStr(form->subname)) != NULL)
				continue;
			old = MemoryContextSwitchTo(context);
			candidate = palloc0(sizeof(Candidate));
			candidate->subid = form->oid;
			candidate->dbid = form->subdbid;
			candidate->owner = form->subowner;
			candidate->name = form->subname;
			candidate->core_enabled = form->subenabled;
			candidate->has_slot_name = !heap_attisnull(tuple, Anum_pg_subscription_subslotname,
													   RelationGetDescr(rel));
			candidate->may_log_in = may_log_in(form->subowner);
			candidate->label = *label;
			candidates = lappend(candidates, candidate);
			MemoryContextSwitchTo(old);
		}
	}
	table_endscan(scan);
	table_close(rel, AccessShareLock);
	return candidates;
}

/* ---- One subscription ------------------------------------------------------------ */

/* Those that a running worker doesn't read by itself. */
static bool
same_options(const TandemSubscriptionOptions *a, const TandemSubscriptionOptions *b)
{
	return a->enabled == b->enabled && a->workers == b->workers &&
		strcmp(a->node_id, b->node_id) == 0;
}

/* Why no worker may run for it, or NULL. */
static const char *
obstacle(const Candidate *candidate)
{
	if (candidate->core_enabled)
		return "it is enabled, so the server's own worker runs it; use ALTER SUBSCRIPTION ... DISABLE";
	if (!candidate->has_slot_name)
		return "it has no slot name; use ALTER SUBSCRIPTION ... SET (slot_name = ...)";
	if (!candidate->label.options.enabled)
		return "option enabled is off";
	if (!candidate->may_log_in)
		return "its owner may not log in; use ALTER ROLE ... LOGIN";
	return NULL;
}

static void
set_state(TandemSubscriptionSlot *slot, TandemSubscriptionState state, const char *reason)
{
	SpinLockAcquire(&slot->mutex);
	slot->state = state;
	strlcpy(slot->reason, reason, sizeof(slot->reason));
	SpinLockRelease(&slot->mutex);
}

/*
 * Registers an apply worker.  Caller has the exclusive lock and has found that
 * nothing runs and nobody holds the slot.  Returns whether one was free.
 */
static bool
launch(TandemSubscriptionSlot *slot, const Candidate *candidate)
{
	int			index = (int) (slot - tandem_subscriptions->slots);
	BackgroundWorker worker;
	BackgroundWorkerHandle *handle;
	MemoryContext old;
	bool		registered;
	char		reason[sizeof(slot->reason)];

	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = BGW_NEVER_RESTART;
	worker.bgw_main_arg = Int32GetDatum(index);
	worker.bgw_notify_pid = MyProcPid;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "pg_tandem");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "tandem_apply_main");
	snprintf(worker.bgw_name, BGW_MAXLEN, "tandem apply for subscription %u", candidate->subid);
	snprintf(worker.bgw_type, BGW_MAXLEN, "tandem apply");

	SpinLockAcquire(&slot->mutex);
	slot->launched = true;
	slot->launched_at = GetCurrentTimestamp();
	slot->stop_requested = false;
	slot->dbid = candidate->dbid;
	slot->owner = candidate->owner;
	slot->name = candidate->name;
	slot->options = candidate->label.options;
	slot->state = TANDEM_SUBSCRIPTION_STARTING;
	strlcpy(reason, slot->reason, sizeof(reason));
	slot->reason[0] = '\0';
	SpinLockRelease(&slot->mutex);

	/* the handle outlives this transaction */
	old = MemoryContextSwitchTo(TopMemoryContext);
	registered = RegisterDynamicBackgroundWorker(&worker, &handle);
	MemoryContextSwitchTo(old);
	if (registered)
	{
		handles[index] = handle;
		return true;
	}
	SpinLockAcquire(&slot->mutex);
	slot->launched = false;
	strlcpy(slot->reason, reason, sizeof(slot->reason));	/* so that it is logged once */
	SpinLockRelease(&slot->mutex);
	return false;
}

/* Says, once, that a subscription waits for a background worker. */
static void
report_no_worker(TandemSubscriptionSlot *slot, const char *name)
{
	char		reason[sizeof(slot->reason)];
	bool		known;

	snprintf(reason, sizeof(reason), "no background worker is free (max_worker_processes = %d)",
			 max_worker_processes);
	SpinLockAcquire(&slot->mutex);
	known = strcmp(slot->reason, reason) == 0;
	slot->state = TANDEM_SUBSCRIPTION_STOPPED;
	strlcpy(slot->reason, reason, sizeof(slot->reason));
	SpinLockRelease(&slot->mutex);
	if (!known)
		ereport(LOG,
				(errcode(ERRCODE_CONFIGURATION_LIMIT_EXCEEDED),
				 errmsg("subscription \"%s\" waits: no background worker is free", name),
				 errhint("Increase max_worker_processes, which is %d.", max_worker_processes)));
}

/*
 * Starts the apply worker of a subscription, if it still may run.  Returns
 * after how long it has to be looked at again.  Opens a transaction of its own.
 *
 * Who wakes us at a commit holds its locks a moment longer, so the first waits
 * for a lock are short.
 */
static long
start_worker(Oid subid)
{
	static long lock_nap = LOCK_NAP;
	LOCKTAG		tag;
	List	   *candidates;
	Candidate  *candidate;
	TandemSubscriptionSlot *slot;
	bool		started = true;
	bool		no_worker = false;

	SET_LOCKTAG_OBJECT(tag, InvalidOid, SubscriptionRelationId, subid, 0);

	StartTransactionCommand();
	if (LockAcquire(&tag, AccessShareLock, false, true) == LOCKACQUIRE_NOT_AVAIL)
	{
		long		nap = lock_nap;

		CommitTransactionCommand();
		lock_nap = Min(lock_nap * 2, SHORT_NAP);
		return nap;
	}
	lock_nap = LOCK_NAP;
	AcceptInvalidationMessages();
	(void) GetTransactionSnapshot();
	candidates = read_candidates(subid, turn_context);
	if (candidates == NIL || obstacle(linitial(candidates)) != NULL)
	{
		CommitTransactionCommand();
		return NAP;				/* the next turn sees it */
	}
	candidate = linitial(candidates);

	LWLockAcquire(tandem_subscriptions->lock, LW_EXCLUSIVE);
	slot = tandem_subscription_find_or_add(candidate->dbid, subid);
	if (slot == NULL)
		ereport(LOG,
				(errmsg("subscription \"%s\" waits: too many adopted subscriptions",
						NameStr(candidate->name)),
				 errhint("Increase max_worker_processes, which is %d.", max_worker_processes)));
	else if (slot->launched || slot->holds > 0)
		started = slot->launched;
	else
		no_worker = !(started = launch(slot, candidate));
	LWLockRelease(tandem_subscriptions->lock);
	if (no_worker)
		report_no_worker(slot, NameStr(candidate->name));

	CommitTransactionCommand();
	return started ? NAP : SHORT_NAP;
}

/* Asks the worker of a slot to stop. */
static void
request_stop(TandemSubscriptionSlot *slot)
{
	Latch	   *latch;

	SpinLockAcquire(&slot->mutex);
	slot->stop_requested = true;
	latch = slot->apply_latch;
	SpinLockRelease(&slot->mutex);
	if (latch)
		SetLatch(latch);
}

/*
 * A worker that was registered has ended, or never came.  Its exit callback
 * has said the rest, unless it didn't get that far.
 */
static void
check_worker(TandemSubscriptionSlot *slot)
{
	int			index = (int) (slot - tandem_subscriptions->slots);
	bool		gone = false;
	bool		unexplained = false;
	pid_t		pid;
	TimestampTz now = GetCurrentTimestamp();

	if (handles[index])
	{
		if (GetBackgroundWorkerPid(handles[index], &pid) != BGWH_STOPPED)
			return;
		pfree(handles[index]);
		handles[index] = NULL;
		gone = true;
	}

	LWLockAcquire(tandem_subscriptions->lock, LW_EXCLUSIVE);
	SpinLockAcquire(&slot->mutex);
	if (slot->used && slot->launched && slot->apply_pid == 0 &&
		(gone || TimestampDifferenceExceeds(slot->launched_at, now, ATTACH_LIMIT)))
		slot->launched = false;

	/* it didn't say why */
	if (slot->used && !slot->launched && !slot->stop_requested &&
		(slot->state == TANDEM_SUBSCRIPTION_STARTING || slot->state == TANDEM_SUBSCRIPTION_STREAMING))
	{
		unexplained = true;
		slot->state = TANDEM_SUBSCRIPTION_RETRYING;
		strlcpy(slot->reason, "the apply worker has ended; the server log says why", sizeof(slot->reason));
		slot->next_retry = TimestampTzPlusMilliseconds(now, EXIT_BACKOFF);
	}
	SpinLockRelease(&slot->mutex);
	LWLockRelease(tandem_subscriptions->lock);
	if (unexplained || gone)
		ConditionVariableBroadcast(&tandem_subscriptions->cv);
}

/*
 * What to do about an adopted subscription.  Returns the time, in ms, after
 * which it wants to be looked at again.
 */
static long
supervise(const Candidate *candidate)
{
	TandemSubscriptionSlot *slot;
	const char *problem = obstacle(candidate);
	TimestampTz now = GetCurrentTimestamp();
	TimestampTz next_retry;
	bool		running;
	bool		held;
	bool		changed;

	LWLockAcquire(tandem_subscriptions->lock, LW_EXCLUSIVE);
	slot = tandem_subscription_find_or_add(candidate->dbid, candidate->subid);
	LWLockRelease(tandem_subscriptions->lock);
	if (slot == NULL)
		return problem ? NAP : start_worker(candidate->subid);

	SpinLockAcquire(&slot->mutex);
	running = slot->launched;
	held = slot->holds > 0;
	next_retry = slot->next_retry;
	changed = slot->owner != candidate->owner ||
		strcmp(NameStr(slot->name), NameStr(candidate->name)) != 0;
	slot->options.workers = candidate->label.options.workers;
	slot->options.tombstones = candidate->label.options.tombstones;
	slot->options.outcomes = candidate->label.options.outcomes;
	if (!running)
	{
		/* resumed: at once, whatever there was before */
		if (candidate->label.options.enabled && !slot->options.enabled)
			next_retry = slot->next_retry = 0;
		slot->owner = candidate->owner;
		slot->name = candidate->name;
		slot->options = candidate->label.options;
	}
	SpinLockRelease(&slot->mutex);

	if (running)
	{
		if (problem || changed || !same_options(&slot->options, &candidate->label.options))
			request_stop(slot);
		return NAP;
	}
	if (held)
		return NAP;				/* woken when that ends */
	if (problem)
	{
		set_state(slot, candidate->core_enabled || !candidate->has_slot_name || candidate->label.options.enabled ?
				  TANDEM_SUBSCRIPTION_STOPPED : TANDEM_SUBSCRIPTION_PAUSED, problem);
		return NAP;
	}
	if (next_retry > now)
		return Min(NAP, TimestampDifferenceMilliseconds(now, next_retry));
	return start_worker(candidate->subid);
}

/* ---- A turn ----------------------------------------------------------------------- */

/* Stops, and then gives back, what is no longer adopted. */
static void
retire(List *candidates)
{
	for (int i = 0; i < tandem_subscriptions->nslots; i++)
	{
		TandemSubscriptionSlot *slot = &tandem_subscriptions->slots[i];
		bool		adopted = false;
		ListCell   *cell;

		if (!slot->used)
			continue;
		foreach(cell, candidates)
		{
			if (((Candidate *) lfirst(cell))->subid == slot->subid)
				adopted = true;
		}
		if (adopted)
			continue;
		request_stop(slot);
		LWLockAcquire(tandem_subscriptions->lock, LW_EXCLUSIVE);
		tandem_subscription_remove(slot);
		LWLockRelease(tandem_subscriptions->lock);
	}
}

static long
run_turn(void)
{
	List	   *candidates;
	List	   *databases = NIL;	/* with tombstones */
	ListCell   *cell;
	long		nap = NAP;
	long		again;

	for (int i = 0; i < tandem_subscriptions->nslots; i++)
	{
		if (tandem_subscriptions->slots[i].used)
			check_worker(&tandem_subscriptions->slots[i]);
	}

	StartTransactionCommand();
	(void) GetTransactionSnapshot();
	candidates = read_candidates(InvalidOid, turn_context);
	CommitTransactionCommand();

	MemoryContextSwitchTo(turn_context);
	retire(candidates);
	foreach(cell, candidates)
	{
		Candidate  *candidate = lfirst(cell);

		again = supervise(candidate);
		nap = Min(nap, again);
		MemoryContextSwitchTo(turn_context);
		if (candidate->label.options.tombstones)
			databases = list_append_unique_oid(databases, candidate->dbid);
	}
	again = tandem_retention_supervise(databases);
	nap = again < 0 ? nap : Min(nap, again);
	again = tandem_collectors_supervise(databases);
	return again < 0 ? nap : Min(nap, again);
}

/* Entry point of the launcher. */
void
tandem_launcher_main(Datum main_arg)
{
	pqsignal(SIGHUP, SignalHandlerForConfigReload);
	pqsignal(SIGTERM, die);
	BackgroundWorkerUnblockSignals();

	before_shmem_exit(launcher_exit, 0);
	LWLockAcquire(tandem_subscriptions->lock, LW_EXCLUSIVE);
	tandem_subscriptions->launcher_latch = MyLatch;
	tandem_subscriptions->launcher_pid = MyProcPid;
	LWLockRelease(tandem_subscriptions->lock);

	BackgroundWorkerInitializeConnection(NULL, NULL, 0);
	handles = MemoryContextAllocZero(TopMemoryContext,
									 sizeof(BackgroundWorkerHandle *) * tandem_subscriptions->nslots);
	turn_context = AllocSetContextCreate(TopMemoryContext, "tandem subscriptions turn",
										 ALLOCSET_DEFAULT_SIZES);

	for (;;)
	{
		long		nap;

		CHECK_FOR_INTERRUPTS();
		if (ConfigReloadPending)
		{
			ConfigReloadPending = false;
			ProcessConfigFile(PGC_SIGHUP);
		}

		MemoryContextReset(turn_context);
		nap = run_turn();

		pgstat_report_activity(STATE_IDLE, NULL);
		(void) WaitLatch(MyLatch, WL_LATCH_SET | WL_TIMEOUT | WL_EXIT_ON_PM_DEATH,
						 nap, PG_WAIT_EXTENSION);
		ResetLatch(MyLatch);
	}
}

/* Hooks and the launcher; called by _PG_init. */
void
tandem_subscriptions_init(void)
{
	BackgroundWorker worker;

	tandem_label_init();
	tandem_utility_init();
	tandem_incoming_init();

	/* pg_upgrade's server must not consume anything */
	if (IsBinaryUpgrade)
		return;
	memset(&worker, 0, sizeof(worker));
	worker.bgw_flags = BGWORKER_SHMEM_ACCESS | BGWORKER_BACKEND_DATABASE_CONNECTION;
	worker.bgw_start_time = BgWorkerStart_RecoveryFinished;
	worker.bgw_restart_time = LAUNCHER_RESTART;
	snprintf(worker.bgw_library_name, BGW_MAXLEN, "pg_tandem");
	snprintf(worker.bgw_function_name, BGW_MAXLEN, "tandem_launcher_main");
	snprintf(worker.bgw_name, BGW_MAXLEN, "tandem subscriptions");
	snprintf(worker.bgw_type, BGW_MAXLEN, "tandem subscriptions");
	RegisterBackgroundWorker(&worker);
}
