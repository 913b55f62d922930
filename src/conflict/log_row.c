/*-------------------------------------------------------------------------
 *
 * log_row.c
 *	  Values of rows for the conflict log.
 *
 * In two steps.  When a conflict is found its values are copied, which runs no
 * code of a type; toasted ones are fetched while it is certain that they are
 * there, as far as they are kept at all.  When it is written they are printed
 * by the types' output functions, which may fail; the caller is prepared then.
 *
 * As JSON: null, booleans, finite numbers and jsonb are what they are, all else
 * is the text that the type prints, in ISO style and whatever the settings are.
 * So a value can be given to its type's input function again.  Casts to json
 * that somebody has created are not used: they could be anybody's code.  What
 * is too large, or can't be told from another value (null in a jsonb column),
 * is an object with the member "tandem_cut".
 *
 * Called by log.c and log_store.c.
 *
 * src/conflict/log_row.c
 *-------------------------------------------------------------------------
 */
#include "postgres.h"

#include "access/detoast.h"
#include "catalog/pg_type.h"
#include "executor/tuptable.h"
#include "mb/pg_wchar.h"
#include "miscadmin.h"
#include "utils/builtins.h"
#include "utils/datum.h"
#include "utils/float.h"
#include "utils/fmgroids.h"
#include "utils/guc.h"
#include "utils/lsyscache.h"
#include "utils/memutils.h"
#include "utils/numeric.h"

#include "conflict/log.h"

#define LINE_VALUE 64			/* bytes of a value in the server's log */

/* ---- Taking --------------------------------------------------------------------- */

/* Is the beginning of a value of this type the beginning of its text? */
static bool
is_text(Oid type)
{
	Oid			output;
	bool		varlena;

	getTypeOutputInfo(type, &output, &varlena);
	return output == F_TEXTOUT || output == F_VARCHAROUT || output == F_BPCHAROUT;
}

/* Takes a value of variable length; returns the bytes that it takes here. */
static int64
take_varlena(TandemLogRow *row, int i, Form_pg_attribute att, Datum value, int64 limit)
{
	struct varlena *raw = (struct varlena *) DatumGetPointer(value);
	int64		size;

	/* an array or record in memory, as executor expressions leave it */
	if (VARATT_IS_EXTERNAL_EXPANDED(raw))
	{
		value = datumCopy(value, false, -1);
		raw = (struct varlena *) DatumGetPointer(value);
	}
	size = (int64) toast_raw_datum_size(value) - VARHDRSZ;
	if (size <= limit)
	{
		/* a compressed one stays compressed */
		row->values[i] = VARATT_IS_EXTERNAL(raw) ? PointerGetDatum(detoast_external_attr(raw)) :
			datumCopy(value, false, -1);
		return size;
	}
	row->cut[i] = size;
	if (is_text(att->atttypid))
		row->values[i] = PointerGetDatum(detoast_attr_slice(raw, 0, limit));
	else
	{
		row->values[i] = (Datum) 0;
		row->nulls[i] = true;
		limit = 0;
	}
	return limit;
}

TandemLogRow *
tandem_log_row_take(const TandemLogTable *table, TupleTableSlot *slot, const Bitmapset *missing,
					bool only_set)
{
	int			natts = table->desc->natts;
	TandemLogRow *row;
	int64		total = 0;

	if (slot == NULL || TTS_EMPTY(slot))
		return NULL;
	row = palloc(sizeof(TandemLogRow));
	row->values = palloc0(natts * sizeof(Datum));
	row->nulls = palloc0(natts * sizeof(bool));
	row->absent = palloc0(natts * sizeof(bool));
	row->cut = palloc0(natts * sizeof(int64));
	slot_getallattrs(slot);
	for (int i = 0; i < natts; i++)
	{
		Form_pg_attribute att = TupleDescAttr(table->desc, i);
		bool		isnull = i >= slot->tts_tupleDescriptor->natts || slot->tts_isnull[i];

		row->nulls[i] = isnull;
		/* a generated column isn't sent */
		row->absent[i] = att->attisdropped || bms_is_member(i + 1, missing) ||
			(isnull && (only_set || (missing && att->attgenerated)));
		if (isnull || row->absent[i])
		{
			row->nulls[i] = true;
			continue;
		}
		if (att->attlen == -1)
			total += take_varlena(row, i, att, slot->tts_values[i],
								  total > TANDEM_LOG_ROW_LIMIT ? TANDEM_LOG_VALUE_SHORT : TANDEM_LOG_VALUE_LIMIT);
		else
			row->values[i] = datumCopy(slot->tts_values[i], att->attbyval, att->attlen);
	}
	return row;
}

/* ---- Printing ------------------------------------------------------------------------ */

int
tandem_log_output_begin(void)
{
	int			nest = -1;

	if (DateStyle != USE_ISO_DATES)
	{
		nest = NewGUCNestLevel();
		(void) set_config_option("datestyle", "ISO", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	}
	if (IntervalStyle != INTSTYLE_POSTGRES)
	{
		if (nest < 0)
			nest = NewGUCNestLevel();
		(void) set_config_option("intervalstyle", "postgres", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	}
	if (extra_float_digits < 1)
	{
		if (nest < 0)
			nest = NewGUCNestLevel();
		(void) set_config_option("extra_float_digits", "1", PGC_USERSET, PGC_S_SESSION, GUC_ACTION_SAVE, true, 0, false);
	}
	return nest;
}

void
tandem_log_output_end(int nest)
{
	if (nest >= 0)
		AtEOXact_GUC(true, nest);
}

static char *
print_value(TandemLogTable *table, const TandemLogRow *row, int i)
{
	FmgrInfo   *output = &table->output[i];

	if (output->fn_oid == InvalidOid)
	{
		Oid			function;
		bool		varlena;

		getTypeOutputInfo(TupleDescAttr(table->desc, i)->atttypid, &function, &varlena);
		fmgr_info_cxt(function, output, GetMemoryChunkContext(table));
	}
	return OutputFunctionCall(output, row->values[i]);
}

static void
set_string(JsonbValue *value, const char *text, int len)
{
	value->type = jbvString;
	value->val.string.val = unconstify(char *, text);
	value->val.string.len = len;
}

static void
push_key(JsonbParseState **state, const char *name)
{
	JsonbValue	key;

	set_string(&key, name, strlen(name));
	(void) pushJsonbValue(state, WJB_KEY, &key);
}

/* A value that isn't there as it was. */
static void
push_cut(JsonbParseState **state, const char *text, int len, int64 bytes)
{
	JsonbValue	value;

	(void) pushJsonbValue(state, WJB_BEGIN_OBJECT, NULL);
	push_key(state, TANDEM_LOG_CUT);
	set_string(&value, text, len);
	(void) pushJsonbValue(state, WJB_VALUE, &value);
	push_key(state, "bytes");
	value.type = jbvNumeric;
	value.val.numeric = int64_to_numeric(bytes);
	(void) pushJsonbValue(state, WJB_VALUE, &value);
	(void) pushJsonbValue(state, WJB_END_OBJECT, NULL);
}

static void
push_jsonb(JsonbParseState **state, Jsonb *jsonb)
{
	JsonbValue	value;

	if (JB_ROOT_IS_SCALAR(jsonb))
	{
		JsonbValue	scalar;

		(void) JsonbExtractScalar(&jsonb->root, &scalar);
		/* a null here would be SQL's */
		if (scalar.type == jbvNull)
		{
			push_cut(state, "null", 4, VARSIZE(jsonb) - VARHDRSZ);
			return;
		}
	}
	value.type = jbvBinary;
	value.val.binary.data = &jsonb->root;
	value.val.binary.len = VARSIZE(jsonb) - VARHDRSZ;
	(void) pushJsonbValue(state, WJB_VALUE, &value);
}

static void
push_value(JsonbParseState **state, TandemLogTable *table, const TandemLogRow *row, int i)
{
	Oid			type = getBaseType(TupleDescAttr(table->desc, i)->atttypid);
	JsonbValue	value;
	char	   *text;
	int			len;

	if (row->cut[i] > 0)
	{
		text = row->nulls[i] ? "" : print_value(table, row, i);
		/* a slice of bytes may end within a character */
		push_cut(state, text, pg_encoding_verifymbstr(GetDatabaseEncoding(), text, strlen(text)), row->cut[i]);
		return;
	}
	if (row->nulls[i])
	{
		value.type = jbvNull;
		(void) pushJsonbValue(state, WJB_VALUE, &value);
		return;
	}
	switch (type)
	{
		case BOOLOID:
			value.type = jbvBool;
			value.val.boolean = DatumGetBool(row->values[i]);
			(void) pushJsonbValue(state, WJB_VALUE, &value);
			return;
		case JSONBOID:
			push_jsonb(state, DatumGetJsonbP(row->values[i]));
			return;
		default:
			break;
	}

	text = print_value(table, row, i);
	len = strlen(text);
	if (len > TANDEM_LOG_VALUE_LIMIT)
		push_cut(state, text, pg_encoding_verifymbstr(GetDatabaseEncoding(), text, TANDEM_LOG_VALUE_LIMIT), len);
	else if ((type == INT2OID || type == INT4OID || type == INT8OID || type == FLOAT4OID ||
			  type == FLOAT8OID || type == NUMERICOID) &&
			 strspn(text, "+-.0123456789eE") == len)	/* neither NaN nor Infinity */
	{
		value.type = jbvNumeric;
		value.val.numeric = DatumGetNumeric(DirectFunctionCall3(numeric_in, CStringGetDatum(text),
																ObjectIdGetDatum(InvalidOid),
																Int32GetDatum(-1)));
		(void) pushJsonbValue(state, WJB_VALUE, &value);
	}
	else
	{
		set_string(&value, text, len);
		(void) pushJsonbValue(state, WJB_VALUE, &value);
	}
}

Jsonb *
tandem_log_row_json(TandemLogTable *table, const TandemLogRow *row)
{
	JsonbParseState *state = NULL;

	if (row == NULL)
		return NULL;
	(void) pushJsonbValue(&state, WJB_BEGIN_OBJECT, NULL);
	for (int i = 0; i < table->desc->natts; i++)
	{
		if (row->absent[i])
			continue;
		push_key(&state, NameStr(TupleDescAttr(table->desc, i)->attname));
		push_value(&state, table, row, i);
	}
	return JsonbValueToJsonb(pushJsonbValue(&state, WJB_END_OBJECT, NULL));
}

void
tandem_log_row_text(StringInfo out, TandemLogTable *table, const TandemLogRow *row)
{
	bool		whole = true;
	const char *comma = "(";

	for (int i = 0; i < table->desc->natts; i++)
		whole = whole && (!row->absent[i] || TupleDescAttr(table->desc, i)->attisdropped);
	for (int i = 0; i < table->desc->natts && !whole; i++)
	{
		if (row->absent[i])
			continue;
		appendStringInfo(out, "%s%s", comma, NameStr(TupleDescAttr(table->desc, i)->attname));
		comma = ", ";
	}
	if (!whole)
	{
		appendStringInfoString(out, comma[0] == '(' ? "()=" : ")=");
		comma = "(";
	}
	for (int i = 0; i < table->desc->natts; i++)
	{
		char	   *text;
		int			len;

		if (row->absent[i])
			continue;
		appendStringInfoString(out, comma);
		comma = ", ";
		if (row->nulls[i])
		{
			appendStringInfoString(out, row->cut[i] > 0 ? "..." : "null");
			continue;
		}
		text = print_value(table, row, i);
		len = strlen(text);
		if (len > LINE_VALUE || row->cut[i] > 0)
			len = pg_encoding_verifymbstr(GetDatabaseEncoding(), text, Min(len, LINE_VALUE));
		appendBinaryStringInfo(out, text, len);
		if (text[len] != '\0' || row->cut[i] > 0)
			appendStringInfoString(out, "...");
		pfree(text);
	}
	appendStringInfoString(out, comma[0] == '(' ? "()" : ")");
}
